"""Statistics of trained networks: a choice that favours no seed's own noise, crossings of a level, the bootstrap."""

import numpy as np

from icllab.core.statistics import first_rise

RESAMPLED = 2000  # bootstrap samples of seeds


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


def resampled(values: np.ndarray) -> np.ndarray:
    """Means over bootstrap samples of seeds, ``[..., seed]`` to ``[..., 2000]``: drawn anew with replacement."""
    seeds = values.shape[-1]
    return values[..., np.random.default_rng(0).integers(seeds, size=(RESAMPLED, seeds))].mean(-1)
