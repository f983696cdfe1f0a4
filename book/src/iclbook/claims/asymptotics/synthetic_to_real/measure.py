"""Errors on draws of a real table: a transformer trained on synthetic regressions, and its references."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.asymptotics._tables import FITTED, diabetes, fitted_losses
from iclbook.claims.asymptotics._transformers import train, transformer
from icllab import algorithms
from icllab.lab.networks import require_answers
from icllab.models.torch_derivatives import with_autograd
from icllab.tasks import HierarchicalRegression, Standardised, Table

VERSION = 1


def measure(point, *, key, updates=None, most_explained=1.0, shuffled=False, network=None):
    """Errors of one network and of its references; ``most_explained``: bound of h in training.

    ``network``: a user's.
    """
    draws = (point.dim, point.length, point.seed, point.draws_key, shuffled)
    names = tuple(name for name in point.predictor if name != "transformer")
    errors = dict(zip(names, _references(names, *draws), strict=True))
    if network is not None:
        table, prompts = _draws(*draws)
        require_answers(network, table)
        errors["transformer"] = np.asarray(_losses(with_autograd(network), prompts, table))[list(point.length)]
    elif "transformer" in point.predictor:
        of_weights, of_prompts = jax.random.split(key)
        run = train(
            transformer(dim=point.dim, width=point.width, layers=point.layers, key=of_weights),
            HierarchicalRegression(point.dim, max(point.length), factors=point.dim, most_explained=most_explained),
            point,
            key=of_prompts,
            updates=updates,
        )
        table, prompts = _draws(*draws)
        errors["transformer"] = np.asarray(_losses(run.predictor, prompts, table))[list(point.length)]
    return {"table_error": (("predictor", "length", "seed"), np.stack([errors[name] for name in point.predictor]))}


@functools.lru_cache(maxsize=2)
def _draws(dim, lengths, seeds, draws_key, shuffled):
    """The table and one prompt for every seed, the same for all networks."""
    data, root = diabetes(), jax.random.key(draws_key)
    names = data.feature_names[:dim]
    table = Table(data.data[:, :dim], data.target, length=max(lengths), columns=names, target="progression")

    def drawn(seed):
        of_rows, of_shuffle = jax.random.split(jax.random.fold_in(root, seed))
        return (table.shuffled(key=of_shuffle) if shuffled else table).sample(key=of_rows)

    return table, jax.jit(jax.vmap(drawn))(jnp.array(seeds))


@functools.lru_cache(maxsize=2)
def _references(names, dim, lengths, seeds, draws_key, shuffled):
    """Errors [length, seed] of the references, computed once for all networks of a process."""
    table, prompts = _draws(dim, lengths, seeds, draws_key, shuffled)
    predictors = {
        "context mean": lambda prompt: jnp.zeros_like(prompt.y),  # after scaling
        "least squares": algorithms.LeastSquares(),
        # The Bayes value where columns are independent, weights N(0, h/d) and h = 1/2.
        "ridge": algorithms.Ridge(float(dim)),
    }
    return [
        np.array([fitted_losses(name, prompts, length, table) for length in lengths])
        if name in FITTED
        else np.asarray(_losses(predictors[name], prompts, table))[list(lengths)]
        for name in names
    ]


@eqx.filter_jit
def _losses(predictor, prompts, table):
    """Losses [position, seed] of a predictor on standardised prompts."""
    return jax.lax.map(lambda p: table.loss(Standardised(predictor)(p), p), prompts, batch_size=50).T
