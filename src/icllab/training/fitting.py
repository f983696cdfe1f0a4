"""Training with one compiled loop for one predictor or a whole ensemble, on fresh prompts or a fixed set."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected, require_integer, require_key
from icllab.core.prompt import Prompt, scored_positions
from icllab.core.protocols import require_randomness, require_task
from icllab.training.checkpoints import CheckpointStore
from icllab.training.ensembles import ensemble_of
from icllab.training.loop import Program
from icllab.training.optimizers import comparable
from icllab.training.plans import Plan, held_out_prompts, member_constants, partition, prompt_shape
from icllab.training.records import Record
from icllab.training.runs import Run
from icllab.training.stopping import Until
from icllab.training.streams import (
    Fixed,
    Fresh,
    Positions,
    chosen_positions,
    require_prediction,
    require_scored,
    source_of,
    stream_of,
)
from icllab.training.sweeps import Sweep, require_effect, require_optimizer, require_places
from icllab.training.train_loop import not_begun, train

_ADAM = optax.adam(1e-3)


def fit(
    predictor: Any,
    task: Any,
    *,
    steps: int | Until,
    key: PRNGKeyArray,
    batch: int | None = 256,
    optimizer: Any = _ADAM,
    sweep: Mapping[str, Sequence[float] | np.ndarray] | Sweep | None = None,
    data: Prompt | int | Fresh | Fixed | None = None,
    positions: Positions = "every",
    record: int | str | Iterable[int] | Record = 16,
    store: str | Path | CheckpointStore | None = None,
    trainable: Callable[[Any], Any] | None = None,
    devices: int = 1,
    progress: bool | None = None,
) -> Run:
    r"""Minimise the task's loss over the arrays of a predictor, or of every member of an ensemble.

    .. math:: L(\theta) = \frac{1}{|P|} \sum_{i \in P} E\, \mathrm{loss}_i(f_\theta(\text{prompt}), \text{prompt})

    The expectation is replaced by the mean over a step's prompts; P are the positions. A member that diverges has a
    status and raises nothing: it keeps its last finite parameters while the others go on.

    Args:
        predictor: A predictor, or an :class:`Ensemble` of them. Its floating-point arrays are trained.
        task: A task; it samples prompts and has the loss.
        steps: Number of updates; or :class:`Until`, with rules that end a member earlier. With a store, a shorter run
            goes on to this number.
        key: Key of the prompts. Member ``s`` draws from ``fold_in(key, s)`` and the step, whatever is swept. All
            random numbers come from its generator.
        batch: Number of prompts a step; None: the whole fixed set.
        optimizer: An optax optimiser; or a factory of optimisers, whose keyword arguments are swept. Two calls of
            ``optax.adam(1e-3)`` are one optimiser and are compiled once. An optimiser with a function that reads a
            global name outside of optax is compiled once for each object.
        sweep: Name -> values; members are crossed with every combination. Names are ``optimizer.<keyword>``,
            ``task.<attribute>`` and ``predictor.<attribute>`` (an initial value), with dots for nested attributes. A
            number of the task must change its loss or prompts that are drawn. Or :class:`Sweep`, with a mode. None:
            no sweep.
        data: Prompts stacked on a leading axis, for all members; or a number of prompts that every seed draws once
            for itself; or :class:`Fixed`, with the kind of minibatches. None: fresh prompts at every step; or
            :class:`Fresh`, which reuses them.
        positions: ``"every"`` that the predictor answers, ``"last"``, or integers.
        record: Steps at which losses are recorded: a number of log-spaced steps per factor of ten, ``"every"``, or
            a sequence. Or :class:`Record`, with losses on held-out prompts, and kept parameters.
        store: A directory for checkpoints; the same call goes on from the newest, to the same bits. Or
            :class:`CheckpointStore`, with the time between checkpoints. None: no checkpoints.
        trainable: Parts of one predictor that are trained, as ``where`` of ``equinox.tree_at``. None: all.
        devices: Number of this process's devices (``jax.local_devices()``) that share the work. The batch of a single
            member is divided: each device draws its part of a step's prompts, and the update is that of the mean
            gradient, which is the gradient of the whole batch. Several members are dealt out. One step agrees with
            that on one device to rounding.
        progress: Whether steps, the time left and the loss are shown; None: on a terminal and in a notebook.

    Returns:
        A :class:`Run`: trained members, losses with axes member, step and position, a status for each, the header.
        The header states the mode and the division over devices; a resumed run keeps its mode.

    Raises:
        InputError: An argument does not fit; or the store holds another run.
        EnvironmentFault: The disk refuses; the last checkpoint stands.
    """
    require_key(key)
    until = steps if isinstance(steps, Until) else Until(steps)
    sweep = sweep if isinstance(sweep, Sweep) else Sweep({} if sweep is None else sweep)
    source = source_of(data)
    record = record if isinstance(record, Record) else Record(record)
    record = record if progress is None else replace(record, progress=progress)
    store = store if isinstance(store, CheckpointStore | None) else CheckpointStore(store)
    require_integer("devices", devices)
    record.require_within(until.steps)
    require_task(task)

    with not_begun():
        members = ensemble_of(predictor)
        member = members.member(0)
        require_places(sweep.values, task=task, predictor=member, optimizer=optimizer)
        require_optimizer(optimizer, sweep.values)
        stream = stream_of(source, batch)
        prompt = prompt_shape(task, source, record, key)
        answer_count = require_prediction(member, task, prompt)
        draws = not (isinstance(source, Fixed) and source.shared is not None)
        draws |= record.shared is None and record.held_out != 0
        if draws:
            require_randomness(task, count=2 if isinstance(source, Fresh) else None)
        require_effect(sweep.values, task=task, predictor=member, prompt=prompt, key=key, draws=draws)

        members = members.crossed(sweep.arrays)
        params, frozen, static = partition(members, sweep.values, trainable)
        program = Program(
            static=static,
            task=task,
            optimizer=comparable(optimizer),
            rules=until.rules,
            stream=stream,
            data=None if isinstance(source, Fresh) else source.shared,
            positions=chosen_positions(positions, prompt.positions, answer_count),
            total=prompt.positions,
        )
        _require_targets(program, record, prompt, devices if members.size == 1 else 1)
        constants = member_constants(members, sweep.values, frozen, task, source, key=key)
        held_out = held_out_prompts(record, task, constants, key)
        plan = Plan(program, constants, params, members, until.steps, record, held_out, key, prompt)
    return train(plan, mode=sweep.mode, devices=devices, store=store)


def _require_targets(program: Program, record: Record, prompt: Any, shares: int) -> None:
    """Raise if fixed prompts have no target at the positions, or if a batch of prompts with a mask has shares."""
    for name, prompts in (("data", program.data), ("held_out", record.shared)):
        if prompts is not None:
            require_scored(name, program.task, prompts, program.positions, prompt.positions)
    if shares > 1 and eqx.filter_eval_shape(scored_positions, prompt) is not None:
        requirement = "1 for prompts with a mask, because parts of a batch differ in their number of targets"
        raise expected("devices", requirement, shares)
