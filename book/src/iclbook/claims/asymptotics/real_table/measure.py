"""Errors of every predictor on the same draws of examples and a query from the diabetes table."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.asymptotics._tables import diabetes, fitted_losses
from icllab import algorithms
from icllab.tasks import Standardised, Table

VERSION = 1


def measure(point, *, key, shuffled=False, explained=None):
    """Errors of every predictor after every number of examples, for every draw.

    ``shuffled``: targets are permuted among the rows; ``explained``: fraction of the variance in ridge's prior.
    """
    data, lengths = diabetes(), np.array(point.length)
    x, names = data.data[:, : point.dim], data.feature_names[: point.dim]
    table = Table(x, data.target, length=int(lengths.max()), columns=names, target="progression")
    explained = point.explained if explained is None else explained
    predictors = {
        "context mean": _zero,
        "least squares": algorithms.LeastSquares(),
        # The Bayes value where weights are N(0, h/d), noise 1 - h and inputs have variance 1.
        "ridge": algorithms.Ridge(point.dim * (1 - explained) / explained),
    }
    prompts, losses = _evaluate(table, predictors, jnp.array(point.seed), key, shuffled)
    errors = [
        np.asarray(losses[name])[:, lengths].T
        if name in losses
        else np.array([fitted_losses(name, prompts, length, table) for length in point.length])
        for name in point.predictor
    ]
    return {"table_error": (("predictor", "length", "seed"), np.stack(errors))}


def _zero(prompt):
    """Mean of the examples, which are standardised."""
    return jnp.zeros_like(prompt.y)


@eqx.filter_jit
def _evaluate(table, predictors, seeds, key, shuffled):
    def of_seed(seed):
        of_rows, of_shuffle = jax.random.split(jax.random.fold_in(key, seed))
        source = table.shuffled(key=of_shuffle) if shuffled else table
        prompt = source.sample(key=of_rows)
        return prompt, {name: table.loss(Standardised(p)(prompt), prompt) for name, p in predictors.items()}

    return jax.vmap(of_seed)(seeds)
