"""Settings of Langevin dynamics for a posterior, tried on posteriors of known answer whose spectra have its shape."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from icllab.core.domains import POSITIVE
from icllab.core.errors import require_key
from icllab.core.result_warnings import collected
from icllab.core.views import fields_html, fields_repr
from icllab.diagnostics.curvature.spectra import curvatures
from icllab.diagnostics.sampling.local_loss import LocalLoss, largest_curvature
from icllab.diagnostics.sampling.local_posteriors import LocalPosterior
from icllab.diagnostics.sampling.samplers import chain_starts
from icllab.diagnostics.sampling.sgld import SGLD
from icllab.posteriors.integrals import quadratic
from icllab.posteriors.problems import difficulty, names, problem

FRACTIONS = (0.02, 0.05, 0.1, 0.2, 0.4)  # of a step, times the largest curvature of the potential
LENGTHS = 50, 20_000  # of a warm-up, at least and at most
SHORTER, AS_GOOD = 4, 1.1  # a length that many times shorter is taken if its error is at most so much larger
NEAREST = 2  # problems besides the quadratic loss
SMALL = 40  # parameters of a problem at most
DIRECTIONS = 256  # of the quadratic loss at most
LIVE = 0.1  # of the localization, that nbeta times a curvature is where a direction counts
DIFFERENCE = 1e-3  # of parameters, for a Hessian
BIASED = 0.1  # distance from the known levels that is a warning
FAR = 1.0  # distance of shapes beyond which a problem is another kind
SPECTRUM = "quadratic of this spectrum"


class Calibration(NamedTuple):
    """Proposed settings, and their distance from known answers.

    Attributes:
        sampler: Langevin dynamics with the step size and the length.
        nbeta: Temperature that the settings are for.
        localization: Localization that they are for.
        bias: Mean relative distance from the known levels: the bias to expect.
        error: Root mean square of these distances.
        problems: Names of the posteriors.
        warnings: Sentences, above all if the settings are extrapolated.
    """

    sampler: SGLD
    nbeta: float
    localization: float
    bias: float
    error: float
    problems: tuple[str, ...]
    warnings: tuple[str, ...]

    __repr__ = fields_repr
    _repr_html_ = fields_html


def calibrate_sampler(
    posterior: LocalPosterior, *, key: PRNGKeyArray, seconds: float = 60.0, without: Sequence[str] = ()
) -> Calibration:
    r"""Propose step size, temperature, localization and length of Langevin dynamics for a posterior.

    Five steps and two lengths run on a quadratic loss that has the posterior's spectrum and the noise of its batches,
    and on the two problems whose spectra are nearest in shape: rank, condition, :math:`n\beta h_{\max}/\gamma` and
    number of parameters. The least root mean square distance from the known levels decides. A length of a quarter is
    preferred if its distance is at most a tenth larger.

    Args:
        posterior: Loss near a point, without a prior.
        key: Key of spectra and chains.
        seconds: Nominal seconds of gradients that the proposed chains may take; this bounds their length.
        without: Names of problems that are not used.

    Raises:
        InputError: As :func:`~icllab.diagnostics.singular.coefficients.coefficient_at_temperature`.

    Derived: docs/posteriors.md, Choosing settings.
    """
    require_key(key)
    POSITIVE.require("seconds", seconds)
    of_spectrum, of_steps, of_trials = jax.random.split(key, 3)
    nbeta, sampler = posterior.temperature, SGLD()
    local = posterior.local_loss(sampler.block).localized(nbeta)
    gamma, batches = local.localization, local.samples > sampler.batch
    h = np.asarray(curvatures(local.loss, local.centre, key=of_spectrum)[0], np.float64)
    of_posterior = shape(h, nbeta, gamma)
    near = sorted(
        (float(np.linalg.norm(of_posterior - other)), name) for name, other in shapes().items() if name not in without
    )
    share = sampler.batch / local.samples if batches else 1.0
    moves = seconds / (3 * sampler.chains * share * max(local.seconds, 1e-12))
    sampler = replace(sampler, warm_up=int(np.clip(moves, *LENGTHS)))
    trials: dict[str, tuple[LocalPosterior, float]] = {}
    if nbeta * h.max() > LIVE * gamma:  # else no direction of the Hessian counts
        trials[SPECTRUM] = quadratic_twin(h, local.noise * sampler.batch if batches else 0.0, nbeta, gamma)
    for _, name in near[:NEAREST]:
        trials[name] = (known := problem(name)), float(known.answers["level"].value)
    keys = jax.random.split(of_trials, len(trials))
    with collected():
        off = np.array([_distances(sampler, *trial, k) for trial, k in zip(trials.values(), keys, strict=True)])
    errors = np.sqrt(np.mean(off**2, axis=0))  # [length, step]
    length = int(errors[0].min() > AS_GOOD * errors[1].min())
    best = int(np.argmin(errors[length]))
    error, distance = float(errors[length, best]), near[0][0]
    starts = chain_starts(sampler, local, nbeta, of_steps)
    step = FRACTIONS[best] / _steepest(local, nbeta, starts, of_steps)
    sampler = replace(sampler, step_size=float(step), warm_up=_lengths(sampler)[length])
    faults = {
        f"the settings are extrapolated: the nearest spectrum, of {near[0][1]}, is {distance:.2g} away": distance > FAR,
        "the loss falls along directions from the point, and no chain was tried there": nbeta * h[-1] < -gamma,
        f"the distance from known answers is {error:.0%}": not error < BIASED,
    }
    sentences = tuple(sentence for sentence, wrong in faults.items() if wrong)
    bias = float(off[:, length, best].mean())
    return Calibration(sampler, nbeta, gamma, bias, error, tuple(trials), sentences)


def shape(h: np.ndarray, nbeta: float, gamma: float) -> np.ndarray:
    r"""Twice the rank by the dimension, and half the logarithms of condition, of :math:`1+n\beta h/\gamma` and of d.

    A unit is half of the directions, or a factor of a hundred.
    """
    live = h[nbeta * h > LIVE * gamma]
    condition = live.max() / live.min() if live.size else 1.0
    steepest = max(nbeta * float(h.max(initial=0.0)) / gamma, 0.0)
    return np.array([2 * live.size / h.size, *(np.log10([condition, 1 + steepest, h.size]) / 2)])


@functools.cache
def shapes() -> Mapping[str, np.ndarray]:
    """Shapes of the small problems that have an answer, at their default settings."""
    known = (problem(name) for name in names() if difficulty(name) not in ("refused", "baseline"))
    small = (entry for entry in known if entry.at.size <= SMALL and "level" in entry.answers)
    return {
        entry.name: shape(_curvatures(entry), entry.temperature, entry.localization)
        for entry in small
        if entry.localization is not None
    }


def _curvatures(entry: Any) -> np.ndarray:
    """Eigenvalues of the Hessian of a problem by central differences, in descending order."""
    steps = DIFFERENCE * np.eye(entry.at.size)

    def second(i: int, j: int) -> float:
        corners = ((a, b) for a in (1, -1) for b in (1, -1))
        return sum(a * b * entry.numpy_loss(entry.at + a * steps[i] + b * steps[j]).mean() for a, b in corners)

    hessian = np.array([[second(i, j) if j <= i else 0.0 for j in range(len(steps))] for i in range(len(steps))])
    return np.linalg.eigvalsh(hessian / (4 * DIFFERENCE**2))[::-1]  # of the lower triangle


def quadratic_twin(h: np.ndarray, noise: float, nbeta: float, gamma: float) -> tuple[LocalPosterior, float]:
    """A quadratic loss with these curvatures, or as many quantiles, and its level.

    ``noise`` is the trace of the covariance of a sample's gradient; the twin has samples with it.
    """
    kept = h[np.unique(np.linspace(0, h.size - 1, DIRECTIONS).round().astype(int))] if h.size > DIRECTIONS else h
    kept, rows = np.maximum(kept, 0.0), None
    if noise > 0:
        rows = np.random.default_rng(0).normal(size=(4 * SGLD().batch, kept.size)) * np.sqrt(noise / h.size)
        rows = jnp.asarray(rows - rows.mean(0))
    curvature = jnp.asarray(kept)

    def loss(w: Any, slopes: Any = None) -> Any:
        bowl = jnp.sum(curvature.astype(w.dtype) * w**2) / 2
        return bowl if slopes is None else bowl + jnp.mean(slopes.astype(w.dtype) @ w)

    at = jnp.zeros(kept.size)
    level = quadratic(kept, nbeta, gamma).level[0]
    return LocalPosterior(loss, at, rows, nbeta=nbeta, localization=gamma), level


def _lengths(sampler: SGLD) -> tuple[int, int]:
    return max(sampler.warm_up // SHORTER, LENGTHS[0] // SHORTER), sampler.warm_up


def _distances(sampler: SGLD, trial: LocalPosterior, level: float, key: PRNGKeyArray) -> np.ndarray:
    """Relative distances of estimates from the level, [length, step]."""
    nbeta = trial.temperature
    local = trial.local_loss(sampler.block).localized(nbeta)
    of_starts, of_curvature, *keys = jax.random.split(key, 2 + 2 * len(FRACTIONS))
    starts = chain_starts(sampler, local, nbeta, of_starts)
    steepest = _steepest(local, nbeta, starts, of_curvature)
    target = sampler.target(local.posterior(nbeta, local.localization), local.known)
    rows = []
    for i, length in enumerate(_lengths(sampler)):
        for j, fraction in enumerate(FRACTIONS):
            options: Any = {"mode": "vmap", "key": keys[i * len(FRACTIONS) + j], "draws": 2 * length}
            chains = sampler.draw(target, starts, step_size=fraction / steepest, warm_up=length, **options)
            rows.append(nbeta * float(np.asarray(chains.terms, np.float64).sum(2).mean()) / level - 1)
    return np.nan_to_num(np.reshape(rows, (2, -1)), nan=np.inf)


def _steepest(local: LocalLoss, nbeta: float, starts: Any, key: PRNGKeyArray) -> float:
    """The largest curvature of the potential where chains start, at the point or away from it."""
    smooth = local.posterior(nbeta, local.localization, curved=True)
    steepest = (
        largest_curvature(smooth, *each) for each in zip(starts, jax.random.split(key, len(starts)), strict=True)
    )
    return max(local.localization, *map(float, steepest))
