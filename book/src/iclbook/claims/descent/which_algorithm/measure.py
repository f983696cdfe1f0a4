"""Fraction of the variance of trained networks that candidate algorithms leave unexplained, near and far."""

import functools
import json
import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import icllab as icl
from iclbook.claims.descent import _layers
from icllab import algorithms, constructions
from icllab.core.grid import tabulated
from icllab.diagnostics import Fitted, PromptSplit, VerdictRule, identify
from icllab.lab.networks import require_answers
from icllab.models import BlockOptions, Transformer
from icllab.models.networks.embedding import Joined
from icllab.tasks import GaussianInputs, LinearRegression
from icllab.training import Record, Sweep

VERSION = 1

RULE = VerdictRule(tolerance=0.01, resamples=500)


def measure(point, *, key, learn=True, constructed=False, network=None, task=None):
    """One cell: all seeds of one kind, depth and noise. ``constructed``: networks are steps of gradient descent.

    ``network``, in the place of the transformers, and ``task``: a user's.
    """
    base = LinearRegression.convention("garg", dim=point.dim, length=2 * point.dim)
    own = eqx.tree_at(lambda t: t.noise_variance, base, jnp.asarray(point.rho, base.noise_variance.dtype))
    task = own if task is None else task
    of_training, of_loss, of_judgement = jax.random.split(key, 3)
    candidates, paths = candidates_of(point.candidate, task.dim)
    if constructed:
        shape = {"layers": point.layers, "dim": task.dim, "normalised": True, "half": True}
        descent = constructions.gradient_descent(algorithms.GradientDescent(0.5, **shape), answers="last")
        networks = dict.fromkeys(point.seed, descent)
    elif point.network == "linear attention":
        networks = _layers.networks(point, task, "sparse", layers=point.layers, key=of_training, learn=learn)
    elif network is not None:
        require_answers(network, task)
        networks = dict.fromkeys(point.seed, network)
    else:
        networks = transformers(point, task, key=of_training, learn=learn)
    best = algorithms.bayes_optimal(task)

    def identify_seed(seed):
        models, loss_key = [networks[seed], best], jax.random.fold_in(of_loss, seed)
        loss, least = _layers.on_shared_prompts(models, task, key=loss_key, prompts=4 * point.prompts)
        # Parameters are fitted to the network on inputs like those of training alone.
        current, free, tables = candidates, paths, []
        for i, scale in enumerate(point.input_scale):
            inputs = GaussianInputs(task.inputs.covariance * jnp.asarray(scale**2, base.noise_variance.dtype))
            table = identify(
                networks[seed],
                {name: Fitted(rival, free[name]) if name in free else rival for name, rival in current.items()},
                eqx.tree_at(lambda t: t.inputs, task, inputs),
                key=jax.random.fold_in(jax.random.fold_in(of_judgement, seed), i),
                prompts=PromptSplit(point.prompts, fitting=point.fitting),
                rule=RULE,
            )
            tables.append(table)
            current, free = with_values(current, free, table), {}
        tables = [table.sel(bound=list(point.bound)) for table in tables]
        row = {}
        for name in ("fraction_unexplained", "fraction_unexplained_interval", "accepted", "among"):
            dims = [dim for dim in ("candidate", "bound") if dim in tables[0][name].dims]
            row[name] = (("input_scale", *dims), np.stack([table[name].transpose(*dims) for table in tables]))
        return {"loss_ratio": _layers.ratio(loss, least)[0], **row}

    return tabulated(identify_seed, seed=point.seed)


def candidates_of(names, dim):
    """Candidates by name, and the paths of their fitted parameters."""
    shape = {"dim": dim, "normalised": True, "half": True}
    smoother = {"kernel": "softmax", "noise_variance": 0.0, "layers": 1, "dim": dim, "normalised": False}

    def mean_of_labels(prompt):
        before = jnp.pad(jnp.cumsum(prompt.y[:-1]), (1, 0))
        return before / jnp.maximum(jnp.arange(prompt.positions), 1).astype(before.dtype)

    library = {
        "1 step": (lambda: algorithms.GradientDescent(0.5, layers=1, **shape), ["rate"]),
        "2 steps": (lambda: algorithms.GradientDescent(jnp.full(2, 0.5), layers=2, **shape), ["rate"]),
        "4 steps": (lambda: algorithms.GradientDescent(jnp.full(4, 0.5), layers=4, **shape), ["rate"]),
        "preconditioned step": (
            lambda: algorithms.PreconditionedDescent(0.5 * jnp.eye(dim), layers=1, **shape),
            ["preconditioner"],
        ),
        "GD++, 2 steps": (
            lambda: algorithms.GradientDescentPlusPlus.scalar(0.5, 0.1, layers=2, **shape),
            ["preconditioner", "contraction"],
        ),
        "ridge": (lambda: algorithms.Ridge(0.5), ["ridge"]),
        "least squares": (algorithms.LeastSquares, []),
        "softmax smoother": (
            lambda: algorithms.FunctionalDescent(1.0, temperature=1.0, **smoother),
            ["rate", "temperature"],
        ),
        "kernel ridge": (
            lambda: algorithms.KernelRidge(0.5, kernel="exponential", temperature=5.0),
            ["ridge", "temperature"],
        ),
        "mean of labels": (lambda: mean_of_labels, []),
    }
    selection = {name: library[name] for name in names}
    return {name: make() for name, (make, _) in selection.items()}, {
        n: paths for n, (_, paths) in selection.items() if paths
    }


def with_values(candidates, paths_by_name, identification):
    """Candidates with the fitted parameters of an identification."""
    updates = dict(candidates)
    for name, paths in paths_by_name.items():
        numbers = json.loads(str(identification.fitted_values.sel(candidate=name).item()))
        for path in paths:
            leaf = operator.attrgetter(path)
            updates[name] = eqx.tree_at(leaf, updates[name], jnp.asarray(numbers[path], leaf(updates[name]).dtype))
    return updates


def transformers(point, task, *, key, learn):
    """One transformer for each seed, trained if they ``learn``."""
    of_weights, of_prompts = jax.random.split(key)

    shape = {"dim": point.dim, "width": point.width, "layers": point.layers, "positions": "none"}
    block = BlockOptions(heads=2, mlp=(2 * point.width,), norm="pre")

    def build(key):
        return Transformer(Joined(answers="last", causal=False, query_is_key=True), **shape, block=block, key=key)

    members = icl.ensemble(build, seeds=list(point.seed), key=of_weights)
    if learn:
        members = icl.fit(
            members,
            task,
            steps=point.step,
            key=of_prompts,
            batch=point.batch,
            optimizer=optimizer(point.step, point.rate),
            positions="last",
            sweep=Sweep(mode="map"),
            record=Record([0], progress=False),
        ).members
    return {seed: members.member(i) for i, seed in enumerate(point.seed)}


@functools.cache
def optimizer(steps, rate):
    """Adam, its rate rising and then falling along a cosine. One object for all cells."""
    return optax.adam(optax.warmup_cosine_decay_schedule(0.0, rate, steps // 20, steps))
