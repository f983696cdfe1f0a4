r"""Where attention with the identity for keys and queries goes as layers are added, all with the same rate.

Labels are values of a Gaussian process with the kernel :math:`e_{ij} = \exp(x_i^\top x_j/T)` at points of the unit
sphere, without noise. A layer multiplies what is left of the labels by :math:`I - \eta W`, with
:math:`D_j = \sum_{i \le n + 1} e_{ij}` and the weights

.. math:: W_{ij} = e_{ij}, \qquad W_{ij} = e_{ij}/D_j \;\text{(softmax over keys)}, \qquad
          W_{ij} = e_{ij}/D_i \;\text{(softmax over queries)},

and the limits are, with :math:`k_q` the column of the query,

.. math:: y\,e^{-1}k_q, \qquad y\,D\,e^{-1}k_q/D_q, \qquad y\,e^{-1}k_q .

The first and the last are the posterior mean, which no answer beats on average. The usual softmax is off by a
factor :math:`D_j/D_q` for each label. Two sets of points are asked: ``random``, and ``even``: the 2d points
:math:`\pm e_i` in random order, turned at random, at which all D are equal.

As nothing but the label slots changes from layer to layer, one layer is applied over and over.
"""

import functools
import itertools

import numpy as np
import xarray as xr

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, agreement, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.figures.curves import Panel, panels

KEYS, QUERIES, EXPONENTIAL = "softmax over keys", "softmax over queries", "exponential"
REACHED = 0.01  # root mean square distance from the limit, over that of answering 0 from it
ROUNDING = 1e-9  # below this, relative, two answers are one


def measure(point, *, key, hotter=1.0):
    """One cell: all depths on the same prompts. ``hotter``: factor of the attention's temperature alone."""
    import jax
    import jax.numpy as jnp

    from icllab.algorithms import GaussianProcess, SoftmaxLimit
    from icllab.tasks import FunctionRegression, SphereInputs

    drawn, answers, deeper = _compiled_once()
    shape = (len(point.setting), len(point.predictor), len(point.layers), len(point.seed))
    found = {name: np.empty(shape) for name in ("limit_distance", "bayes_distance", "function_error")}
    limits = {name: np.empty((*shape[:2], shape[3])) for name in ("limit_scale", "limit_bayes")}
    bayes_error = np.empty((shape[0], shape[3]))
    law = {"kernel": "exponential", "temperature": point.temperature}
    task = FunctionRegression(point.dim, 2 * point.dim - 1, SphereInputs(1.0), noise_variance=0.0, **law)
    process, softmax = GaussianProcess(0.0, **law), SoftmaxLimit(point.temperature)
    layers = [_layer(name, point, hotter) for name in point.predictor]
    for (g, setting), (s, seed) in itertools.product(enumerate(point.setting), enumerate(point.seed)):
        prompts = drawn(task, setting == "even", jax.random.split(jax.random.fold_in(key, seed), point.prompts))
        y, bayes = np.asarray(prompts.y[:, -1]), np.asarray(answers(process, prompts))
        bayes_error[g, s] = np.mean((bayes - y) ** 2)
        for p, name in enumerate(point.predictor):
            limit = np.asarray(answers(softmax, prompts)) if name == KEYS else bayes
            limits["limit_scale"][g, p, s] = np.mean(limit**2)
            limits["limit_bayes"][g, p, s] = np.mean((limit - bayes) ** 2)
            left, answer, before = prompts, jnp.zeros_like(prompts.y[:, -1]), 0
            for d, depth in enumerate(point.layers):
                left, answer = deeper(layers[p], left, answer, jnp.asarray(depth - before))
                before = depth
                found["limit_distance"][g, p, d, s] = np.mean((np.asarray(answer) - limit) ** 2)
                found["bayes_distance"][g, p, d, s] = np.mean((np.asarray(answer) - bayes) ** 2)
                found["function_error"][g, p, d, s] = np.mean((np.asarray(answer) - y) ** 2)
    by_depth = {name: (("setting", "predictor", "layers", "seed"), values) for name, values in found.items()}
    by_limit = {name: (("setting", "predictor", "seed"), values) for name, values in limits.items()}
    return {**by_depth, **by_limit, "function_bayes": (("setting", "seed"), bayes_error)}


def _layer(name, point, hotter):
    """One layer of the construction, at a rate with which it converges."""
    import dataclasses

    from icllab import constructions
    from icllab.algorithms import FunctionalDescent

    kernel = "exponential" if name == EXPONENTIAL else "softmax"
    rate = point.step_size / float(np.exp(1 / point.temperature)) if name == EXPONENTIAL else 1.0
    one = {"layers": 1, "dim": point.dim, "normalised": False, "noise_variance": 0.0}
    step = FunctionalDescent(rate, kernel=kernel, temperature=hotter * point.temperature, **one)
    attention = constructions.gradient_descent(step, answers="last")
    return dataclasses.replace(attention, axis="queries") if name == QUERIES else attention


