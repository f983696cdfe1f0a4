"""Statistics of trained networks: choices that favour no seed's own noise, crossings, peaks, slopes, the bootstrap."""

from collections.abc import Callable, Sequence

import numpy as np
import xarray as xr

from icllab.core.statistics import first_rise
from icllab.lab import Estimate

RESAMPLED = 2000  # bootstrap samples of seeds
DEGREE = 4  # of the polynomial in the log place of which a peak is the top


def best_for_others(values: np.ndarray) -> np.ndarray:
    """The option with the largest mean over the *other* seeds, ``[..., option, seed]`` to ``[..., seed]``.

    Of a single seed its own best.
    """
    seeds = range(values.shape[-1])
    others = [np.delete(values, s, axis=-1) if len(seeds) > 1 else values for s in seeds]
    return np.argmax(np.stack([some.mean(-1) for some in others], axis=-1), axis=-2)


def crossing(places: np.ndarray, values: np.ndarray, level: float) -> np.ndarray:
    """The log of the place at which every column of ``values [place, column]`` rises above ``level`` for good.

    Linear in the log between places. Minus infinity where all lie above, infinity where the last lies below.
    """
    last = first_rise(np.log(places)[::-1], (level - values[::-1]).T)
    return np.where(values[-1] < level, np.inf, np.where(np.isnan(last), -np.inf, last))


def ratio_crossings(
    above: xr.DataArray, below: xr.DataArray, along: str, levels: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """The log places on an axis where a ratio of means over seeds crosses levels, and their bootstrap covariance.

    Each place has seeds of its own, which are drawn anew for it. The covariance is NaN where a tenth of the samples or
    more, or the means themselves, do not cross inside the grid, and for a single seed.
    """
    top, bottom = (part.transpose(along, "seed").values for part in (above, below))
    count, seeds = top.shape
    drawn = np.random.default_rng(0).integers(seeds, size=(count, seeds, RESAMPLED))
    at = np.arange(count)[:, None, None]
    samples = top[at, drawn].mean(axis=1) / bottom[at, drawn].mean(axis=1)
    whole = top.mean(axis=1, keepdims=True) / bottom.mean(axis=1, keepdims=True)
    found = np.array([crossing(above[along].values, whole, level)[0] for level in levels])
    crossed = np.stack([crossing(above[along].values, samples, level) for level in levels])
    inside = np.isfinite(crossed).all(axis=0)
    if seeds > 1 and np.isfinite(found).all() and inside.mean() > 0.9:
        return found, np.atleast_2d(np.cov(crossed[:, inside])) * _wider(seeds)
    return found, np.full((len(levels), len(levels)), np.nan)


def resampled(values: np.ndarray) -> np.ndarray:
    """Means over bootstrap samples of seeds, ``[..., seed]`` to ``[..., 2000]``: drawn anew with replacement."""
    seeds = values.shape[-1]
    return values[..., np.random.default_rng(0).integers(seeds, size=(RESAMPLED, seeds))].mean(-1)


def bootstrapped(statistic: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> Estimate:
    """A logarithm of the mean over seeds, the last axis, and its standard error over resampled ones."""
    seeds, value = values.shape[-1], statistic(values.mean(-1, keepdims=True))[0]
    return Estimate(value, statistic(resampled(values)).std() * _wider(seeds) ** 0.5, True, max(seeds - 1, 0))


def _wider(seeds: int) -> float:
    """What bootstrapped variances are multiplied by: a mean of n resampled values varies by 1 - 1/n too little."""
    return seeds / (seeds - 1) if seeds > 1 else np.nan


def peaks(places: np.ndarray, logarithms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The log place of the top of the polynomial through every column of ``logarithms [place, column]``, and it.

    NaN where the top is at an end of the grid, or the grid has too few points.
    """
    x = np.log(places)
    if len(x) <= DEGREE:
        return np.full(logarithms.shape[1], np.nan), np.full((DEGREE + 1, logarithms.shape[1]), np.nan)
    fitted = np.polyfit(x, logarithms, DEGREE)
    line = np.linspace(x[0], x[-1], 1001)
    top = np.argmax(np.vander(line, DEGREE + 1) @ fitted, axis=0)
    return np.where((top > 0) & (top < len(line) - 1), line[top], np.nan), fitted


def peak(places: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """The log place of the peak of the mean log of positive ``values [place, seed]``, and its bootstrap standard error.

    The error is NaN where a tenth of the samples or more have no peak inside the grid.
    """
    top = peaks(places, np.log(values).mean(axis=1, keepdims=True))[0]
    tops = peaks(places, resampled(np.log(values)))[0]
    enough = values.shape[1] > 1 and np.isfinite(tops).mean() > 0.9
    return float(top[0]), float(np.nanstd(tops, ddof=1)) if enough else np.nan


def slope(sizes: np.ndarray, logarithms: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """The slope of logarithms with standard errors on log sizes, and its own, by weighted least squares."""
    usable = np.isfinite(logarithms) & np.isfinite(errors) & (errors > 0)
    x, weights = np.log(sizes[usable]), 1 / errors[usable]
    found, covariance = np.polyfit(x, logarithms[usable], 1, w=weights, cov="unscaled")
    return float(found[0]), float(covariance[0, 0] ** 0.5)
