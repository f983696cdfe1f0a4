"""One layer of the construction, applied repeatedly: layers change the label slots alone."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.descent.softmax_depth_limit.claim import EXPONENTIAL, KEYS, QUERIES
from icllab import constructions
from icllab.algorithms import FunctionalDescent, GaussianProcess, SoftmaxLimit
from icllab.core.grid import tabulated
from icllab.core.kernels import features_of
from icllab.core.prompt import RegressionPrompt
from icllab.tasks import FunctionRegression, SphereInputs

VERSION = 1


def measure(point, *, key, hotter=1.0, labels=1.0, even=True, keys=KEYS):
    """One cell: all depths on the same prompts.

    ``hotter``, ``labels``: factors of the temperature of attention and of labels. Not ``even``: no points are.
    ``keys``: what
    stands in the place of softmax over keys.
    """
    law = {"kernel": "exponential", "temperature": point.temperature}
    task = FunctionRegression(
        point.dim,
        2 * point.dim - 1,
        SphereInputs(1.0),
        noise_variance=0.0,
        kernel="exponential",
        temperature=labels * point.temperature,
    )
    process, softmax = GaussianProcess(0.0, **law), SoftmaxLimit(point.temperature)
    layers = {name: layer_of(keys if name == KEYS else name, point, hotter) for name in point.predictor}

    def measure_seed(setting, seed):
        prompts = sample_prompts(
            task, even and setting == "even", jax.random.split(jax.random.fold_in(key, seed), point.prompts)
        )
        y, bayes = np.asarray(prompts.y[:, -1]), np.asarray(answers(process, prompts))

        def measure_predictor(predictor):
            limit = np.asarray(answers(softmax, prompts)) if predictor == KEYS else bayes
            held_out_loss, answer, before, rows = prompts, jnp.zeros_like(prompts.y[:, -1]), 0, []
            for depth in point.layers:
                held_out_loss, answer = deeper(layers[predictor], held_out_loss, answer, jnp.asarray(depth - before))
                rows.append([np.mean((np.asarray(answer) - target) ** 2) for target in (limit, bayes, y)])
                before = depth
            names = ("limit_distance", "bayes_distance", "function_error")
            by_depth = {name: (("layers",), column) for name, column in zip(names, np.transpose(rows), strict=True)}
            return {**by_depth, "limit_scale": np.mean(limit**2), "limit_bayes": np.mean((limit - bayes) ** 2)}

        return {**tabulated(measure_predictor, predictor=point.predictor), "function_bayes": np.mean((bayes - y) ** 2)}

    return tabulated(measure_seed, setting=point.setting, seed=point.seed)


def layer_of(name, point, hotter):
    """One layer of the construction, at a rate with which it converges."""
    kernel = "exponential" if name == EXPONENTIAL else "softmax"
    rate = point.step_size / float(np.exp(1 / point.temperature)) if name == EXPONENTIAL else 1.0
    shape = {"layers": 1, "dim": point.dim, "normalised": False, "noise_variance": 0.0}
    step = FunctionalDescent(rate, kernel=kernel, temperature=hotter * point.temperature, **shape)
    attention = constructions.gradient_descent(step, answers="last")
    return dataclasses.replace(attention, axis="queries") if name == QUERIES else attention


@eqx.filter_jit
def sample_prompts(task, even, keys):
    """Prompts of the task; or at the 2d points +-e_i in random order and rotation."""
    vertices = jnp.concatenate([jnp.eye(task.dim), -jnp.eye(task.dim)])

    def sample(key):
        of_order, of_turn, of_labels = jax.random.split(key, 3)
        if not even:
            return task.sample(key=key)
        x = jax.random.permutation(of_order, vertices) @ jax.random.orthogonal(of_turn, task.dim)
        y = features_of(task.covariance(x)) @ jax.random.normal(of_labels, (task.length + 1,))
        return RegressionPrompt(x=x, y=y)

    return jax.vmap(sample)(keys)


@eqx.filter_jit
def answers(predictor, prompts):
    """Answers to the queries of stacked prompts."""
    return jax.vmap(lambda prompt: predictor(prompt)[-1])(prompts)


@eqx.filter_jit
def deeper(layer, prompts, answer, count):
    """Prompts with residual labels, and the sum of answers, after ``count`` further layers."""

    def step(_, state):
        y, answer = state
        trace = jax.vmap(layer.trace)(eqx.tree_at(lambda p: p.y, prompts, y))
        slots = trace.activations["layer0"][:, :-1, -1]
        return jnp.pad(slots, ((0, 0), (0, 1))), answer + trace.prediction[:, 0]

    y, answer = jax.lax.fori_loop(0, count, step, (prompts.y, answer))
    return eqx.tree_at(lambda p: p.y, prompts, y), answer
