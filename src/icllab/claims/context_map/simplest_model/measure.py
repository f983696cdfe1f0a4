"""Maps of contexts in trained transformers of several sizes, and in fast weights, for which the law is exact."""

import jax

from icllab.claims.context_map import _laws
from icllab.core.grid import tabulated

VERSION = 1

SUBSPACES = {
    "regression": lambda network: [block.mlp for block in network.blocks],
    "three_tokens": lambda network: [block.attention for block in network.blocks],
    "fast_weights": lambda network: network.slow,
}


def measure(point, *, key, exact=False):
    """Every seed's maps after training. ``exact``: fast weights stand in the networks' place."""
    of_networks, of_maps = jax.random.split(key)
    name = "fast_weights" if exact else point.family

    def of_seed(seed):
        if name == "fast_weights":
            family = _laws.fast_weights(seed, point, key=of_networks, normalised=False)
        else:
            steps, examples = (0, point.transformer_updates), _laws.OWN if name == "three_tokens" else 0
            family = _laws.regressions(seed, point, key=of_networks, steps=steps, examples=examples)
        of_seed_maps = jax.random.fold_in(of_maps, seed)
        maps = _laws.measure_maps(family, -1, point, subspace=SUBSPACES[name], key=of_seed_maps)
        return {"training_score": family.scores[-1], **maps}

    return tabulated(of_seed, seed=point.seed)
