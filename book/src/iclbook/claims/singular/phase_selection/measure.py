"""Sampled free energies of both phases of the gated model on the first n samples of data sets."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.singular.phase_selection.claim import PHASES
from icllab.core.grid import tabulated
from icllab.diagnostics import SMC, LocalPosterior, free_energy

VERSION = 2

DRAWN = 4096  # samples of a data set


class Misfit(eqx.Module):
    """Nats per sample up to a constant; with ``linear`` one weight stands for each product."""

    means: jax.Array
    barrier: float
    effect: float
    linear: bool = eqx.field(static=True)

    def __call__(self, w):
        """Misfit at a gate and two weights for each product."""
        s, u, v = w
        gate = jnp.stack([self.barrier * s * (1 - s), self.effect * s**2 * (3 - 2 * s)])
        answer = jnp.concatenate([gate, s * u * (1.0 if self.linear else v)])
        return jnp.sum((answer - self.means) ** 2) / 2


class Side(eqx.Module):
    """The half of the parameters on one side of the gate's middle."""

    sign: jax.Array

    def __call__(self, w):
        """Is a point in the half?"""
        return self.sign * (w[0] - 0.5) > 0


def measure(point, *, key, linear=False, effect=None):
    """One cell: means of the first n samples of every data set, and the free energies there.

    ``effect``: effect in the data, if another than the model's.
    """
    truth = np.zeros(point.products + 2)
    truth[1] = point.effect if effect is None else effect
    centre = (jnp.asarray(0.5), jnp.zeros(point.products), jnp.zeros(point.products))

    def at(seed):
        seed_key = jax.random.fold_in(key, seed)
        data = truth + np.asarray(jax.random.normal(seed_key, (DRAWN, len(truth))))

        def anneal(samples, phase):
            loss = Misfit(jnp.asarray(data[:samples].mean(axis=0)), point.barrier, point.effect, linear)
            energy = free_energy(
                LocalPosterior.from_function(loss, centre, nbeta=[float(samples)], localization=1.0),
                key=jax.random.fold_in(jax.random.fold_in(seed_key, samples), PHASES.index(phase)),
                region=Side(jnp.asarray(2.0 * PHASES.index(phase) - 1)),
                sampler=SMC(particles=point.particles, repeats=point.repeats, moves=(2, 20)),
            )
            return {
                "phase_free_energy": float(energy["free_energy"][0]),
                "phase_free_energy_error": float(energy["free_energy_error"][0]),
                "annealing_warnings": len(energy.attrs["warnings"]),
            }

        means = np.stack([data[:n].mean(axis=0) for n in point.samples])
        energies = tabulated(anneal, samples=point.samples, phase=point.phase)
        return {**energies, "sample_mean": (("samples", "output"), means)}

    return tabulated(at, seed=point.seed)
