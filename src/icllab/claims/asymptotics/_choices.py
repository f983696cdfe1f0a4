"""A choice that favours no seed's own noise: it is made by the others."""

import numpy as np


def best_for_others(values: np.ndarray) -> np.ndarray:
    """For each seed the option with the largest mean over the *other* seeds.

    Args:
        values: Values of every option for every seed, ``[..., option, seed]``.

    Returns:
        The index of the option, ``[..., seed]``; of a single seed its own best.
    """
    seeds = range(values.shape[-1])
    others = [np.delete(values, s, axis=-1) if len(seeds) > 1 else values for s in seeds]
    return np.argmax(np.stack([some.mean(-1) for some in others], axis=-1), axis=-2)
