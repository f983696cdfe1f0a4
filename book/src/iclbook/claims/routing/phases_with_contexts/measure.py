"""Sampled free energies and losses of every phase of a model with two contexts, at all n of one population."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.routing.phases_with_contexts.claim import CONTEXTS, MODELS, SIDES
from icllab.core.grid import tabulated
from icllab.diagnostics import SMC, LocalPosterior, free_energy

VERSION = 2


class Misfit(eqx.Module):
    """Nats per sample of both contexts, weighted; ``split``: a gate of recognition for each context."""

    share: jax.Array
    barrier: float
    sign: float
    effect: float
    products: int = eqx.field(static=True)

    def selected(self, w, context):
        """The zero-shot weights that a context selects: its gates, its sign, and its products."""
        r, s = w["recognition"][context % len(w["recognition"])], w["daughter"][context]
        block = context % len(w["u"])
        return r, (1 - 2 * context) * self.sign * smooth(r), s, w["u"][block], w["v"][block]

    def answer(self, selected):
        """The zero-shot machine."""
        o, e, g, p, q = selected
        head = [self.barrier * o * (1 - o), e, o * self.barrier * g * (1 - g), self.effect * smooth(o) * smooth(g)]
        return jnp.concatenate([jnp.stack(head), o * g * p * q])

    def losses(self, w):
        """Losses of both contexts, [context]."""
        truth = jnp.array([[0, sign * self.sign, 0, self.effect] for sign in (1, -1)])
        answers = jnp.stack([self.answer(self.selected(w, context)) for context in range(CONTEXTS)])
        return jnp.sum((answers - jnp.pad(truth, ((0, 0), (0, self.products)))) ** 2, axis=1) / 2

    def weights(self):
        """Samples of each context over all samples."""
        return jnp.stack([1 - self.share, self.share])

    def __call__(self, w):
        """Mean over all samples."""
        return self.weights() @ self.losses(w)

    def observed(self, w):
        """Weighted losses, their squares and their product."""
        first, second = self.weights() * self.losses(w)
        return jnp.stack([first, second, first**2, second**2, first * second])


def smooth(x):
    """From 0 at 0 to 1 at 1, level at both."""
    return x**2 * (3 - 2 * x)


class Phase(eqx.Module):
    """The weights whose gates lie on the sides of a phase."""

    sides: jax.Array

    def __call__(self, w):
        """Is a point in the phase?"""
        of_r, of_s = self.sides[0] * (w["recognition"] - 0.5), self.sides[1:] * (w["daughter"] - 0.5)
        return jnp.all(of_r > 0) & jnp.all((of_s > 0) | (self.sides[1:] == 0))


def measure(point, *, key, split=False, swapped=False, sign=None, effect=None):
    """One cell, of one model.

    ``split``: a gate of recognition for each context; ``swapped``: products of the other model; ``sign`` and
    ``effect``, if others than those of the claim.
    """
    kind = MODELS[1 - MODELS.index(point.context_model)] if swapped else point.context_model
    blocks = 1 if kind == "shared" else CONTEXTS
    centre = {
        "recognition": jnp.full(CONTEXTS if split else 1, 0.5),
        "daughter": jnp.full(CONTEXTS, 0.5),
        "u": jnp.zeros((blocks, point.products)),
        "v": jnp.zeros((blocks, point.products)),
    }
    numbers = (point.sign if sign is None else sign, point.effect if effect is None else effect)

    def anneal(seed, share, phase):
        loss = Misfit(jnp.asarray(share), point.barrier, *numbers, point.products)
        seed_key = jax.random.fold_in(jax.random.fold_in(key, seed), point.share.index(share))
        energies = free_energy(
            LocalPosterior.from_function(loss, centre, nbeta=point.samples, localization=1.0),
            key=jax.random.fold_in(seed_key, list(SIDES).index(phase)),
            region=Phase(jnp.asarray(SIDES[phase], float)),
            observe=loss.observed,
            sampler=SMC(particles=point.particles, repeats=point.repeats, moves=(2, 60)),
        )
        n = np.asarray(point.samples, float)
        return {
            "phase_free_energy": (("samples",), energies["free_energy"].values),
            "loss_moment": (("moment", "samples"), energies["observed"].values.T * np.stack([n, n, n**2, n**2, n**2])),
            "annealing_warnings": ((), len(energies.attrs["warnings"])),
        }

    return tabulated(anneal, seed=point.seed, share=point.share, phase=point.phase)
