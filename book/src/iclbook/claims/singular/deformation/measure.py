"""Sampled free energies of both halves of the cusp and the mean of x there, at all n by one annealing each."""

import equinox as eqx
import jax
import jax.numpy as jnp

from iclbook.claims.singular.deformation.claim import SIDES
from icllab.core.grid import tabulated
from icllab.diagnostics import SMC, LocalPosterior, free_energy

VERSION = 1


class Wells(eqx.Module):
    """The cusp in x; the right well determines y, and with ``even`` the left well as much."""

    tilt: jax.Array
    split: jax.Array
    even: bool = eqx.field(static=True)

    def __call__(self, w):
        """Loss at x and y."""
        x, y = w
        stiffness = x**2 if self.even else (x + 1) ** 2
        return x**4 / 4 - self.split * x**2 / 2 - self.tilt * x + stiffness * jnp.sum(y**2) / 2


class Half(eqx.Module):
    """The points on one side of x = 0."""

    sign: jax.Array

    def __call__(self, w):
        """Is a point in the half?"""
        return self.sign * w[0] > 0


def place(w):
    """The coordinate x."""
    return w[0]


def measure(point, *, key, even=False, scale=1.0):
    """One cell: at every tilt both halves. ``scale``: factor of the split."""

    def anneal(tilt, phase):
        side = SIDES.index(phase)
        energies = free_energy(
            LocalPosterior.from_function(
                Wells(jnp.asarray(float(tilt)), jnp.asarray(scale * point.split), even),
                (jnp.zeros(()), jnp.zeros(point.free)),
                nbeta=point.samples,
                localization=1.0,
            ),
            key=jax.random.fold_in(jax.random.fold_in(key, round(1000 * (tilt + 1))), side),
            region=Half(jnp.asarray(2.0 * side - 1)),
            observe=place,
            sampler=SMC(particles=point.particles, repeats=point.repeats, moves=(2, 40)),
        )
        names = {"free_energy": "phase_free_energy", "observed": "phase_place"}
        by_n = {
            f"{name}{end}": (("samples",), energies[f"{source}{end}"].values.reshape(-1))
            for source, name in names.items()
            for end in ("", "_error")
        }
        return {**by_n, "annealing_warnings": len(energies.attrs["warnings"])}

    return tabulated(anneal, tilt=point.tilt, phase=point.phase)
