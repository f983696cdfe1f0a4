"""Free energies and estimates by chains of every loss; neither sampler uses a formula."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.singular.exact_coefficients.claim import ATTENTION, LAYERS, STRATA
from icllab.diagnostics import HMC, SMC, LocalPosterior, coefficient_at_temperature, free_energy

VERSION = 1

SPECTRUM = (1.0, 0.5, 0.25)  # eigenvalues of E[hh^T]


def measure(point, *, key, rank_lost=False, full_rank=False):
    """One cell: free energies of every repeat, and the estimate by chains if there is no region."""
    loss, at, precision, region = loss_of(point.model, rank_lost, full_rank)
    of_annealing, of_chains = jax.random.split(key)
    energies = free_energy(
        LocalPosterior.from_function(loss, at, nbeta=point.nbeta, localization=precision),
        key=of_annealing,
        region=region,
        sampler=SMC(repeats=len(point.seed), particles=point.particles, moves=(2, 20)),
    )
    estimate, error, warnings = np.nan, np.nan, 0
    if region is None:
        sampler = HMC(chains=point.chains, draws=point.draws, warm_up=min(point.warm_up, point.draws))
        posterior = LocalPosterior.from_function(loss, at, n=point.samples, localization=precision)
        chains = coefficient_at_temperature(posterior, checks=(), key=of_chains, sampler=sampler)
        estimate, error = float(chains["estimate"]), float(chains["mcse"])
        warnings = len(chains.attrs["warnings"])
    return {
        "free_energy": (("seed", "nbeta"), energies["repeat_free_energy"].values),
        "learning_coefficient": ((), estimate),
        "learning_coefficient_error": ((), error),
        "sampler_warnings": ((), warnings),
        "annealing_warnings": ((), len(energies.attrs["warnings"])),
    }


def loss_of(model, rank_lost=False, full_rank=False):
    """A loss, a minimum of it, the precision of the prior there, and a region or None.

    ``rank_lost``: the product of linear layers is zero; ``full_rank``: it has the largest rank.
    """

    def product(layers):
        return functools.reduce(lambda below, layer: layer @ below, layers)

    def linear(layers, spectrum=None, precision=1.0):
        truth = product(layers)
        root = jnp.sqrt(jnp.asarray(SPECTRUM if spectrum else jnp.ones(truth.shape[1])))[None]
        return lambda w: jnp.sum(((product(w) - truth) * root) ** 2) / 2, layers, precision, None

    def plain(widths, rank):
        return [jnp.eye(b, a).at[:, rank:].set(0) for a, b in itertools.pairwise(widths)]

    if model in LAYERS:
        widths, rank = LAYERS[model]
        return linear(plain(widths, 0 if rank_lost else min(widths) if full_rank else rank))
    if model in STRATA:
        first, second, precision = STRATA[model]
        return linear([jnp.diag(jnp.asarray(side, float)) for side in (first, second)], precision=precision)
    if model == "linear attention":
        dim, width, rank = ATTENTION
        return linear(plain((dim, width, dim), rank), spectrum=True)
    if model == "two tanh":
        x, weight = (jnp.asarray(a)[None] for a in np.polynomial.hermite_e.hermegauss(6))

        def tanh(w):
            answer = jnp.sum(w[0][:, None] * jnp.tanh(w[1][:, None] * x), axis=0, keepdims=True)
            return jnp.sum(weight * answer**2) / 2

        return tanh, [jnp.zeros(2), jnp.zeros(2)], 1.0, None
    if model == "mixture":
        x, weight = (jnp.asarray(a) for a in np.polynomial.hermite_e.hermegauss(30))

        def divergence(w):
            share, *means = w
            first, second = (jnp.exp(mean * x - mean**2 / 2) for mean in means)
            ratio = (1 - share) * first + share * second
            return jnp.sum(weight * (ratio - 1 - jnp.log(ratio))) / jnp.sum(weight)

        return divergence, jnp.array([0.5, 0, 0]), 1.0, lambda w: (w[0] > 0) & (w[0] < 1)
    losses = {
        "quadratic": (lambda w: jnp.sum(w**2) / 2, 10),
        "crossing": (lambda w: (w[0] * w[1] ** 2) ** 2, 2),
        "power 2,4": (lambda w: w[0] ** 2 + w[1] ** 4, 2),
    }
    loss, dim = losses[model]
    return loss, jnp.zeros(dim), 1.0, None
