"""Networks along training, contexts, and maps from contexts to weights."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax

from icllab.claims.context_map import _regression_transformers as regression
from icllab.core.grid import Named
from icllab.core.prompt import RegressionPrompt
from icllab.diagnostics import context_map
from icllab.diagnostics.contexts.queries import answers_after, answers_alone, queries_for, queries_near
from icllab.diagnostics.contexts.solvers import MapSolver
from icllab.models import FastWeights, ItemLabelNetwork
from icllab.tasks import ItemLabel, LinearRegression
from icllab.training import TargetLoss, Until

ITEMS = {"classes": None, "labels": 16, "pairs": 4, "no_repeats": True}
RATE, BATCH = 0.1, 128  # of SGD on item-label prompts
OWN = 2  # examples of a query of three tokens
SCORED = 512  # prompts by which a network along training is scored
TESTS = ("gap", "derivative", "composition", "norm")
EXACT = 1e-6


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
    query_length: int


def item_labels(seed: int, point: Any, *, key: Any, trained: bool) -> Family:
    """Item-label networks along SGD; contexts of novel classes, queries that are other items of these."""
    of_task, of_network, of_prompts, of_tests = jax.random.split(jax.random.fold_in(key, seed), 4)
    task = ItemLabel.init(**ITEMS, dim=point.item_dim, key=of_task)
    network = ItemLabelNetwork.from_task(task, key=of_network)
    steps, networks = [0], [network]
    if trained:
        keep = range(0, point.updates + 1, point.every)
        until = Until(point.updates, TargetLoss(point.loss, memory=100.0))
        run = regression.fit(network, task, BATCH, optax.sgd(RATE), until, of_prompts, keep=keep)
        steps = [step for step in keep if step in run.trajectory]
        networks = [run.trajectory.at(step).member(0) for step in steps]
    prompts = task.sample_many(SCORED, key=of_tests)
    right = np.asarray(prompts.labels[:, -1])
    scores = np.array([np.mean(answers(network, prompts).argmax(axis=1) == right) for network in networks])
    tests = []
    for i in range(len(point.context)):
        of_context, of_queries = jax.random.split(jax.random.fold_in(of_tests, i))
        context, noise = task.sample(key=of_context), float(task.within_class_noise)
        tests.append(
            ContextQueries(context, queries_near(context, noise=noise, count=2 * point.queries, key=of_queries))
        )
    return Family(task, networks, steps, scores, tests, 1)


def regressions(seed: int, point: Any, *, key: Any, steps: Sequence[int], examples: int) -> Family:
    """Regression transformers along Adam; queries of the context's task, after ``examples`` examples of their own."""
    of_networks, of_prompts = jax.random.split(key)
    networks = regression.networks(seed, steps, point, key=of_networks)
    rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(of_prompts))])
    return _regression_family(networks, steps, rng, point, examples)


def _regression_family(networks: Sequence[Any], steps: Sequence[int], rng: Any, point: Any, examples: int) -> Family:
    sizes = {"dim": point.dim, "length": point.length - examples, "examples": examples}
    test = jax.tree.map(lambda leaf: leaf[:, 0], regression.sample_prompts(rng, SCORED, 1, **sizes))
    scores = np.array([explained(answers(network, test), test.y[:, -1]) for network in networks])
    prompts = regression.sample_prompts(rng, len(point.context), 2 * point.queries, **sizes)
    tests = [
        _split_context(jax.tree.map(lambda leaf, i=i: leaf[i], prompts), examples) for i in range(len(point.context))
    ]
    task = LinearRegression.convention("garg", dim=point.dim, length=point.length)
    return Family(task, networks, steps, scores, tests, examples + 1)


def _split_context(prompts: RegressionPrompt, examples: int) -> ContextQueries:
    """The examples that prompts share as a context, and the prompts."""
    length = prompts.x.shape[1] - examples
    return ContextQueries(RegressionPrompt(prompts.x[0, :length], prompts.y[0, :length]), prompts)


def fast_weights(seed: int, point: Any, *, key: Any, normalised: bool) -> Family:
    """Fast weights that the context writes by a sum, for which the law is exact; or by a mean. Nothing is trained."""
    of_network, of_prompts = jax.random.split(jax.random.fold_in(key, seed))
    rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(of_prompts))])
    sizes = {"dim": point.dim, "hidden": point.dim, "std": 0.5}
    network = FastWeights.init(**sizes, normalised=normalised, key=of_network)
    return _regression_family([network], [0], rng, point, 0)


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


def stage_indices(family: Family) -> dict[str, int]:
    """Which network is which stage: the jump is the first whose score is half of that at the end."""
    jump = int(np.argmax(family.scores >= family.scores[-1] / 2))
    halfway = int(np.argmin(np.abs(np.asarray(family.steps) - family.steps[jump] / 2)))
    return {"start": 0, "before": halfway, "jump": jump, "end": len(family.steps) - 1}


def measure_maps(
    family: Family, stage: int, point: Any, *, subspace: Callable[[Any], Any], key: Any
) -> dict[str, Named]:
    """The maps of all contexts in one network: tests beside their nulls, and what the maps know of the contexts."""
    network, held_out = family.networks[stage], []
    settings = {"subspace": subspace, "directions": point.directions, "draws": point.draws}
    settings |= {"query_length": family.query_length, "solver": MapSolver(method="gauss_newton", steps=15, products=30)}
    rows, maps = [], []
    for i, (context, queries) in enumerate(family.tests):
        of_context = jax.random.fold_in(key, i)
        result = context_map(network, family.task, context, queries=queries, key=of_context, **settings)
        maps.append(result.weights)
        rows.append(_numbers(result))
        tests = queries_for(context, family.task, count=queries, size=family.query_length, key=of_context)
        held_out.append(tests.held_out)
    for i, row in enumerate(rows):
        context, queries = family.tests[i].context, held_out[i]
        answers = {
            "context": answers_after(network, context, queries),
            "map": answers_alone(maps[i], queries),
            "other map": answers_alone(maps[i - 1], queries),
            "neither": answers_alone(network, queries),
        }
        row["score"] = np.array([_score(answer, queries) for answer in answers.values()])
    axes = {"score": ("context", "answered_by")}
    return {name: (axes.get(name, ("context",)), np.stack([row[name] for row in rows])) for name in rows[0]}


def _numbers(result: Any) -> dict[str, Any]:
    """A map's tests, and the least of each null's (of the norm the largest)."""
    data, row = result.dataset, {}
    for name in TESTS:
        row[f"map_{name}"] = float(data[name])
        ends = data[f"null_{name}"].max() if name == "norm" else data[f"null_{name}"].min()
        row[f"null_{name}"] = float(ends)
    row["unmoved"] = float(data["unmoved"])
    exact = max(row[f"map_{name}"] for name in TESTS[:3]) < EXACT
    return row | {"law": float(exact), "unconverged": float(not result.converged)}


def _score(answers: Any, queries: Any) -> float:
    answers = np.asarray(answers, np.float64)
    if isinstance(queries, RegressionPrompt):
        return explained(answers, queries.y[:, -1])
    return float(np.mean(answers.argmax(axis=1) == np.asarray(queries.labels[:, -1])))
