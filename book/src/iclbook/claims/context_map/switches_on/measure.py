"""Tests of a law for contexts at stages of the training of networks, and of linear attention, for which it is exact."""

import jax

from iclbook.claims.context_map import _laws
from icllab.core.grid import tabulated

VERSION = 2

KEPT = (*range(0, 101, 5), 150, 200, 300)  # updates of transformers at which a jump is looked for


def measure(point, *, key, exact=False, mean=False):
    """Every seed's tests at all stages.

    ``exact``: linear attention stands in the networks' place; ``mean``: contexts write a mean instead of a sum.
    """
    of_networks, of_maps = jax.random.split(key)
    name = "linear_attention" if exact else point.family

    def of_seed(seed):
        family = _networks(name, seed, point, of_networks, mean)
        numbers = _laws.stage_indices(family)

        def at(stage):
            i, of_stage = numbers[stage], jax.random.fold_in(of_maps, seed)
            tests = _laws.measure_law(family, i, point, subspace=_laws.SUBSPACES[name], key=of_stage)
            return {"stage_step": family.steps[i], "training_score": family.scores[i], **tests}

        return tabulated(at, stage=point.stage)

    return tabulated(of_seed, seed=point.seed)


def _networks(name, seed, point, key, mean):
    """The networks of a seed along training; untrained ones alone where only these are asked for."""
    trained = set(point.stage) != {"start"}
    if name == "item_label":
        return _laws.item_labels(seed, point, key=key, trained=trained)
    steps = (*KEPT, point.transformer_updates) if trained else (0,)
    if name == "linear_attention":
        return _laws.linear_attention(seed, point, key=key, steps=steps, normalised=mean)
    return _laws.regressions(seed, point, key=key, steps=steps, examples=_laws.OWN if name == "attention" else 0)
