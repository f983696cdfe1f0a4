"""Losses of networks trained on one pool of tasks, and estimates of the coefficient at checkpoints."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import icllab as icl
from icllab import algorithms
from icllab.claims.singular.llc_along_training.claim import LONG, RIVALS
from icllab.core.grid import tabulated
from icllab.diagnostics import SGLD, learning_coefficient
from icllab.models import BlockOptions, Transformer
from icllab.models.networks.embedding import Interleaved
from icllab.tasks import LinearRegression
from icllab.tasks.regression_distributions import GaussianWeights, WeightPool
from icllab.training import Record, Sweep

VERSION = 1

adam = functools.cache(optax.adam)  # one object for each rate: another would compile the training again


@eqx.filter_jit
def answers(predictor, prompts):
    """Answers of a predictor to all prompts."""
    return jax.lax.map(predictor, prompts, batch_size=256)


def measure(point, *, key, ascent=False):
    """One cell: losses of a network for every seed at many steps, and estimates at checkpoints."""
    of_pool, of_weights, of_prompts, of_test, of_chains = jax.random.split(key, 5)
    fresh = LinearRegression.convention("timaeus", dim=point.dim, length=point.length)
    pool = WeightPool.init(GaussianWeights(jnp.ones(())), point.tasks, point.dim, key=of_pool)
    task = eqx.tree_at(lambda t: t.weights, fresh, pool)
    steps = max(point.step)
    layers = 2 if steps >= LONG else 1  # a short training only shows that the loss falls

    def network(key):
        block = BlockOptions(heads=4, mlp=(point.width,), norm="pre", nonlinearity="relu")
        shape = {"dim": point.dim, "width": point.width, "layers": layers, "block": block}
        return Transformer(Interleaved(), **shape, positions="learned", length=point.length, key=key)

    def train(seed):
        return icl.fit(
            icl.ensemble(network, seeds=[seed], key=of_weights),
            task,
            steps=steps,
            key=of_prompts,
            batch=point.batch,
            optimizer=adam(-point.rate if ascent else point.rate),
            sweep=Sweep(mode="map"),
            record=Record(point.step, keep=checkpoints, held_out=point.prompts, progress=False),
        )

    def estimate(run, seed, checkpoint, nbeta):
        sampler = SGLD(
            chains=point.chains,
            warm_up=point.warm_up,
            draws=2 * point.warm_up,
            batch=64,
            step_size=point.step_size,
            dispersion=0.1,
        )
        result = learning_coefficient(
            run,
            checkpoint,
            task=task,
            data=point.prompts,
            n=1e6,
            nbeta=nbeta,
            localization=point.localization,
            sampler=sampler,
            estimand="at_temperature",
            key=jax.random.fold_in(of_chains, seed),
        )
        return float(result["estimate"].item()), float(result["mcse"].item()), len(result.attrs["warnings"])

    def at(seed):
        run = train(seed)
        distance = np.full((len(RIVALS), len(point.checkpoint)), np.nan)
        numbers = np.full((3, len(point.nbeta), len(point.checkpoint)), np.nan)
        for c, checkpoint in enumerate(checkpoints if steps >= LONG else ()):
            network_answers = answers(run.trajectory.at(checkpoint).member(0), prompts)
            distance[:, c] = [float(jnp.mean((network_answers - rival) ** 2)) / point.dim for rival in rivals]
            for b, nbeta in enumerate(point.nbeta):
                if b == 0 or checkpoint == checkpoints[-1]:
                    numbers[:, b, c] = estimate(run, seed, checkpoint, nbeta)
        held_out = run.dataset["held_out_loss"].mean("position").sel(step=list(point.step))
        names = ("learning_coefficient", "learning_coefficient_error", "sampler_warnings")
        return {
            "held_out_loss": (("step",), held_out.values[0]),
            "fresh_distance": (("predictor", "checkpoint"), distance),
            **{name: (("nbeta", "checkpoint"), values) for name, values in zip(names, numbers, strict=True)},
        }

    checkpoints = [step for step in point.checkpoint if step <= steps]
    prompts = fresh.sample_many(point.prompts, key=of_test)
    rivals = [answers(algorithms.bayes_optimal(prior), prompts) for prior in (task, fresh)]
    return tabulated(at, seed=point.seed)
