"""What claims about the law from contexts to weights share: networks along training, contexts, and their maps."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax

import icllab as icl
from icllab.claims.context_map import _regression_transformers as regression
from icllab.core.grid import Named
from icllab.core.prompt import RegressionPrompt
from icllab.diagnostics import context_map
from icllab.diagnostics.contexts.queries import answers_after, answers_alone, queries_for, queries_near
from icllab.diagnostics.contexts.solvers import MapSolver
from icllab.diagnostics.contexts.verdicts import MapOutcome
from icllab.models import FastWeights, ItemLabelNetwork
from icllab.tasks import ItemLabel, LinearRegression
from icllab.training import Record, TargetLoss, Until

ITEMS = {"classes": None, "labels": 16, "pairs": 4, "no_repeats": True}
RATE, BATCH = 0.1, 128  # of SGD on item-label prompts
OWN = 2  # examples of a query of three tokens
SCORED = 512  # prompts by which a network along training is scored
TESTS = ("gap", "derivative", "composition", "norm")


class Asked(NamedTuple):
    """A context, and queries stacked: half of them are fitted, half are held out."""

    context: Any
    queries: Any


class Family(NamedTuple):
    """Networks along training, with their updates and scores, and what is asked of them."""

    task: Any
    networks: Sequence[Any]
    steps: Sequence[int]
    scores: np.ndarray
    asked: Sequence[Asked]
    query_length: int


def item_labels(seed: int, point: Any, *, key: Any, trained: bool) -> Family:
    """Item-label networks along SGD; contexts of novel classes, queries that are other items of these."""
    of_task, of_network, of_prompts, of_tests = jax.random.split(jax.random.fold_in(key, seed), 4)
    task = ItemLabel.drawn(**ITEMS, dim=point.item_dim, key=of_task)
    network = ItemLabelNetwork.of(task, key=of_network)
    steps, networks = [0], [network]
    if trained:
        keep = range(0, point.updates + 1, point.every)
        how = {"batch": BATCH, "optimizer": optax.sgd(RATE), "record": Record([0], keep=keep, progress=False)}
        until = Until(point.updates, TargetLoss(point.loss, memory=100.0))
        run = icl.fit(network, task, steps=until, key=of_prompts, **how)
        steps = [step for step in keep if step in run.trajectory]
        networks = [run.trajectory.at(step).member(0) for step in steps]
    prompts = task.sample_many(SCORED, key=of_tests)
    right = np.asarray(prompts.labels[:, -1])
    scores = np.array([np.mean(answers(one, prompts).argmax(axis=1) == right) for one in networks])
    asked = []
    for i in range(len(point.context)):
        of_context, of_queries = jax.random.split(jax.random.fold_in(of_tests, i))
        context, noise = task.sample(key=of_context), float(task.within_class_noise)
        asked.append(Asked(context, queries_near(context, noise=noise, count=2 * point.queries, key=of_queries)))
    return Family(task, networks, steps, scores, asked, 1)


def regressions(seed: int, point: Any, *, key: Any, steps: Sequence[int], own: int) -> Family:
    """Regression transformers along Adam; queries of the context's task, after ``own`` examples of their own."""
    of_networks, of_prompts = jax.random.split(key)
    networks = regression.networks(seed, steps, point, key=of_networks)
    rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(of_prompts))])
    return _asked_regression(networks, steps, rng, point, own)


def _asked_regression(networks: Sequence[Any], steps: Sequence[int], rng: Any, point: Any, own: int) -> Family:
    sizes = {"dim": point.dim, "length": point.length - own, "own": own}
    test = jax.tree.map(lambda leaf: leaf[:, 0], regression.asked(rng, SCORED, 1, **sizes))
    scores = np.array([explained(answers(network, test), test.y[:, -1]) for network in networks])
    drawn = regression.asked(rng, len(point.context), 2 * point.queries, **sizes)
    asked = [_divided(jax.tree.map(lambda leaf, i=i: leaf[i], drawn), own) for i in range(len(point.context))]
    task = LinearRegression.convention("garg", dim=point.dim, length=point.length)
    return Family(task, networks, steps, scores, asked, own + 1)


