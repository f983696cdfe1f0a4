"""Statistics of trained networks: unbiased choices, crossings, peaks, slopes and the bootstrap over seeds."""

from collections.abc import Callable, Sequence

import numpy as np
import xarray as xr

from icllab.core.statistics import first_rise
from icllab.lab import Estimate

RESAMPLED = 2000  # bootstrap samples of seeds
DEGREE = 4  # of the polynomial in the log place of which a peak is the top


def best_for_others(values: np.ndarray) -> np.ndarray:
    """The option with the largest mean over the *other* seeds, ``[..., option, seed]`` to ``[..., seed]``.

    A single seed chooses for itself.
    """
    seeds = range(values.shape[-1])
    folds = [np.delete(values, s, axis=-1) if len(seeds) > 1 else values for s in seeds]
    return np.argmax(np.stack([fold.mean(-1) for fold in folds], axis=-1), axis=-2)


def crossing(places: np.ndarray, values: np.ndarray, level: float) -> np.ndarray:
    """The log position after which every column of ``values [position, column]`` stays above ``level``.

    Linear in the log between positions. Minus infinity if all lie above, infinity if the last lies below.
    """
    last = first_rise(np.log(places)[::-1], (level - values[::-1]).T)
    return np.where(values[-1] < level, np.inf, np.where(np.isnan(last), -np.inf, last))


def ratio_crossings(
    above: xr.DataArray, below: xr.DataArray, along: str, levels: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Log positions on an axis at which a ratio of means over seeds crosses levels, and their bootstrap covariance.

    Seeds are resampled at each position independently. The covariance is NaN for a single seed, if the means do not
    cross inside the grid, or if a tenth of the samples or more do not.
    """
    top, bottom = (part.transpose(along, "seed").values for part in (above, below))
    count, seeds = top.shape
    resamples = np.random.default_rng(0).integers(seeds, size=(count, seeds, RESAMPLED))
    at = np.arange(count)[:, None, None]
    samples = top[at, resamples].mean(axis=1) / bottom[at, resamples].mean(axis=1)
    means = top.mean(axis=1, keepdims=True) / bottom.mean(axis=1, keepdims=True)
    crossings = np.array([crossing(above[along].values, means, level)[0] for level in levels])
    sampled = np.stack([crossing(above[along].values, samples, level) for level in levels])
    inside = np.isfinite(sampled).all(axis=0)
    if seeds > 1 and np.isfinite(crossings).all() and inside.mean() > 0.9:
        return crossings, np.atleast_2d(np.cov(sampled[:, inside])) * _variance_factor(seeds)
    return crossings, np.full((len(levels), len(levels)), np.nan)


def resample(values: np.ndarray) -> np.ndarray:
    """Means over bootstrap samples of seeds, ``[..., seed]`` to ``[..., 2000]``."""
    seeds = values.shape[-1]
    return values[..., np.random.default_rng(0).integers(seeds, size=(RESAMPLED, seeds))].mean(-1)


def bootstrap(statistic: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> Estimate:
    """A logarithmic statistic of the mean over seeds, the last axis, and its bootstrap standard error."""
    seeds, value = values.shape[-1], statistic(values.mean(-1, keepdims=True))[0]
    return Estimate(value, statistic(resample(values)).std() * _variance_factor(seeds) ** 0.5, True, max(seeds - 1, 0))


def _variance_factor(seeds: int) -> float:
    """Factor n/(n - 1) that corrects bootstrap variances: a mean of n resampled values varies by 1 - 1/n too little."""
    return seeds / (seeds - 1) if seeds > 1 else np.nan


def peaks(places: np.ndarray, logarithms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log position of the maximum of the polynomial through every column of ``logarithms``, and its coefficients.

    NaN if the maximum is at an end of the grid, or the grid has too few points.
    """
    x = np.log(places)
    if len(x) <= DEGREE:
        return np.full(logarithms.shape[1], np.nan), np.full((DEGREE + 1, logarithms.shape[1]), np.nan)
    coefficients = np.polyfit(x, logarithms, DEGREE)
    line = np.linspace(x[0], x[-1], 1001)
    top = np.argmax(np.vander(line, DEGREE + 1) @ coefficients, axis=0)
    return np.where((top > 0) & (top < len(line) - 1), line[top], np.nan), coefficients


def peak(places: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Log position of the peak of the mean log of positive ``values [position, seed]``, and its bootstrap error.

    The error is NaN if a tenth of the samples or more have no peak inside the grid.
    """
    top = peaks(places, np.log(values).mean(axis=1, keepdims=True))[0]
    tops = peaks(places, resample(np.log(values)))[0]
    enough = values.shape[1] > 1 and np.isfinite(tops).mean() > 0.9
    return float(top[0]), float(np.nanstd(tops, ddof=1)) if enough else np.nan


def slope(sizes: np.ndarray, logarithms: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """Slope of logarithms on log sizes by weighted least squares, and its standard error."""
    usable = np.isfinite(logarithms) & np.isfinite(errors) & (errors > 0)
    x, weights = np.log(sizes[usable]), 1 / errors[usable]
    line, covariance = np.polyfit(x, logarithms[usable], 1, w=weights, cov="unscaled")
    return float(line[0]), float(covariance[0, 0] ** 0.5)
