"""Linear attention along training, contexts, and maps from contexts to weights."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax

from iclbook.claims.context_map import _regression_transformers as regression
from icllab.core.grid import Named
from icllab.core.prompt import RegressionPrompt
from icllab.diagnostics.contexts.laws import context_law
from icllab.diagnostics.contexts.queries import QuerySource
from icllab.diagnostics.contexts.solvers import MapSolver
from icllab.models import FastWeights
from icllab.tasks import LinearRegression

RATE_LINEAR = 1e-2  # of Adam on linear attention
SCORED = 512  # prompts by which a network along training is scored
SOLVER = MapSolver(method="dense", steps=40)


class ContextQueries(NamedTuple):
    """A context, and queries stacked: half of them are fitted, half are held out."""

    context: Any
    queries: Any


class Family(NamedTuple):
    """Networks along training, with their updates, scores and tests."""

    task: Any
    networks: Sequence[Any]
    steps: Sequence[int]
    scores: np.ndarray
    tests: Sequence[ContextQueries]


def _regression_family(networks: Sequence[Any], steps: Sequence[int], rng: Any, point: Any) -> Family:
    sizes = {"dim": point.dim, "length": point.length, "examples": 0}
    test = jax.tree.map(lambda leaf: leaf[:, 0], regression.sample_prompts(rng, SCORED, 1, **sizes))
    scores = np.array([explained(answers(network, test), test.y[:, -1]) for network in networks])
    prompts = regression.sample_prompts(rng, len(point.context), 2 * point.queries, **sizes)
    tests = [_split_context(jax.tree.map(lambda leaf, i=i: leaf[i], prompts)) for i in range(len(point.context))]
    task = LinearRegression.convention("garg", dim=point.dim, length=point.length)
    return Family(task, networks, steps, scores, tests)


def _split_context(prompts: RegressionPrompt) -> ContextQueries:
    """The examples that prompts share as a context, and the prompts."""
    return ContextQueries(RegressionPrompt(prompts.x[0], prompts.y[0]), prompts)


def linear_attention(seed: int, point: Any, *, key: Any, steps: Sequence[int], normalised: bool) -> Family:
    """Linear attention with a direct term along Adam; contexts write its fast weights by a sum, or by a mean."""
    of_network, of_training, of_prompts = jax.random.split(jax.random.fold_in(key, seed), 3)
    network = FastWeights.init(dim=point.dim, hidden=point.dim, std=0.2, normalised=normalised, key=of_network)
    networks = [network]
    if max(steps) > 0:
        task = regression.noisy_task(point)
        run = regression.fit(network, task, point.batch, optax.adam(RATE_LINEAR), max(steps), of_training, keep=steps)
        networks = [run.trajectory.at(step).member(0) for step in steps]
    rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(of_prompts))])
    return _regression_family(networks, steps, rng, point)


@eqx.filter_jit
def _answers(network: Any, prompts: Any) -> Any:
    return jax.lax.map(lambda prompt: network(prompt)[-1].reshape(-1), prompts, batch_size=64)


def answers(network: Any, prompts: Any) -> np.ndarray:
    """The answers to the last query of every prompt, a row each."""
    return np.asarray(_answers(network, prompts), np.float64)


def explained(answers: np.ndarray, right: Any) -> float:
    """The fraction of the answers' mean square that is explained."""
    right = np.asarray(right, np.float64).reshape(-1, 1)
    return float(1 - np.mean((answers - right) ** 2) / np.mean(right**2))


def measure_law(family: Family, stage: int, point: Any, *, key: Any) -> dict[str, Named]:
    """The tests of a law for contexts in one network, whose direct term moves, in float64."""
    contexts, queries = zip(*family.tests, strict=True)
    with jax.enable_x64(True):
        network, contexts, queries = regression.double((family.networks[stage], list(contexts), list(queries)))
        settings = {"subspace": lambda network: network.slow, "directions": point.directions, "solver": SOLVER}
        tests = context_law(network, family.task, contexts, queries=QuerySource(queries, 1), key=key, **settings)
    axes = ("context", "world", "test")
    return {name: (axes, tests[name].transpose(*axes).values.astype(float)) for name in ("left", "converged")}
