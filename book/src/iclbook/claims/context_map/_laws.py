"""Networks along training, contexts, and maps from contexts to weights."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax

from iclbook.claims.context_map import _regression_transformers as regression
from icllab.core.grid import Named
from icllab.core.prompt import RegressionPrompt
from icllab.diagnostics.contexts.laws import context_law
from icllab.diagnostics.contexts.queries import QuerySource, queries_near
from icllab.diagnostics.contexts.solvers import MapSolver
from icllab.models import FastWeights, ItemLabelNetwork
from icllab.tasks import ItemLabel, LinearRegression
from icllab.training import TargetLoss, Until

ITEMS = {"classes": None, "labels": 16, "pairs": 4, "no_repeats": True}
RATE, BATCH = 0.1, 128  # of SGD on item-label prompts
RATE_LINEAR = 1e-2  # of Adam on linear attention
OWN = 2  # examples of a query of three tokens
SCORED = 512  # prompts by which a network along training is scored
SOLVER = MapSolver(method="dense", steps=40)
SUBSPACES = {
    "linear_attention": lambda network: network.slow,
    "mean_attention": lambda network: network.slow,
    "dense": lambda network: [block.mlp for block in network.blocks],
    "attention": lambda network: [block.attention for block in network.blocks],
    "item_label": lambda network: network.classifier.readout,
}


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
    return _regression_family(networks, steps, rng, point, 0)


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


def measure_law(
    family: Family, stage: int, point: Any, *, subspace: Callable[[Any], Any], key: Any
) -> dict[str, Named]:
    """The tests of a law for contexts in one network, in float64."""
    contexts, queries = zip(*family.tests, strict=True)
    with jax.enable_x64(True):
        double = regression.double((family.networks[stage], list(contexts), list(queries)))
        network, contexts, queries = double
        settings = {"subspace": subspace, "directions": point.directions, "solver": SOLVER, "key": key}
        source = QuerySource(queries, family.query_length)
        tests = context_law(network, family.task, contexts, queries=source, **settings)
    axes = ("context", "world", "test")
    return {name: (axes, tests[name].transpose(*axes).values.astype(float)) for name in ("left", "converged")}
