"""Squared distances of transformers from the memorising and the generalising predictor along training on pools."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import icllab as icl
from iclbook.claims.asymptotics._transformers import transformer
from icllab import algorithms
from icllab.core.grid import tabulated
from icllab.models import BlockOptions, Transformer
from icllab.models.networks.embedding import Tokens
from icllab.tasks import LinearRegression, MarkovPool
from icllab.tasks.regression_distributions import GaussianWeights, WeightPool
from icllab.training import CheckpointStore, Record, Sweep

VERSION = 1


class World(NamedTuple):
    """Tasks of a pool and fresh ones, both predictors, and a network before training."""

    pool: Any
    fresh: Any
    memorising: Any
    generalising: Any
    network: Any


def _regression(point, of_pool, of_weights):
    """Linear regression: dMMSE and ridge. Tasks of a pool are repeated equally often: one shape for all sizes."""
    fresh = LinearRegression.convention("raventos", dim=point.dim, length=point.length)
    prior = GaussianWeights(jnp.ones(()))
    weights = WeightPool.init(prior, point.longest, point.dim, key=of_pool).weights[: point.tasks]
    repeated = jnp.tile(weights, (point.longest // point.tasks, 1))
    pool = eqx.tree_at(lambda task: task.weights, fresh, WeightPool(repeated, prior))
    network = transformer(dim=point.dim, width=point.width, layers=point.layers, key=of_weights)
    return World(pool, fresh, algorithms.bayes_optimal(pool), algorithms.bayes_optimal(fresh), network)


def _urns(point, of_pool, of_weights):
    """Balls and urns: the posterior over the pool, and counts with the Dirichlet prior of the urns."""
    size, tokens = point.colours, point.balls + 1
    fresh = MarkovPool(size, tokens, 0)
    urns = MarkovPool.init(chains=point.longest, vocabulary=size, tokens=tokens, order=0, key=of_pool).pool
    assert urns is not None
    repeated = jnp.tile(urns[: point.tasks], (point.longest // point.tasks, 1, 1))
    pool = eqx.tree_at(lambda task: task.pool, fresh, repeated, is_leaf=lambda leaf: leaf is None)
    block = BlockOptions(heads=1, mlp=(2 * point.width,), norm="pre")
    network = Transformer(
        Tokens(size), dim=size, width=point.width, layers=1, block=block, positions="none", key=of_weights
    )
    counts = algorithms.DirichletCounts(fresh.concentration, size, 0)
    return World(pool, fresh, algorithms.PoolPosterior(repeated), counts, network)


WORLDS = {"regression": _regression, "urns": _urns}
BATCH = {"regression": 32, "urns": 64}


@functools.cache
def _optimizer(warmup):
    """Adam at a rate that rises over ``warmup`` steps and stays; one object, compiled once for all cells."""
    shape = optax.linear_schedule(0.0, 1.0, warmup)
    return lambda rate: optax.adam(lambda count: rate * shape(count))


@eqx.filter_jit
def _sample(task, keys):
    return jax.vmap(lambda key: task.sample(key=key))(keys)


@eqx.filter_jit
def _answers(predictor, prompts, logits):
    """Numbers, or the probabilities of each colour."""
    answer = (lambda prompt: jax.nn.softmax(predictor(prompt))) if logits else predictor
    answers = jax.lax.map(answer, prompts, batch_size=256)
    return answers if logits else answers[..., None]


def _nats(memorising, generalising, noise):
    """Mean loss of the second predictor minus that of the first, which is Bayes-optimal."""
    if noise is not None:
        return np.mean((memorising - generalising) ** 2) / (2 * noise)
    return np.mean(np.sum(memorising * np.log(memorising / generalising), axis=-1))


def measure(point, *, key, scratch=None, exchanged=False):
    """Distances on the pool's tasks and on fresh ones. ``exchanged``: each predictor stands for the other.

    ``scratch``: a directory for checkpoints, from which the training goes on.
    """
    urns = point.setting == "urns"

    def of_seed(seed):
        of_pool, of_weights, of_prompts, of_test = jax.random.split(jax.random.fold_in(key, seed), 4)
        world = WORLDS[point.setting](point, of_pool, of_weights)
        run = icl.fit(
            world.network,
            world.pool,
            steps=max(point.step),
            key=of_prompts,
            batch=BATCH[point.setting],
            optimizer=_optimizer(point.warmup),
            sweep=Sweep({"optimizer.rate": [point.rate]}, mode="map"),
            record=Record([0], keep=point.step, progress=False),
            store=None if scratch is None else CheckpointStore(scratch / f"seed={seed}"),
        )
        distances, scales, nats = [], [], 0.0
        for test_set, task in (("pool", world.pool), ("fresh", world.fresh)):
            prompts = _sample(task, jax.random.split(of_test, point.prompts))

            def answered(predictor, prompts=prompts):
                return np.asarray(_answers(predictor, prompts, urns), dtype=float)

            answers = [answered(world.memorising), answered(world.generalising)]
            networks = [answered(run.trajectory.at(step).member(0)) for step in point.step]
            if test_set == "pool":
                nats = _nats(answers[0], answers[1], None if urns else float(world.fresh.noise_variance))
            answers = answers[::-1] if exchanged else answers
            distances.append([[np.mean(np.sum((a - b) ** 2, axis=-1)) for a in networks] for b in answers])
            scales.append(np.mean(np.sum((answers[0] - answers[1]) ** 2, axis=-1)))
        return {
            "strategy_distance": (("test_set", "predictor", "step"), distances),
            "strategy_gap": (("test_set",), scales),
            "loss_gap": nats,
        }

    return tabulated(of_seed, seed=point.seed)
