"""The item-label network trained by SGD, and its test sets along training.

The reduced size: N = 4 pairs, L = 16 labels, content of D = 31 numbers, a position for each of the nine tokens, novel
classes in every prompt. SGD is on the cross-entropy of the query's label, with fresh prompts at every step.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import icllab as icl
from icllab import models
from icllab.core.errors import expected
from icllab.core.grid import Named, tabulated
from icllab.diagnostics.behaviour import item_label_heads
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.lab.networks import require_answers
from icllab.models import ItemLabelNetwork
from icllab.models.torch_derivatives import with_autograd
from icllab.tasks import ItemLabel
from icllab.training import Record, Sweep

REDUCED = {"classes": None, "labels": 16, "pairs": 4, "dim": 31, "no_repeats": True}
DECAY = 1e-6  # of the weights, in every step
PROGRESS = ("item_label_attention", "target_attention", "label_attention", "context_label_accuracy")
TESTS = {
    "IC": ItemLabel.in_context,
    "swapped": ItemLabel.swapped_labels,
    "IW": ItemLabel.in_weights,
    "purged": lambda task: task.in_weights(purged=True),
}
TOGETHER = 256  # prompts of one batch of a test


class Start(NamedTuple):
    """Task, network before training, and keys of the task, of training and of tests, for one seed."""

    task: ItemLabel
    network: ItemLabelNetwork
    of_task: Any
    of_prompts: Any
    of_tests: Any


def task(*, key: Any, **changes: Any) -> ItemLabel:
    """The task of the reduced size, with label vectors drawn from ``key`` and some of its numbers changed."""
    return ItemLabel.init(**{**REDUCED, **changes}, key=key)


def start(seed: int, *, key: Any, fields: Mapping[str, Any] | None = None, **changes: Any) -> Start:
    """Task (with numbers changed), network (with ``fields``) and keys, which depend on the seed and ``key`` only."""
    of_task, of_prompts, of_tests = jax.random.split(jax.random.fold_in(key, seed), 3)
    of_network = jax.random.fold_in(jax.random.fold_in(key, 2**31 - 1), seed)
    law = task(key=of_task, **changes)
    return Start(law, _network(law, dict(fields or {}), of_network), of_task, of_prompts, of_tests)


@eqx.filter_jit
def _network(task: ItemLabel, fields: dict[str, Any], key: Any) -> ItemLabelNetwork:
    return ItemLabelNetwork.from_task(task, **fields, key=key)


def first_order(network: ItemLabelNetwork) -> Any:
    """The network with one added to the scores of linear attention, :math:`(1 + s_{ij})/i`; softmax is unchanged."""
    return models.edited(network, _with_one(network.attention)) if "linear" in network.attention else network


@functools.cache
def _with_one(attention: tuple[str, ...]) -> Any:
    names = {f"scores{i + 1}" for i, kind in enumerate(attention) if kind == "linear"}
    return lambda name, value: value + 1 if name in names else value


def clamp_patterns(network: Any) -> Any:
    """The network with both attention patterns of an induction head clamped, so that only the readout is left."""
    return models.match_clamped(models.previous_token_clamped(network))


@functools.cache
def descent() -> Any:
    """SGD with decoupled weight decay, as a factory over its learning rate. One object for all cells."""

    def plain(rate: Any) -> Any:
        return optax.chain(optax.sgd(rate), optax.add_decayed_weights(-DECAY))

    return plain


def train(
    task: ItemLabel,
    network: Any,
    *,
    steps: Sequence[int],
    key: Any,
    rates: Sequence[float] = (0.1,),
    batch: int = 128,
    trainable: Any = None,
) -> Any:
    """Train a network with a member for each learning rate, and keep its parameters at ``steps``."""
    return icl.fit(
        network,
        task,
        steps=max(steps),
        key=key,
        batch=batch,
        optimizer=descent(),
        sweep=Sweep({"optimizer.rate": list(rates)}, mode="map"),
        record=Record([0], keep=steps, progress=False),
        trainable=trainable,
    )


def evaluate(
    run: Any, test: ItemLabel, *, key: Any, prompts: int = 1024, progress: bool = False
) -> dict[str, np.ndarray]:
    """Means over the same fresh prompts, [member, step]: accuracy, loss and, with ``progress``, :data:`PROGRESS`."""
    batch = test.sample_many(prompts, key=key)
    members = [_measured(*member_trajectory(run, m), test, batch, progress) for m in range(run.size)]
    return {name: np.stack([np.asarray(member[name]) for member in members]) for name in members[0]}


def learning_curves(
    point: Any,
    *,
    key: Any,
    rates: Sequence[float],
    prepare: Callable[[ItemLabelNetwork], Any] | None = None,
    fields: Mapping[str, Any] | None = None,
    labels: int | None = None,
) -> dict[str, Named]:
    """Training of every seed at every learning rate, tested on novel classes after every kept step.

    Each seed has label vectors, weights, prompts and tests of its own, the same ones at every rate; ``prepare`` is
    what is trained in the network's place, ``fields`` are the network's, ``labels`` another number of labels.
    """
    count = point.label_count if labels is None else labels

    def curves(seed: int) -> dict[str, Named]:
        begin = start(seed, key=key, fields=fields, labels=count, pairs=point.pairs, dim=point.dim)
        network = begin.network if prepare is None else prepare(begin.network)
        run = train(begin.task, network, steps=point.step, key=begin.of_prompts, rates=rates, batch=point.batch)
        means = evaluate(run, begin.task.in_context(), key=begin.of_tests, prompts=point.prompts, progress=True)
        return {name: (("rate", "step"), values) for name, values in means.items()}

    return tabulated(curves, seed=point.seed)


def at_one_rate(curves: Mapping[str, Named]) -> dict[str, Named]:
    """Curves at one learning rate, without the axis of rates."""
    return {name: (("seed", "step"), values[:, 0]) for name, (_, values) in curves.items()}


def of_run(networks: Mapping[int, Any], task: Any, point: Any, *, key: Any) -> dict[str, Named]:
    """Test curves of a user's networks by step, on prompts of each seed from the test set of their task.

    Raises:
        InputError: There is no task, or it has another number of pairs than the point.
    """
    if not isinstance(task, ItemLabel):
        raise expected("--task", "the task of the training, item_label or file.py:task", task)
    if task.pairs != point.pairs:
        raise expected("pairs", f"{task.pairs}, as the task has", point.pairs, f"--set pairs={task.pairs}")
    test = task.in_context()
    require_answers(networks[point.step[0]], test)

    @eqx.filter_jit
    def judged(network: Any, batch: Any) -> tuple[Any, Any]:
        answers = jax.vmap(network)(batch)
        return jnp.mean(jax.vmap(test.accuracy)(answers, batch)[:, -1]), jnp.mean(
            jax.vmap(test.loss)(answers, batch)[:, -1]
        )

    def curves(seed: int) -> dict[str, Named]:
        own, rows = jax.random.fold_in(key, seed), []
        batch = sample_prompts(test, key=own, prompts=point.prompts)
        for step in point.step:
            accuracy, loss = judged(with_autograd(networks[step]), batch)
            measures = item_label_heads.progress_measures(networks[step], test, key=own, prompts=point.prompts)
            rows.append([float(accuracy), float(loss), *(float(measures[name]) for name in PROGRESS)])
        names = ("accuracy", "label_loss", *PROGRESS)
        return {name: (("step",), column) for name, column in zip(names, np.transpose(rows), strict=True)}

    return tabulated(curves, seed=point.seed)


def member_trajectory(run: Any, index: int) -> tuple[Any, Any]:
    """Trained arrays of one member at all kept steps, and its static part."""
    static = jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, run.trajectory.rest)
    return jax.tree.map(jnp.asarray, run.trajectory.stacked(index)), static


@eqx.filter_jit
def _measured(params: Any, static: Any, test: ItemLabel, batch: Any, progress: bool) -> dict[str, Any]:
    """Means over the prompts ``batch``, one mean for every step."""

    def at(step: Any) -> dict[str, Any]:
        network = eqx.combine(step, static)

        def measures_of(prompt: Any) -> dict[str, Any]:
            trace = network.trace(prompt)
            row = {
                "accuracy": test.accuracy(trace.prediction, prompt)[-1],
                "label_loss": test.loss(trace.prediction, prompt)[-1],
            }
            if progress:
                measures = item_label_heads.item_label_measures(trace, prompt)
                row |= {name: measures[item_label_heads.MEASURES.index(name)] for name in PROGRESS}
            return row

        count = batch.labels.shape[0]
        rows = jax.lax.map(measures_of, batch, batch_size=min(TOGETHER, count))
        return {name: jnp.mean(values) for name, values in rows.items()}

    return jax.lax.map(at, params)
