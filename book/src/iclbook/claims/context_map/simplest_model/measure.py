"""Tests of a law for contexts in trained linear attention."""

import jax

from iclbook.claims.context_map import _laws
from icllab.core.grid import tabulated

VERSION = 3


def measure(point, *, key, stand_in=""):
    """Every seed's tests after training. ``stand_in``: the family that stands in every model's place."""
    of_networks, of_maps = jax.random.split(key)
    settings = {"normalised": (stand_in or point.family) == "mean_attention", "steps": (0, point.transformer_updates)}

    def of_seed(seed):
        family = _laws.linear_attention(seed, point, key=of_networks, **settings)
        tests = _laws.measure_law(family, -1, point, key=jax.random.fold_in(of_maps, seed))
        return {"training_score": family.scores[-1], **tests}

    return tabulated(of_seed, seed=point.seed)
