r"""The network of items and labels trained by plain descent, and what its test sets say on the way.

The reduced size: N = 4 pairs, L = 16 labels, content of D = 31 numbers, a place for each of the nine tokens, fresh
classes in every prompt. Weights are drawn and trained as in the study of abrupt learning: plain descent on the
cross-entropy of the query's label, fresh prompts at every step, weights decayed by a millionth of themselves.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import icllab as icl
from icllab import models
from icllab.diagnostics.behaviour import heads
from icllab.models import ItemLabelNetwork
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
TOGETHER = 256  # prompts that are tested side by side


def task(*, key: Any, **changes: Any) -> ItemLabel:
    """The task of the reduced size, its label vectors drawn from ``key``, with some of its numbers changed."""
    return ItemLabel.drawn(**{**REDUCED, **changes}, key=key)


def networks(like: ItemLabel, *, seeds: Sequence[int], key: Any, **fields: Any) -> Any:
    """The ensemble of networks for a task, one for every seed, before training."""
    return icl.ensemble(lambda key: ItemLabelNetwork.of(like, **fields, key=key), seeds=list(seeds), key=key)


def first_order(network: ItemLabelNetwork) -> Any:
    r"""The network with a one added to the scores of linear attention, :math:`(1 + s_{ij})/i`; softmax as it is."""
    return models.edited(network, _with_one(network.attention))


@functools.cache
def _with_one(attention: tuple[str, ...]) -> Any:
    names = {f"scores{i + 1}" for i, kind in enumerate(attention) if kind == "linear"}
    return lambda name, value: value + 1 if name in names else value


@functools.cache
def descent() -> Any:
    """Plain descent with decoupled decay, as a factory over its rate. One object for all cells."""

    def plain(rate: Any) -> Any:
        return optax.chain(optax.sgd(rate), optax.add_decayed_weights(-DECAY))

    return plain


def trained(
    task: ItemLabel,
    network: Any,
    *,
    steps: Sequence[int],
    key: Any,
    rates: Sequence[float] = (0.1,),
    batch: int = 128,
    **how: Any,
) -> Any:
    """The run of a network, one member for each learning rate, with its parameters kept at ``steps``.

    Further arguments are those of :func:`icllab.fit`.
    """
    return icl.fit(
        network,
        task,
        steps=max(steps),
        key=key,
        batch=batch,
        optimizer=descent(),
        sweep=Sweep({"optimizer.rate": list(rates)}, mode="map"),
        record=Record([0], keep=steps, progress=False),
        **how,
    )


def measured(
    run: Any, law: ItemLabel, *, key: Any, prompts: int = 1024, progress: bool = False
) -> dict[str, np.ndarray]:
    """Of every member at every kept step, on the same fresh prompts of a test set: means over prompts.

    Returns:
        ``accuracy`` and ``label_loss`` [member, step]; with ``progress`` also the measures of :data:`PROGRESS`.
    """
    asked = law.sample_many(prompts, key=key)
    found = [_measured(*_member(run, m), law, asked, progress) for m in range(run.size)]
    return {name: np.stack([np.asarray(one[name]) for one in found]) for name in found[0]}


def learning_curves(
    *,
    seeds: Sequence[int],
    steps: Sequence[int],
    key: Any,
    rates: Sequence[float] = (0.1,),
    tests: Sequence[str] = ("IC",),
    prompts: int = 1024,
    batch: int = 128,
    prepared: Callable[[Any], Any] = lambda network: network,
    fields: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    **changes: Any,
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Training from several starts at several rates, and what the test sets say after every kept step.

    Args:
        seeds: Each with label vectors, weights, prompts and tests of its own, the same ones at every rate.
        steps: Numbers of updates after which it is tested, ascending; the last ends the training.
        key: Of everything.
        rates: Learning rates.
        tests: Names of :data:`TESTS`. Progress is measured on the first one.
        prompts: Of each test set.
        batch: Prompts of a step.
        prepared: What is trained in the place of the network that was drawn, such as an edited one.
        fields: Of the network, other than its sizes.
        training: Further arguments of :func:`icllab.fit`.
        **changes: Of the task.

    Returns:
        ``accuracy`` and ``label_loss`` over test_set, seed, rate and step, the measures of :data:`PROGRESS` over
        seed, rate and step: each with its axes, as a claim's ``measure`` returns them.
    """
    of_networks = jax.random.fold_in(key, 2**31 - 1)
    drawn = networks(task(key=key, **changes), seeds=seeds, key=of_networks, **(fields or {}))
    found: dict[str, list[np.ndarray]] = {}
    for s, seed in enumerate(seeds):
        of_task, of_prompts, of_tests = jax.random.split(jax.random.fold_in(key, seed), 3)
        law = task(key=of_task, **changes)
        run = trained(
            law,
            prepared(drawn.member(s)),
            steps=steps,
            key=of_prompts,
            rates=rates,
            batch=batch,
            **(training or {}),
        )
        rows = [
            measured(run, TESTS[name](law), key=of_tests, prompts=prompts, progress=name == tests[0]) for name in tests
        ]
        for name in ("accuracy", "label_loss"):
            found.setdefault(name, []).append(np.stack([row[name] for row in rows]))
        for name in PROGRESS:
            found.setdefault(name, []).append(rows[0][name])
    axes = ("seed", "rate", "step")
    return {
        name: (("test_set", *axes), np.stack(some, axis=1)) if some[0].ndim == 3 else (axes, np.stack(some))
        for name, some in found.items()
    }


def _member(run: Any, index: int) -> tuple[Any, Any]:
    """One member's trained arrays at all kept steps, and the rest of it."""
    rest = jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, run.trajectory.rest)
    return jax.tree.map(jnp.asarray, run.trajectory.stacked(index)), rest


@eqx.filter_jit
def _measured(params: Any, rest: Any, law: ItemLabel, asked: Any, progress: bool) -> dict[str, Any]:
    """Means over the prompts ``asked``, one for every step."""

    def at(step: Any) -> dict[str, Any]:
        network = eqx.combine(step, rest)

        def one(prompt: Any) -> dict[str, Any]:
            trace = network.trace(prompt)
            row = {
                "accuracy": law.accuracy(trace.prediction, prompt)[-1],
                "label_loss": law.loss(trace.prediction, prompt)[-1],
            }
            if progress:
                measures = heads.item_label_measures(trace, prompt)
                row |= {name: measures[heads.MEASURES.index(name)] for name in PROGRESS}
            return row

        count = asked.labels.shape[0]
        rows = jax.lax.map(one, asked, batch_size=min(TOGETHER, count))
        return {name: jnp.mean(values) for name, values in rows.items()}

    return jax.lax.map(at, params)
