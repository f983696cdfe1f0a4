"""Errors on shared prompts of attention with trained step sizes, or with everything trained."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import icllab as icl
from iclbook.claims.descent.functional_gd.claim import COOL, EVERYTHING, HEATED, STEPS
from iclbook.claims.descent.functional_gd.training import fit_steps, initial_attention, squared_errors
from icllab.algorithms import bayes_optimal
from icllab.core.grid import tabulated
from icllab.models import GeneralisedAttention
from icllab.tasks import FunctionRegression, SphereInputs
from icllab.training import Record

VERSION = 2


def measure(point, *, key, one_law=False, learn=True, bayes=False):
    """One cell: labels of all kernels at one depth.

    ``one_law``: all labels are linear, whatever their name. Unless they ``learn``, steps stay as they start. ``bayes``:
    every attention answers as Bayes does, or that of the kernel with this name.
    """

    def measure_seed(labels, seed):
        task = task_of(labels, point.dim, point.length)
        of_prompts, of_weights = jax.random.split(jax.random.fold_in(key, seed))
        train, test = sample_sets(task, of_prompts, point.fitting, point.prompts)
        if one_law:
            train, test = (linear(prompts, of_weights) for prompts in (train, test))

        @functools.cache
        def measure_attention(training, predictor):
            """Error, temperature and distance from the identity of one kernel, trained in one way."""
            if bayes in (True, predictor):
                return error(bayes_optimal(task)), np.nan, np.nan
            if training == EVERYTHING:
                if (labels, predictor, point.layers) != ("exponential", "softmax", point.free_layers):
                    return np.nan, np.nan, np.nan
                model = everything(point, task, of_prompts, of_weights)
                return error(model), np.nan, off_identity(model)
            if training == HEATED and predictor in COOL and STEPS in point.training:
                return measure_attention(STEPS, predictor)[0], np.nan, np.nan  # T is a factor of the rates
            with_temperature = training == HEATED
            start = initial_attention(predictor, layers=point.layers, train_temperature=with_temperature, prompts=train)
            model = fit_steps(start, train) if learn else start
            return error(model), float(model.temperature), np.nan

        def error(predictor):
            return float(np.mean(squared_errors(predictor, test)))

        names = ("function_error", "temperature", "identity_distance")
        row = tabulated(
            lambda training, predictor: dict(zip(names, measure_attention(training, predictor), strict=True)),
            training=point.training,
            predictor=point.predictor,
        )
        return {**row, "function_bayes": error(bayes_optimal(task))}

    return tabulated(measure_seed, labels=point.labels, seed=point.seed)


def task_of(labels, dim, length):
    """Distribution of prompts whose labels have one of the kernels as covariance."""
    law = {"kernel": labels, "temperature": 1.0, "noise_variance": 0.0, "repair": labels == "relu"}
    return FunctionRegression(dim, length, SphereInputs(1.0), **law)


def sample_sets(task, key, *counts):
    """Disjoint sets of prompts, of these counts."""
    whole = sample_prompts(task, jax.random.split(key, sum(counts)))
    ends = np.cumsum((0, *counts))
    return [jax.tree.map(lambda leaf, a=a, b=b: leaf[a:b], whole) for a, b in itertools.pairwise(ends)]


@eqx.filter_jit
def sample_prompts(task, keys):
    """Stacked prompts, one for each key."""
    return jax.lax.map(lambda key: task.sample(key=key), keys, batch_size=256)


def linear(prompts, key):
    """Prompts with the same inputs and linear labels, of another function for each prompt."""
    w = jax.random.normal(key, (len(prompts.x), prompts.x.shape[-1]))
    return eqx.tree_at(lambda p: p.y, prompts, jnp.einsum("pid,pd->pi", prompts.x, w))


def everything(point, task, of_prompts, of_weights):
    """Train V, B and C of softmax attention from a random start, on a separate set of prompts."""
    shape = {"dim": point.dim, "layers": point.layers, "std": point.std}
    kind = {"similarity": "softmax", "temperature": 1.0, "sign": -1, "answers": "last", "normalised": False}
    start = GeneralisedAttention.init(**shape, **kind, key=of_weights)
    (data,) = sample_sets(task, jax.random.fold_in(of_prompts, 1), point.free_prompts)
    return icl.fit(
        start,
        task,
        data=data,
        key=of_weights,
        steps=point.steps,
        batch=256,
        optimizer=optimizer(point.steps, point.rate),
        trainable=lambda m: (m.value, m.key, m.query),
        positions="last",
        record=Record([0], progress=False),
    ).predictor


@functools.cache
def optimizer(steps, rate):
    """Adam on clipped gradients, its rate falling along a cosine. One object for all seeds."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(rate, steps)))


def off_identity(model):
    r"""Largest distance of :math:`B_l^\top C_l` from a multiple of the identity, relative to its norm."""
    scores = np.swapaxes(np.asarray(model.key), 1, 2) @ np.asarray(model.query)
    size = scores.shape[1]
    multiples = np.trace(scores, axis1=1, axis2=2)[:, None, None] / size * np.eye(size)
    return float(np.max(np.linalg.norm(scores - multiples, axis=(1, 2)) / np.linalg.norm(scores, axis=(1, 2))))
