"""Training on several devices of one process: the cores of a processor, or several GPUs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected, require_integer, require_key
from icllab.core.prompt import Prompt
from icllab.training.dividing import train_divided
from icllab.training.ensembles import ensemble_of
from icllab.training.loop import Program
from icllab.training.minibatches import Fixed, Fresh, source_of, stream_of
from icllab.training.objective import Positions, chosen_positions, require_prediction
from icllab.training.plans import Plan, held_out_prompts, own_of, parts, prompt_of
from icllab.training.records import Record
from icllab.training.runs import Run
from icllab.training.stopping import Until
from icllab.training.store import CheckpointStore
from icllab.training.sweeps import Sweep, require_optimizer, require_places

_ADAM = optax.adam(1e-3)  # one object: another would compile the loop again


def fit_parallel(
    predictor: Any,
    task: Any,
    *,
    key: PRNGKeyArray,
    devices: int | None = None,
    sweep: Mapping[str, Sequence[float] | np.ndarray] | Sweep | None = None,
    store: str | Path | CheckpointStore | None = None,
    **settings: Any,
) -> Run:
    r"""As :func:`icllab.fit <icllab.training.fitting.fit>`, on several devices of this process.

    A single member's batch is divided: each device draws its part of a step's prompts, and the update is that of the
    mean gradient :math:`\frac1D \sum_j g_j`, which is the gradient of the whole batch. Several members are dealt out,
    as many to each device; where their number does not divide, the last is computed more than once. Prompts are those
    of ``icl.fit``, and one step agrees with its to rounding.

    ``run.header["division"]`` says how many devices it was and along what, ``run.header["timings"]`` what was timed. A
    run that is resumed from its store keeps both.

    Args:
        predictor: As ``icl.fit``.
        task: As ``icl.fit``.
        key: Key of the prompts.
        devices: How many, of ``jax.local_devices()``; a divisor of the batch, or at most the number of members. None:
            one, two, four and so on are timed for a moment, as long as more are faster.
        sweep: As ``icl.fit``; a :class:`Sweep`'s mode is that on each device.
        store: As ``icl.fit``.
        **settings: All other keyword arguments of ``icl.fit``: ``steps``, ``batch``, ``optimizer``, ``data``,
            ``positions``, ``record``, ``trainable``.

    Raises:
        InputError: An argument does not fit; or the store holds another run, or one on more devices than there are.
        EnvironmentFault: The disk refuses; the last checkpoint stands.
    """
    sweep = sweep if isinstance(sweep, Sweep) else Sweep({} if sweep is None else sweep)
    store = store if isinstance(store, CheckpointStore | None) else CheckpointStore(store)
    if devices is not None:
        require_integer("devices", devices)
        here = len(jax.local_devices())
        if devices > here:
            hint = "training.split_processor() makes devices of a processor's cores"
            raise expected("devices", f"at most {here}, as this process has", devices, hint)
    plan = planned(predictor, task, key=key, sweep=sweep, **settings)
    return train_divided(plan, mode=sweep.mode, store=store, devices=devices)


def planned(
    predictor: Any,
    task: Any,
    *,
    steps: int | Until,
    key: PRNGKeyArray,
    sweep: Sweep,
    batch: int | None = 256,
    optimizer: Any = _ADAM,
    data: Prompt | int | Fresh | Fixed | None = None,
    positions: Positions = "every",
    record: int | str | Iterable[int] | Record = 16,
    trainable: Callable[[Any], Any] | None = None,
) -> Plan:
    """What ``icl.fit`` does before the first step: arguments checked and put together."""
    require_key(key)
    until = steps if isinstance(steps, Until) else Until(steps)
    source = source_of(data)
    record = record if isinstance(record, Record) else Record(record)
    record.require_within(until.steps)
    members = ensemble_of(predictor)
    one = members.member(0)
    require_places(sweep.values, task=task, predictor=one, optimizer=optimizer)
    require_optimizer(optimizer, sweep.values)
    stream = stream_of(source, batch)
    prompt = prompt_of(task, source, record, key)
    answered = require_prediction(one, task, prompt)
    members = members.crossed(sweep.arrays)
    params, frozen, static = parts(members, sweep.values, trainable)
    program = Program(
        static=static,
        task=task,
        optimizer=optimizer,
        rules=until.rules,
        stream=stream,
        data=None if isinstance(source, Fresh) else source.shared,
        positions=chosen_positions(positions, prompt.positions, answered),
        total=prompt.positions,
    )
    own = own_of(members, sweep.values, frozen, task, source, key=key)
    held_out = held_out_prompts(record, task, own, key)
    return Plan(program, own, params, members, until.steps, record, held_out, key)