@functools.cache
def _compiled_once():
    """Functions for all seeds and settings, so that what is compiled for a kind of layer is kept."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from icllab.core.kernels import features_of
    from icllab.core.prompt import RegressionPrompt

    @eqx.filter_jit
    def drawn(task, even, keys):
        vertices = jnp.concatenate([jnp.eye(task.dim), -jnp.eye(task.dim)])

        def one(key):
            of_order, of_turn, of_labels = jax.random.split(key, 3)
            if not even:
                return task.sample(key=key)
            x = jax.random.permutation(of_order, vertices) @ jax.random.orthogonal(of_turn, task.dim)
            y = features_of(task.covariance(x)) @ jax.random.normal(of_labels, (task.length + 1,))
            return RegressionPrompt(x=x, y=y)

        return jax.vmap(one)(keys)

    @eqx.filter_jit
    def answers(predictor, prompts):
        return jax.vmap(lambda prompt: predictor(prompt)[-1])(prompts)

    @eqx.filter_jit
    def deeper(layer, prompts, answer, more):
        """What is left of the labels, and the answer so far, after as many layers more."""

        def step(_, state):
            y, answer = state
            trace = jax.vmap(layer.trace)(eqx.tree_at(lambda p: p.y, prompts, y))
            slots = trace.activations["layer0"][:, :-1, -1]
            return jnp.pad(slots, ((0, 0), (0, 1))), answer + trace.prediction[:, 0]

        y, answer = jax.lax.fori_loop(0, more, step, (prompts.y, answer))
        return eqx.tree_at(lambda p: p.y, prompts, y), answer

    return drawn, answers, deeper


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """How far the exact limit of softmax over keys is from the posterior mean, as a line at every depth."""
    own = dataset["limit_bayes"].sel(predictor=KEYS, drop=True).mean("seed")
    return dataset.assign(limit_line=own.expand_dims({"layers": dataset.layers.values}))


def check(dataset: xr.Dataset) -> list[Finding]:
    """All reach their limits, nearer with every depth; the limits are the posterior mean, or not, as they should."""
    findings = []
    for dim in dataset.dim.values:
        for setting in dataset.setting.values:
            for name in dataset.predictor.values:
                part = dataset.sel(dim=dim, setting=setting, predictor=name)
                findings += _of_one(part, f"{name}, {setting} points, d={dim}", str(name), str(setting))
    depths = dataset.sizes["layers"] >= 3
    findings.append(exactly("depths, at least 3", 1, depths, otherwise=Outcome.UNDECIDED))
    return findings


def _of_one(part: xr.Dataset, at: str, name: str, setting: str) -> list[Finding]:
    scale = float(part["limit_scale"].mean())
    distance = np.sqrt(part["limit_distance"].mean("seed").transpose("layers").values / scale)
    deep = int(part.layers.values[-1])
    falls = bool(((np.diff(distance) < 0) | (distance[1:] < ROUNDING)).all())
    findings = [
        _at_most(f"relative distance from the limit after {deep} layers, {at}", distance[-1], REACHED),
        exactly(f"whether it falls from depth to depth, until it is rounding, {at}", 1, falls),
    ]
    last = part.isel(layers=-1)
    if name == KEYS and setting == "random":
        apart, error = mean_and_error(last["bayes_distance"].values)
        findings.append(exceeds(f"squared distance from the posterior mean, {at}", float(apart), float(error)))
        excess = (last["function_error"] - last["function_bayes"]).values
        off, error = mean_and_error(excess - last["bayes_distance"].values)
        what = f"excess error over the posterior mean's less the squared distance from it, {at}"
        findings.append(agreement(what, 0.0, float(off), float(error), largest_error=0.3 * float(apart)))
    else:
        own = float(np.sqrt(last["limit_bayes"].mean() / scale))
        findings.append(_at_most(f"relative distance of the limit from the posterior mean, {at}", own, ROUNDING))
    return findings


def _at_most(what: str, value: float, bound: float) -> Finding:
    return Finding(what, 0.0, float(value), 0.0, bound, Outcome.HOLDS if value <= bound else Outcome.FAILS)


def figure(dataset: xr.Dataset):
    """The squared distance from the posterior mean against depth, at both sets of points."""
    short = {KEYS: "softmax, keys", QUERIES: "softmax, queries", EXPONENTIAL: "exp"}
    shown = dataset.isel(dim=-1).assign_coords(predictor=[short[str(name)] for name in dataset.predictor.values])
    rows = [
        Panel(
            "bayes_distance", "limit_line" if setting == "random" else None, "log", (1e-10, 30.0), {"setting": setting}
        )
        for setting in ("random", "even")
        if setting in shown.setting
    ]
    return panels(shown, rows, x="layers", hue="predictor", line_x="layers", line_name="limit, keys", xscale="log")


def _called_the_mean(dataset: xr.Dataset) -> xr.Dataset:
    """All limits taken to be the posterior mean."""
    return theory(dataset.assign(limit_distance=dataset["bayes_distance"]))


experiment = Experiment(
    claim=(
        "With the identity for keys and queries and one rate for all layers, softmax attention tends to the posterior "
        "mean of the exponential kernel for labels weighted by the ratio of two normalisers, and so errs more than "
        "Bayes by its squared distance from it; to the posterior mean itself it tends where all normalisers are equal, "
        "and attention with exponential weights, or normalised over the queries, everywhere."
    ),
    sources=("Cheng24",),
    static=("dim",),
    fixed={"temperature": 0.5, "step_size": 0.3, "prompts": 64},
    sizes={
        "smoke": {
            "dim": (4,),
            "setting": ("random", "even"),
            "predictor": (KEYS, QUERIES, EXPONENTIAL),
            "layers": (1, 8, 64, 512),
            "seed": 3,
        },
        "small": {
            "dim": (5,),
            "setting": ("random", "even"),
            "predictor": (KEYS, QUERIES, EXPONENTIAL),
            "layers": (1, 4, 16, 64, 256, 1024),
            "seed": 192,
        },
        "medium": {
            "dim": (5, 8),
            "setting": ("random", "even"),
            "predictor": (KEYS, QUERIES, EXPONENTIAL),
            "layers": (1, 4, 16, 64, 256, 1024, 4096),
            "seed": 384,
        },
    },
    precision="float64",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "hotter": World(
            "the attention has a higher temperature than the kernel", measure=functools.partial(measure, hotter=1.3)
        ),
        "the_mean": World("all limits are called the posterior mean", theory=_called_the_mean),
    },
)
