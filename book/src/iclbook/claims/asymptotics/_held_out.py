"""Theories of the log odds of memorising, fitted to part of a grid of tasks K and steps N and scored on the rest.

A theory is a function of three real numbers and of what is known in advance of each cell. All are fitted by least
squares of the probability :math:`p = 1/(1+e^{-\\eta})` on the same cells, from several starts.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares
from scipy.special import expit

from icllab.theory import strategy_odds
from icllab.theory.parameters import Number

Array = np.ndarray
LogOdds = Callable[["Known", Array], Number]
_BOUND = 30.0  # of log odds in a fit: beyond it the probability is 0 or 1, without a gradient
_LARGEST = 3.0  # logarithm of beta: larger powers of bits overflow
_LEAST_SPREAD = 1e-3  # of predictive distributions
_CODE = 4000.0  # bits of the program of either predictor, about 500 bytes


class Known(NamedTuple):
    """Known properties of each cell: K, N, the exact loss gap in nats, and the dimension of a task."""

    tasks: Array
    steps: Array
    gap: Array
    dim: int


class Theory(NamedTuple):
    """Log odds as a function of cells and three numbers, with starts of a fit."""

    log_odds: LogOdds
    starts: tuple[tuple[float, float, float], ...]


def _posterior(known: Known, numbers: Array, code: float = _CODE) -> Number:
    growth, log_beta, log_gamma = numbers
    bits = strategy_odds.pool_bits(known.tasks, dim=known.dim, code=code)
    fitted = {"growth": growth, "beta": np.exp(min(log_beta, _LARGEST)), "gamma": np.exp(log_gamma)}
    return strategy_odds.posterior(
        known.steps, loss_gap=known.gap, memorising_bits=bits, generalising_bits=code, **fitted
    )


def _pool_alone(known: Known, numbers: Array) -> Number:
    """The posterior with programs of zero bits."""
    return _posterior(known, numbers, code=0.0)


def _free_energy(known: Known, numbers: Array) -> Number:
    growth, log_weight, log_gamma = numbers
    bound = known.tasks * known.dim / 2  # half the number of parameters of the pool
    fitted = {"growth": growth, "weight": np.exp(log_weight), "gamma": np.exp(log_gamma)}
    return strategy_odds.free_energy(known.steps, loss_gap=known.gap, coefficient_gap=bound, **fitted)


def _boundary(known: Known, numbers: Array) -> Number:
    log_scale, exponent, log_width = numbers
    fitted = {"scale": np.exp(log_scale), "exponent": exponent, "width": np.exp(log_width)}
    return strategy_odds.boundary(known.tasks, known.steps, **fitted)


def _race(known: Known, numbers: Array) -> Number:
    memorising, generalising, exponent = np.exp(numbers)
    fitted = {"memorising": memorising, "generalising": generalising, "exponent": exponent}
    return strategy_odds.race(known.tasks, known.steps, loss_gap=np.maximum(known.gap, 0.0), **fitted)


THEORIES = {
    "posterior": Theory(_posterior, ((0.5, -1.5, 0.0), (0.3, -1.0, 2.0), (0.7, -0.7, 0.0), (0.1, -2.0, 3.0))),
    "pool alone": Theory(_pool_alone, ((0.3, -1.9, 2.0), (0.5, -1.5, 1.0), (0.7, -1.0, 0.0), (0.1, -2.5, 3.0))),
    "free energy": Theory(_free_energy, ((0.5, -3.0, 0.0), (0.3, -4.0, 2.0), (0.8, -2.0, 0.0), (0.1, -6.0, 3.0))),
    "boundary": Theory(_boundary, ((4.0, 1.0, 0.0), (6.0, 0.5, 1.0), (2.0, 2.0, 0.5), (6.0, 0.0, 1.0))),
    "race": Theory(_race, ((3.0, 5.0, 0.0), (1.0, 3.0, 0.0), (5.0, 7.0, -0.7), (3.0, 8.0, 0.7))),
}
"""The formula under test first, then a variant of it, then its rivals."""
NULLS = ("constant", "nearest")


def probability(name: str, known: Known, numbers: Array) -> Array:
    """Probability of memorising in each cell according to a theory."""
    return expit(np.clip(THEORIES[name].log_odds(known, numbers), -_BOUND, _BOUND))


def fit(name: str, known: Known, measured: Array, starts: Sequence[Array | tuple[float, ...]] | None = None) -> Array:
    """Three numbers that minimise the squared error of the probability, the best of several starts."""

    def residuals(numbers: Array) -> Array:
        return probability(name, known, numbers) - measured

    bounds = 20.0  # of every number: powers and logarithms
    fits = [
        least_squares(residuals, start, bounds=(-bounds, bounds), x_scale="jac", xtol=1e-5, ftol=1e-7)
        for start in starts or THEORIES[name].starts
    ]
    return min(fits, key=lambda result: result.cost).x


def null(name: str, at: Known, cells: Known, measured: Array) -> Array:
    """Null prediction: the mean of the fitted cells, or the nearest of them in log K and log N."""
    if name == "constant":
        return np.full(at.tasks.shape, measured.mean())
    ratios = [np.log(ours[:, None] / theirs[None, :]) for ours, theirs in zip(at[:2], cells[:2], strict=True)]
    return measured[np.argmin(ratios[0] ** 2 + ratios[1] ** 2, axis=1)]


class Scores(NamedTuple):
    """Predictions by all seeds ``[theory, cell]``, and scores ``[theory, test set, part, replicate]``, all seeds first.

    ``explained``: fraction of the variance over the cells of a part that predictions explain, below zero if a constant
    is better. ``log_density``: mean log density of the seeds of these cells, normal about the predictions with the
    spread about the cells that were fitted.
    """

    predicted: Array
    explained: Array
    log_density: Array
    numbers: Array


def score(known: Known, samples: Array, fitted: Array, parts: Sequence[Array], *, resamples: int) -> Scores:
    """Fit every theory and null on the first test set, and score it on every part of every test set.

    Args:
        known: What theories know of each cell.
        samples: Measured probabilities ``[test set, cell, seed]``.
        fitted: Mask of the cells that are fitted.
        parts: Masks of the cells that are scored.
        resamples: Bootstrap samples of seeds, drawn for each number of tasks independently.
    """
    at = Known(known.tasks[fitted], known.steps[fitted], known.gap[fitted], known.dim)
    generator, seeds = np.random.default_rng(0), samples.shape[-1]
    pools, pool = np.unique(known.tasks, return_inverse=True)
    draws = [np.tile(np.arange(seeds), (len(pools), 1))]
    draws += [generator.integers(seeds, size=(len(pools), seeds)) for _ in range(resamples if seeds > 1 else 0)]
    numbers: dict[str, Array] = {}
    tables = []
    for draw in draws:
        drawn = np.take_along_axis(samples, np.broadcast_to(draw[pool], samples.shape), axis=-1)
        tables.append([_row(name, known, at, drawn, fitted, parts, numbers) for name in (*THEORIES, *NULLS)])
    explained, log_density = np.moveaxis(np.array([[row[1:] for row in table] for table in tables]), (0, 2), (-1, 0))
    return Scores(np.array([row[0] for row in tables[0]]), explained, log_density, np.array(list(numbers.values())))


def _row(
    name: str, known: Known, at: Known, samples: Array, fitted: Array, parts: Sequence[Array], numbers: dict
) -> tuple:
    """Predictions and both scores ``[test set, part]`` of one theory; the first fit starts the later ones."""
    means = samples.mean(-1)
    if name in THEORIES:
        values = fit(name, at, means[0, fitted], [numbers[name]] if name in numbers else None)
        numbers.setdefault(name, values)
        predicted, inside = probability(name, known, values), probability(name, at, values)
    else:
        predicted, inside = (null(name, cells, at, means[0, fitted]) for cells in (known, at))
    spreads = [np.sqrt(np.mean((grid[fitted] - inside[:, None]) ** 2)) for grid in samples]
    explained = [[_explained(predicted[part], grid[part]) for part in parts] for grid in means]
    densities = [
        [_log_density(predicted[part], grid[part], spread) for part in parts]
        for grid, spread in zip(samples, spreads, strict=True)
    ]
    return predicted, explained, densities


def _explained(predicted: Array, measured: Array) -> float:
    variance = max(float(np.mean((measured - measured.mean()) ** 2)), _LEAST_SPREAD**2)
    return 1 - float(np.mean((measured - predicted) ** 2)) / variance


def _log_density(predicted: Array, samples: Array, spread: float) -> float:
    squares, spread = (samples - predicted[:, None]) ** 2, max(spread, _LEAST_SPREAD)
    return float(-np.mean(squares) / (2 * spread**2) - np.log(spread * np.sqrt(2 * np.pi)))
