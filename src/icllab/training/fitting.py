"""Training: one compiled loop for one predictor or a whole ensemble, on fresh prompts or on a fixed set."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected
from icllab.core.prompt import Prompt
from icllab.core.protocols import declared
from icllab.training.ensembles import Ensemble, alone
from icllab.training.host import Plan, train
from icllab.training.loop import Own, Program
from icllab.training.minibatches import set_size, stream_of
from icllab.training.objective import Positions, chosen_positions, require_prediction
from icllab.training.records import Schedule
from icllab.training.runs import Run
from icllab.training.stopping import AbstractRule
from icllab.training.sweeps import replaced, require_places, swept_values

_ADAM = optax.adam(1e-3)  # one object: another would compile the loop again


def fit(
    predictor: Any,
    task: Any,
    *,
    steps: int,
    key: PRNGKeyArray,
    batch: int | None = 256,
    optimizer: Any = _ADAM,
    sweep: Mapping[str, Sequence[float] | np.ndarray] | None = None,
    data: Prompt | int | None = None,
    positions: Positions = "every",
    record: int | str | Iterable[int] = 16,
    store: str | Path | None = None,
    minibatches: str = "epochs",
    reuse: int = 1,
    trainable: Callable[[Any], Any] | None = None,
    stop: Iterable[AbstractRule] = (),
    held_out: Prompt | int = 0,
    keep: Iterable[int] = (),
    mode: str = "auto",
    checkpoint_seconds: float = 30.0,
    progress: bool | None = None,
) -> Run:
    r"""Minimise the task's loss over the arrays of a predictor, or of every member of an ensemble.

    .. math:: L(\theta) = \frac{1}{|P|} \sum_{i \in P} E\, \mathrm{loss}_i(f_\theta(\text{prompt}), \text{prompt})

    with the expectation replaced by the mean over a step's prompts and P the chosen positions. A member that
    diverges is a status, not an exception: it keeps its last sound parameters while the others go on.

    Args:
        predictor: A predictor, or an :class:`Ensemble` of them. Its floating-point arrays are trained.
        task: Samples prompts and owns the loss.
        steps: Updates. With a store, a run that has made fewer goes on to this number.
        key: Of the prompts. Member ``s`` draws from ``fold_in(key, s)`` and the step: not from what is swept.
            Its generator is used throughout.
        batch: Prompts a step; None: the whole fixed set.
        optimizer: An optax optimiser; or a factory of them, whose keyword arguments are swept. Each *object* is
            compiled once: two calls of ``optax.adam(1e-3)`` are two.
        sweep: Name -> values; members are crossed with every combination. Names are ``optimizer.<keyword>``,
            ``task.<attribute>`` and ``predictor.<attribute>`` (an initial value), dots lead further down.
        data: Prompts stacked on a leading axis, for all members; or a number of prompts that every seed draws once
            for itself. None: fresh prompts at every step.
        positions: ``"every"`` that the predictor answers, ``"last"``, or integers.
        record: When losses are recorded: a number of log-spaced steps per factor of ten, ``"every"``, or steps.
        store: A directory for checkpoints; the same call goes on from what is there, to the same bits.
        minibatches: Of a fixed set: ``"epochs"`` (without replacement) or ``"replacement"``.
        reuse: For how many steps in a row fresh prompts are used before others are drawn.
        trainable: As ``where`` of ``equinox.tree_at``: the parts of one predictor that are trained. None: all.
        stop: Rules that end a member; a loss that is no number always does.
        held_out: Prompts, or how many to draw, on which the loss is also recorded, without training on them.
        keep: Numbers of updates after which parameters are kept, as ``run.trajectory``.
        mode: ``"map"``: members one after the other; ``"vmap"``: side by side; ``"auto"``: what a short timing says.
        checkpoint_seconds: At most so often a checkpoint is written; the last state always is.
        progress: A bar on stderr; None: if that is a terminal.

    Returns:
        A :class:`Run`: trained members, losses with axes member, step and position, a status for each, the header.

    Raises:
        InputError: An argument does not fit; or the store holds another run.
        EnvironmentFault: The disk refuses; the last checkpoint stands.
    """
    if steps < 1:
        raise expected("steps", "an integer of at least 1", steps)
    if not callable(predictor) and not isinstance(predictor, Ensemble):
        raise expected("predictor", "a function of a prompt, or an ensemble of them", type(predictor).__name__)
    members = predictor if isinstance(predictor, Ensemble) else alone(predictor)
    sweep = {name: swept_values(name, values) for name, values in (sweep or {}).items()}
    one = members.member(0)
    for what in ("traceable", "differentiable"):
        if not declared(one, what):
            raise expected("predictor", f"one that is {what}", type(one).__name__)
    require_places(sweep, task=task, predictor=one, optimizer=optimizer)
    if not _is_optimizer(optimizer, sweep):
        hint = "call it, or sweep its arguments" if callable(optimizer) else "optax has them"
        raise expected("optimizer", "an optax optimiser, or a factory that is swept", optimizer, hint)
    prompt = eqx.filter_eval_shape(lambda k: task.sample(key=k), key)
    for given in (data, held_out):
        if not isinstance(given, int | None):
            if set_size(given) < 1:
                raise expected("data", "at least one prompt", 0)
            prompt = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), given)
    answered = require_prediction(one, task, prompt)
    stream = stream_of(data, batch, minibatches, reuse)

    members = members.crossed(sweep)
    numbers = {name: jnp.asarray(members.coordinates[name]) for name in sweep}
    stacked = replaced(members.stacked, "predictor", numbers)
    params, rest = eqx.partition(stacked, _mask(members.stacked, trainable))
    if not jax.tree.leaves(params):
        raise expected("predictor", "floating-point arrays to train", type(one).__name__)
    frozen, static = eqx.partition(rest, eqx.is_array)
    program = Program(
        static=static,
        task=task,
        optimizer=optimizer,
        rules=tuple(stop),
        stream=stream,
        data=None if isinstance(data, int) else data,
        positions=chosen_positions(positions, prompt.positions, answered),
        total=prompt.positions,
    )
    seeds = jnp.asarray(members.coordinates["seed"], jnp.uint32)
    keys = _folded(jnp.broadcast_to(key, seeds.shape), seeds)
    own = Own(
        key=_folded(keys, jnp.zeros_like(seeds)),
        frozen=frozen,
        numbers={name: value for name, value in numbers.items() if not name.startswith("predictor.")},
    )
    if isinstance(data, int):
        own = eqx.tree_at(
            lambda o: o.data,
            own,
            _drawn(task, own, _folded(keys, jnp.ones_like(seeds)), data),
            is_leaf=lambda x: x is None,
        )
    held = held_out
    if isinstance(held_out, int):
        if held_out < 0:
            raise expected("held_out", "prompts, or a number >= 0", held_out)
        apart = jax.random.fold_in(key, 2**31)  # no seed's
        held = _drawn(task, own, jnp.broadcast_to(apart, keys.shape), held_out) if held_out else None
    plan = Plan(
        program=program,
        own=own,
        params=params,
        members=members,
        steps=steps,
        schedule=Schedule(record),
        recorded=repr(record),
        held_out=held,
        held_out_shared=not isinstance(held_out, int),
        keep=tuple(sorted({int(step) for step in keep})),
        key=key,
    )
    if any(not 0 <= step <= steps for step in plan.keep):
        raise expected("keep", f"steps from 0 to {steps}", list(plan.keep))
    return train(plan, mode=mode, store=store, checkpoint_seconds=checkpoint_seconds, progress=progress)


def _is_optimizer(optimizer: Any, sweep: Mapping[str, Any]) -> bool:
    """Whether ``optimizer`` is one, or is made one by what is swept."""
    if any(name.startswith("optimizer.") for name in sweep):
        return True
    return callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None))


def _mask(stacked: Any, trainable: Callable[[Any], Any] | None) -> Any:
    every = jax.tree.map(eqx.is_inexact_array, stacked)
    if trainable is None:
        return every
    none = jax.tree.map(lambda _: False, stacked)
    try:
        return eqx.tree_at(trainable, none, trainable(every))
    except (AttributeError, ValueError) as error:
        raise expected(
            "trainable", "parts of the predictor, as in equinox.tree_at", str(error).split("\n")[0]
        ) from error


@eqx.filter_jit
def _folded(keys: jax.Array, numbers: jax.Array) -> jax.Array:
    """Of each member, outside ``vmap``: not every generator folds to the same key within."""
    return jax.lax.map(lambda member: jax.random.fold_in(*member), (keys, numbers))


@eqx.filter_jit
def _drawn(task: Any, own: Own, keys: jax.Array, count: int) -> Any:
    """``count`` prompts of every member's own task."""

    def one(member: tuple[Own, jax.Array]) -> Any:
        its, key = member
        its_task = replaced(task, "task", its.numbers)
        return jax.vmap(lambda k: its_task.sample(key=k))(jax.random.split(key, count))

    return jax.lax.map(one, (own, keys))