def _divided(prompts: RegressionPrompt, own: int) -> Asked:
    """The examples that prompts share as a context, and the prompts."""
    shared = prompts.x.shape[1] - own
    return Asked(RegressionPrompt(prompts.x[0, :shared], prompts.y[0, :shared]), prompts)


def fast_weights(seed: int, point: Any, *, key: Any, normalised: bool) -> Family:
    """Fast weights that the context writes by a sum, for which the law is exact; or by a mean. Nothing is trained."""
    of_network, of_prompts = jax.random.split(jax.random.fold_in(key, seed))
    rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(of_prompts))])
    how = {"dim": point.dim, "hidden": point.dim, "std": 0.5, "normalised": normalised, "key": of_network}
    return _asked_regression([FastWeights.drawn(**how)], [0], rng, point, 0)


@eqx.filter_jit
def _answers(network: Any, prompts: Any) -> Any:
    return jax.lax.map(lambda prompt: network(prompt)[-1].reshape(-1), prompts, batch_size=64)


def answers(network: Any, prompts: Any) -> np.ndarray:
    """The answers to the last query of every prompt, a row each."""
    return np.asarray(_answers(network, prompts), np.float64)


def explained(given: np.ndarray, right: Any) -> float:
    """The fraction of the answers' mean square that is explained."""
    right = np.asarray(right, np.float64).reshape(-1, 1)
    return float(1 - np.mean((given - right) ** 2) / np.mean(right**2))


def staged(family: Family) -> dict[str, int]:
    """Which network is which stage: the jump is the first whose score is half of that at the end."""
    jump = int(np.argmax(family.scores >= family.scores[-1] / 2))
    halfway = int(np.argmin(np.abs(np.asarray(family.steps) - family.steps[jump] / 2)))
    return {"start": 0, "before": halfway, "jump": jump, "end": len(family.steps) - 1}


def mapped(family: Family, stage: int, point: Any, *, subspace: Callable[[Any], Any], key: Any) -> dict[str, Named]:
    """The maps of all contexts in one network: tests beside their nulls, and what the maps know of the contexts."""
    network, held_out = family.networks[stage], []
    how = {"subspace": subspace, "directions": point.directions, "draws": point.draws}
    how |= {"query_length": family.query_length, "solver": MapSolver(method="gauss_newton", steps=15, products=30)}
    rows, maps = [], []
    for i, (context, queries) in enumerate(family.asked):
        of_context = jax.random.fold_in(key, i)
        found = context_map(network, family.task, context, queries=queries, key=of_context, **how)
        maps.append(found.weights)
        rows.append(_numbers(found))
        same = {"count": queries, "size": family.query_length, "key": of_context}
        held_out.append(queries_for(context, family.task, **same).held_out)
    for i, row in enumerate(rows):
        context, queries = family.asked[i].context, held_out[i]
        given = {
            "context": answers_after(network, context, queries),
            "map": answers_alone(maps[i], queries),
            "other map": answers_alone(maps[i - 1], queries),
            "neither": answers_alone(network, queries),
        }
        row["score"] = np.array([_score(answer, queries) for answer in given.values()])
    axes = {"score": ("context", "answered_by")}
    return {name: (axes.get(name, ("context",)), np.stack([row[name] for row in rows])) for name in rows[0]}


def _numbers(found: Any) -> dict[str, Any]:
    """A map's tests, and the least of each null's (of the norm the largest)."""
    data, row = found.dataset, {}
    for name in TESTS:
        row[f"map_{name}"] = float(data[name])
        ends = data[f"null_{name}"].max() if name == "norm" else data[f"null_{name}"].min()
        row[f"null_{name}"] = float(ends)
    row["unmoved"] = float(data["unmoved"])
    return row | {"law": float(found.outcome is MapOutcome.LAW), "unconverged": float(not found.converged)}


def _score(given: Any, queries: Any) -> float:
    given = np.asarray(given, np.float64)
    if isinstance(queries, RegressionPrompt):
        return explained(given, queries.y[:, -1])
    return float(np.mean(given.argmax(axis=1) == np.asarray(queries.labels[:, -1])))
