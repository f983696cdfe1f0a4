"""Train one head of linear attention in several ways on the contexts of its exact minimum."""

import equinox as eqx
import jax
import numpy as np

from iclbook.claims.asymptotics.trained_linear_attention.claim import MEASURED
from iclbook.claims.asymptotics.trained_linear_attention.heads import Contexts, as_a_layer, by_adam, by_descent
from icllab.core.grid import tabulated

VERSION = 1


def measure(point, *, key, start=0.0, free=False):
    """Result of every way of training beside the exact minimum; NaN where a way is too expensive.

    ``start``: scale of a random first matrix; ``free``: the layer trains v21 too.
    """
    largest = {"Adam": point.adam_dim, "layer": point.layer_dim}

    def sample_contexts(seed):
        of_pool, of_contexts, of_start = jax.random.split(jax.random.fold_in(key, seed), 3)
        return Contexts.sample(point, of_pool, of_contexts, single=not free), of_start

    # One start for all seeds, so that training compiles once; its prediction depends on its matrix alone.
    (blank,) = sample_contexts(point.seed[0])[0].exact(point.ridge[:1])

    def measure_seed(seed):
        contexts, of_start = sample_contexts(seed)
        exact = contexts.exact(point.ridge)
        begin = eqx.tree_at(lambda m: m.gamma, blank, start * jax.random.normal(of_start, blank.gamma.shape))
        ways = {
            "exact": lambda: exact,
            "descent": lambda: by_descent(point, contexts, begin, of_start),
            "Adam": lambda: by_adam(point, contexts, begin, of_start),
            "layer": lambda: as_a_layer(point, contexts, of_start, free=free),
        }
        models = {
            way: ways[way]() if point.dim <= largest.get(way, point.dim) else [None] * len(exact)
            for way in point.training
        }

        def compare(training, ridge):
            at = point.ridge.index(ridge)
            model = models[training][at]
            return dict.fromkeys(MEASURED, np.nan) if model is None else contexts.compare(model, exact[at])

        return tabulated(compare, training=point.training, ridge=point.ridge)

    return tabulated(measure_seed, seed=point.seed)
