"""Maps of random contexts in models where they are known, and in one where no weights answer as a context does."""

import jax
import jax.numpy as jnp
import numpy as np

from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractPredictor
from icllab.diagnostics import MapSolver, MapTests, context_map, context_rank, gradient_step_comparison
from icllab.diagnostics.contexts.laws import context_law
from icllab.diagnostics.contexts.verdicts import law
from icllab.models.contexts.exact_family import FastWeights, GradientStep
from icllab.tasks import LinearRegression

VERSION = 2

CONTEXTS = 6  # of the tests of a law
ZERO = 1e-10  # of the largest eigenvalue: in float64 those that vanish are at 1e-32, others down to 1e-4


class SoftmaxContext(AbstractPredictor):
    r"""The direct term, and softmax attention to the examples before a query and to nothing, of score 0.

    .. math:: \hat y_i = x_i \cdot b + \sum_{j < i} y_j \frac{e^{s_{ij}}}{1 + \sum_{k < i} e^{s_{ik}}}, \qquad
              s_{ij} = x_i^\top B A x_j
    """

    down: jax.Array
    up: jax.Array
    slow: jax.Array

    def __call__(self, prompt):
        """The answers at every position."""
        scores = jnp.exp((prompt.x @ self.up) @ (prompt.x @ self.down.T).T)
        weights = jnp.tril(scores, -1)
        return prompt.x @ self.slow + (weights @ prompt.y) / (1 + jnp.sum(weights, axis=1))


class LastExample(AbstractPredictor):
    """The weights that the last example of the context leaves, whatever they have been before; b without a context."""

    down: jax.Array
    up: jax.Array
    slow: jax.Array

    def __call__(self, prompt):
        """The answers at every position."""
        updates = (prompt.y[:, None] * prompt.x) @ self.down.T @ self.up.T
        weights = jnp.concatenate([self.slow[None], updates[:-1]])
        return jnp.sum(prompt.x * weights, axis=1)


class SignStep(AbstractPredictor):
    """One step on the context along the signs of the gradient."""

    start: jax.Array
    rate: jax.Array

    def __call__(self, prompt):
        """The answers at every position."""
        slopes = (prompt.y - prompt.x @ self.start)[:, None] * prompt.x
        steps = jnp.sign(jnp.cumsum(slopes, axis=0) - slopes)
        return prompt.x @ self.start + self.rate * jnp.sum(prompt.x * steps, axis=1)


def sample_model(rng, point, kind):
    """A model with random weights, contexts, and queries whose halves have mean zero."""
    dim, count = point.dim, point.queries
    shapes = (point.hidden, dim), (dim, point.hidden), (dim,)
    weights = [jnp.asarray(rng.normal(size=shape)) for shape in shapes]
    kinds = {"softmax": SoftmaxContext, "last": LastExample}
    model = kinds[kind](*weights) if kind in kinds else FastWeights(*weights, normalised=kind == "mean")
    shape = (CONTEXTS, point.length + 1)
    contexts = [
        RegressionPrompt(jnp.asarray(x), jnp.asarray(y))
        for x, y in zip(rng.normal(size=(*shape, dim)), rng.normal(size=shape), strict=True)
    ]
    halves = rng.normal(size=(2, count // 2, 1, dim))
    inputs = jnp.asarray(np.concatenate([half for half_inputs in halves for half in (half_inputs, -half_inputs)]))
    queries = jax.vmap(RegressionPrompt)(inputs, jnp.asarray(np.zeros((2 * count, 1))))
    return model, contexts, queries


def measure(point, *, key, kind="sum", signs=False):
    """Numbers of every seed. ``kind``: how the context is written; ``signs``: steps go along signs of the gradient."""
    rows = [measure_seed(point, seed, jax.random.fold_in(key, seed), kind, signs) for seed in point.seed]
    return {name: (("seed",), np.array([row[name] for row in rows])) for name in rows[0]}


def measure_seed(point, seed, key, kind, signs):
    """The numbers of one seed."""
    rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(key)).ravel().tolist()])
    model, contexts, queries = sample_model(rng, point, kind)
    context = contexts[0]
    task = LinearRegression.convention("timaeus", dim=point.dim, length=point.length)
    settings = {"key": key, "queries": queries, "solver": MapSolver(tolerance=1e-7)}
    sizes = MapTests(directions=2, draws=2)
    result = context_map(model, task, context, subspace=lambda m: m.slow, tests=sizes, **settings)
    tests = context_law(
        model,
        task,
        contexts,
        subspace=lambda m: m.slow,
        key=key,
        queries=[queries] * CONTEXTS,
        solver=MapSolver(method="dense"),
    )
    rank = context_rank(model, task, context, subspace=lambda m: m.slow, weights=lambda m: m.down, **settings)
    step = (SignStep if signs else GradientStep)(jnp.asarray(rng.normal(size=point.dim)), jnp.asarray(0.5))
    step_result = gradient_step_comparison(step, task, context, subspace=lambda m: m.start, draws=2, **settings)
    step_result = step_result.sel(gradient="examples")
    null = result.dataset.sel(null="unrelated")
    return {
        "map_gap": result.gap,
        "derivative_gap": result.derivative,
        "composition_gap": result.composition,
        "law": float(law(tests).outcome.value == "law"),
        "unrelated_gap": float(null["null_gap"].max()),
        "unrelated_composition_gap": float(null["null_composition"].min()),
        "step_gap": float(step_result["best_step_gap"]),
        "step_cosine": float(step_result["cosine"]),
        "map_rank": float(rank.rank_above(ZERO)),
    }
