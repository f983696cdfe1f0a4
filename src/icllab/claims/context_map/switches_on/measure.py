"""Maps of contexts at stages of the training of networks, and of fast weights, for which the law is exact."""

import jax

from icllab.claims.context_map import _laws
from icllab.core.grid import tabulated

VERSION = 1

KEPT = (*range(0, 101, 5), 150, 200, 300)  # updates of transformers at which a jump is looked for
SUBSPACES = {
    "item_label": lambda network: network.classifier,
    "regression": lambda network: [block.mlp for block in network.blocks],
    "three_tokens": lambda network: [block.attention for block in network.blocks],
    "fast_weights": lambda network: network.slow,
}


def measure(point, *, key, exact=False, mean=False):
    """Every seed's maps at all stages.

    ``exact``: fast weights stand in the networks' place; ``mean``: contexts write them by a mean instead of a sum.
    """
    of_networks, of_maps = jax.random.split(key)
    name = "fast_weights" if exact else point.family

    def of_seed(seed):
        family = _networks(name, seed, point, of_networks, mean)
        numbers = _laws.stage_indices(family)

        def at(stage):
            i, of_stage = numbers[stage], jax.random.fold_in(of_maps, seed)
            maps = _laws.measure_maps(family, i, point, subspace=SUBSPACES[name], key=of_stage)
            return {"stage_step": family.steps[i], "training_score": family.scores[i], **maps}

        return tabulated(at, stage=point.stage)

    return tabulated(of_seed, seed=point.seed)


def _networks(name, seed, point, key, mean):
    """The networks of a seed along training; untrained ones alone where only these are asked for."""
    trained = set(point.stage) != {"start"}
    if name == "fast_weights":
        return _laws.fast_weights(seed, point, key=key, normalised=mean)
    if name == "item_label":
        return _laws.item_labels(seed, point, key=key, trained=trained)
    steps = (*KEPT, point.transformer_updates) if trained else (0,)
    return _laws.regressions(seed, point, key=key, steps=steps, examples=_laws.OWN if name == "three_tokens" else 0)
