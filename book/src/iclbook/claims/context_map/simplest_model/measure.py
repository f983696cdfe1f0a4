"""Tests of a law for contexts in trained linear attention and transformers."""

import jax

from iclbook.claims.context_map import _laws
from icllab.core.grid import tabulated

VERSION = 2


def measure(point, *, key, stand_in=""):
    """Every seed's tests after training. ``stand_in``: the family that stands in every model's place."""
    of_networks, of_maps = jax.random.split(key)
    name = stand_in or point.family
    steps = (0, point.transformer_updates)

    def of_seed(seed):
        if name in ("linear_attention", "mean_attention"):
            settings = {"normalised": name == "mean_attention", "steps": steps}
            family = _laws.linear_attention(seed, point, key=of_networks, **settings)
        else:
            examples = _laws.OWN if name == "attention" else 0
            family = _laws.regressions(seed, point, key=of_networks, steps=steps, examples=examples)
        of_seed_maps = jax.random.fold_in(of_maps, seed)
        tests = _laws.measure_law(family, -1, point, subspace=_laws.SUBSPACES[name], key=of_seed_maps)
        return {"training_score": family.scores[-1], **tests}

    return tabulated(of_seed, seed=point.seed)
