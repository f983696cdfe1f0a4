"""The host's side of a run: stretches of steps, records, checkpoints, progress, and nothing inside a stretch."""

import contextlib
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from icllab.core.errors import EnvironmentFault, InputError
from icllab.training import checkpoints as checkpoint_files
from icllab.training import progress as bars
from icllab.training.autotune import Way, choose, resumed
from icllab.training.checkpoints import Checkpoints, CheckpointStore, configuration, named, restored, wanted_versions
from icllab.training.devices import forget, out_of_memory
from icllab.training.ensembles import Ensemble
from icllab.training.loop import CAPACITY, Constants, State, advanced, evaluated, sound_members, started
from icllab.training.plans import Plan
from icllab.training.records import Records
from icllab.training.runs import Run, Trajectory
from icllab.training.sharding import advanced_on, placed
from icllab.training.stopping import DIVERGED, RUNNING, STATUS


def repaired(replay: Callable[[Array], State], after: State, first: int, last: int) -> State:
    """``after``, with every member that has lost its parameters as it was before the update that lost them.

    Args:
        replay: The state when each member makes only the steps from ``first`` before its limit, ``[member]``.
        after: The state at step ``last``, as it came out of the loop.
        first: The stretch's first step, before which all parameters are finite.
        last: The step after its last.
    """
    lost = ~np.asarray(sound_members(after))
    if not lost.any():
        return after
    # Finite after the steps before `low`, not after those before `high`.
    low = np.full(lost.shape, first, np.int32)
    high = np.where(lost, last, first + 1).astype(np.int32)
    while (high - low > 1).any():
        middle = (low + high) // 2
        sound = np.asarray(sound_members(replay(jnp.asarray(middle))))
        low, high = np.where(sound, middle, low), np.where(sound, high, middle)
    limit = jnp.asarray(low)
    before = eqx.tree_at(
        lambda state: (state.status, state.ended), replay(limit), (jnp.full_like(after.status, DIVERGED), limit)
    )
    chosen = jnp.asarray(lost)
    return jax.tree.map(lambda a, b: jnp.where(chosen.reshape((-1,) + (1,) * (a.ndim - 1)), a, b), before, after)


STRETCH_SECONDS = 1.0  # how long the host may not look

_Found = TypeVar("_Found")


class _Loop:
    """A run under way: the state after ``step`` steps, and what has been written down."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.step, self.timings = plan, 0, {}
        self.way, self._program, self._constants = Way("map", plan.members.size), plan.program, plan.constants
        self.state = _settled(started(plan.program, plan.constants, plan.params))
        self.records = Records(plan.shape)
        self.kept: dict[int, Any] = {}
        self.seconds = 0.0

    def take(self, way: Way) -> None:
        """Go on like this from here."""
        self.way, self.state = way, _settled(self.state)
        self._program, self._constants = self.plan.program, self._placed(self.plan.constants)
        if way.division is not None:
            arrays, rest = eqx.partition(self._program, eqx.is_array)
            self._program = eqx.combine(jax.device_put(arrays, way.division.sharding(divided=False)), rest)

    def _placed(self, tree: Any) -> Any:
        return tree if self.way.division is None else placed(self.way.division, tree)

    def advance(self, last: int, limit: jax.Array | None = None) -> tuple[State, jax.Array]:
        """State and losses after the steps up to ``last``; the loop itself stays where it is."""
        size, block = self.plan.members.size, self.way.block
        limit = jnp.full((size,), 2**31 - 1, jnp.int32) if limit is None else limit
        if block >= size:
            return self._advance(self._constants, self.state, last, limit)
        states, losses, every = [], [], (self.plan.constants, _settled(self.state), limit)
        for first in range(0, size, block):
            rows = np.minimum(np.arange(first, first + block), size - 1)  # the last again: blocks are of one size
            constants, state, until = jax.tree.map(lambda leaf, rows=rows: leaf[rows], every)
            after, kept = self._advance(self._placed(constants), state, last, until)
            states.append(_settled(after))
            losses.append(np.asarray(kept))
        after = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[:size], *states)
        return after, jnp.asarray(np.concatenate(losses, axis=1)[:, :size])

    def _advance(self, constants: Constants, state: State, last: int, limit: jax.Array) -> tuple[State, jax.Array]:
        """As :meth:`advance`, of members that are computed at once; what they have to themselves is in its place."""
        division, mode, begin, end = self.way.division, self.way.mode, jnp.int32(self.step), jnp.int32(last)
        if division is None:
            return advanced(self._program, mode, constants, state, begin, end, limit)
        size = limit.shape[0]
        state, limit = placed(division, (state, limit))
        begin, end = jax.device_put((begin, end), division.sharding(divided=False))
        after, losses = advanced_on(division, self._program, mode, constants, state, begin, end, limit)
        if losses.shape[1] == size:
            return after, losses
        return jax.tree.map(lambda leaf: leaf[:size], after), losses[:, :size]

    def attempt(self, steps: int) -> None:
        """Make so many steps and keep none of them."""
        self.within_memory(lambda: jax.block_until_ready(self.advance(self.step + steps)[0].status))

    def within_memory(self, computed: Callable[[], _Found]) -> _Found:
        """What is computed, with half as many members side by side as long as a device has no memory for them."""
        while True:
            try:
                return computed()
            except Exception as error:
                if not out_of_memory(error):
                    raise
                if self.way.member_block == 1:
                    message = " ".join(str(error).split())[:200]
                    raise EnvironmentFault(
                        f"icl.fit: expected memory for one member at a time, got {message}; try a smaller batch"
                    ) from error
            forget()  # outside of the handler, whose traceback holds the arrays
            self.take(replace(self.way, block=-(-self.way.block // 2)))
            message = f"icl.fit: a device was out of memory: {self.way.member_block} members side by side from now on"
            warnings.warn(message, stacklevel=2)

    def go(self, last: int) -> None:
        """Make the steps up to ``last`` and write down what is due."""
        clock = time.perf_counter()
        after, losses, ended = self.within_memory(lambda: self._after(last))
        for step in self.due:
            if self.step <= step < last:
                present = (ended < 0) | (ended >= step)
                self.records.losses[step] = np.where(present[:, None], losses[step - self.step], np.nan)
        for member in np.flatnonzero((ended >= self.step) & (ended < last)):
            self.records.final[member] = losses[ended[member] - self.step, member]
        self.state, self.step = after, last
        self.seconds += time.perf_counter() - clock

    def _after(self, last: int) -> tuple[State, np.ndarray, np.ndarray]:
        """The state after the steps up to ``last``, their losses, and when members ended."""
        after, losses = self.advance(last)
        after = repaired(lambda limit: self.advance(last, limit)[0], after, self.step, last)
        return after, np.asarray(losses), np.asarray(after.ended)

    @property
    def due(self) -> list[int]:
        """The steps to be recorded."""
        return self.plan.record.due(self.plan.steps)

    @property
    def running(self) -> int:
        """How many members still make steps."""
        return int(np.sum(np.asarray(self.state.status) == RUNNING))

    def evaluate(self) -> tuple[np.ndarray, np.ndarray]:
        """Held-out loss of the present parameters, and its standard error."""
        plan = self.plan
        shared = plan.record.shared is not None
        params = self.state.params if self.way.division is None else _settled(self.state).params  # on one device
        mean, error = evaluated(plan.program, plan.constants, params, plan.held_out, shared)
        return np.asarray(mean), np.asarray(error)

    def look(self, checkpoints: Checkpoints | None) -> None:
        """What is due at the present step besides the losses of the steps themselves."""
        if self.plan.held_out is not None and self.step in self.due and self.step not in self.records.held_out:
            self.records.held_out[self.step], self.records.held_out_error[self.step] = self.evaluate()
        if self.step in self.plan.record.keep and self.step not in self.kept:
            self.kept[self.step] = jax.tree.map(np.asarray, self.state.params)
            if checkpoints is not None:
                checkpoints.write_kept(self.step, named(self.kept[self.step], "params"))

    def boundaries(self) -> list[int]:
        """Where the host must look: the last step, steps of held-out losses, and those to keep."""
        return sorted({self.plan.steps, *self.plan.record.keep, *(self.due if self.plan.held_out is not None else [])})

    def save(self, checkpoints: Checkpoints) -> None:
        """Write a checkpoint of the present step."""
        arrays = named(self.state, "state") | {f"records.{k}": v for k, v in self.records.arrays().items()}
        checkpoints.write(self.step, {"versions": wanted_versions(), "way": self.way.described()}, arrays)

    def resume(self, checkpoints: Checkpoints) -> dict[str, Any] | None:
        """Go back to the newest sound checkpoint, if there is one: the way in which its run went."""
        found = checkpoints.latest(self.plan.steps)
        if found is None:
            return None
        header, arrays = found
        path = checkpoints.path(header["step"])
        self.state = restored(self.state, "state", arrays, path)
        self.records = Records.of(
            {k.removeprefix("records."): v for k, v in arrays.items() if k.startswith("records.")}
        )
        self.step = header["step"]
        for step in self.plan.record.keep:
            stored = checkpoints.read_kept(step)
            if stored is not None:
                kept = restored(self.plan.params, "params", stored, checkpoints.path(step, "kept"))
                self.kept[step] = jax.tree.map(np.asarray, kept)
            elif step < self.step:
                raise InputError(
                    f"keep: expected steps from {self.step} on, where the run in {checkpoints.root} stands, "
                    f"got {step}; choose another store"
                )
        earlier = {"mode": header.get("mode"), "block": self.plan.members.size, "division": header.get("division")}
        return header.get("way", earlier)  # version 0.1 wrote the mode alone


def train(plan: Plan, *, mode: str, devices: int | str, store: CheckpointStore | None) -> Run:
    """Run a plan to its end."""
    with not_begun():
        loop, checkpoints, kept = _Loop(plan), None, None
        if store is not None:
            checkpoints = Checkpoints(store.path, configuration(plan, loop.state))
            stored = loop.resume(checkpoints)
            kept = None if stored is None else resumed(plan, stored, mode, devices, checkpoints.root)
    begun = loop.step
    try:
        if loop.running and loop.step < plan.steps:
            loop.timings = choose(loop, mode, devices, kept)
        else:
            loop.take(kept or Way("map" if mode == "auto" else mode, plan.members.size))
        with bars.shown(plan.steps, loop.step, plan.members.size, plan.record.progress) as show:
            _drive(loop, checkpoints, store.seconds if store else 0.0, show)
        loop.state = _settled(loop.state)  # the trained arrays are on one device
        members, run = _finished(loop, begun)
        if checkpoints is not None:
            checkpoint_files.write(checkpoints.root, run, members, loop.state.params)
    except KeyboardInterrupt:
        raise _interrupted(loop, checkpoints, begun) from None
    return run


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C in :func:`icllab.fit`; its one line says what is kept and how to go on."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows of it."""
        return [str(self)]


@contextlib.contextmanager
def not_begun() -> Iterator[None]:
    """What comes before the first step: Ctrl-C within says that nothing is lost, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        message = "icl.fit: interrupted before it began; nothing is lost, the same call starts again"
        raise TrainingInterrupted(message) from None


def _interrupted(loop: _Loop, checkpoints: Checkpoints | None, begun: int) -> TrainingInterrupted:
    """Keep the present state, where there is a store and steps were made since ``begun``, and say so."""
    message = f"icl.fit: interrupted after {loop.step} of {loop.plan.steps} steps; "
    if checkpoints is None:
        return TrainingInterrupted(message + "nothing is kept; with store='DIR' the same call goes on where it stood")
    if loop.step > begun:
        loop.save(checkpoints)
    if not loop.step:
        return TrainingInterrupted(message + "nothing is kept yet, the same call starts again")
    return TrainingInterrupted(message + f"they are kept in {checkpoints.root}, the same call goes on")


def _drive(loop: _Loop, checkpoints: Checkpoints | None, apart: float, show: bars.Progress) -> None:
    """Stretches of about a second until all steps are made or no member is left; checkpoints ``apart`` seconds."""
    stretch, saved_at, saved = 8, time.monotonic(), loop.step
    bounds = loop.boundaries()
    loop.look(checkpoints)
    while loop.step < loop.plan.steps and loop.running:
        last = min(loop.step + stretch, *(b for b in bounds if b > loop.step))
        steps, clock = last - loop.step, time.perf_counter()
        loop.go(last)
        spent = max(time.perf_counter() - clock, 1e-9)
        stretch = int(np.clip(STRETCH_SECONDS * steps / spent, 1, min(4 * stretch, CAPACITY)))
        loop.look(checkpoints)
        show(loop.step, float(np.mean(np.asarray(loop.state.loss))), loop.running)
        if checkpoints is not None and time.monotonic() - saved_at >= apart:
            loop.save(checkpoints)
            saved_at, saved = time.monotonic(), loop.step
    if checkpoints is not None and (saved != loop.step or not checkpoints.steps()):
        loop.save(checkpoints)


def _settled(state: State) -> State:
    """Without weak types, as a state that was read from a file: the same program runs both."""

    def settled(leaf: Any) -> Any:
        return leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else jnp.asarray(np.asarray(leaf))

    return jax.tree.map(settled, state)


def _finished(loop: _Loop, begun: int) -> tuple[Ensemble, Run]:
    """The trained members, and the run as a value."""
    plan, state, records = loop.plan, loop.state, loop.records
    status, ended = np.asarray(state.status), np.asarray(state.ended)
    reached = plan.steps if loop.running else int(ended.max())
    final = np.where((ended == reached)[:, None], records.final, np.nan)
    if loop.running:
        # The losses of the step after the last, without its update: what a longer run records there.
        losses = np.asarray(loop.within_memory(lambda: loop.advance(reached + 1)[1][0]))
        final = np.where((status == RUNNING)[:, None], losses, final)
    steps = [*(step for step in loop.due if step < reached), reached]
    dims = ("member", "step", "position")
    variables: dict[str, Any] = {
        "training_loss": (dims, records.table(records.losses | {reached: final}, steps)),
        "status": ("member", np.asarray(STATUS)[status]),
        "ended": ("member", np.where(ended < 0, reached, ended)),
    }
    if plan.held_out is not None:
        mean, error = loop.evaluate()
        variables["held_out_loss"] = (dims, records.table(records.held_out | {reached: mean}, steps))
        variables["held_out_error"] = (dims, records.table(records.held_out_error | {reached: error}, steps))
    header = {
        "mode": loop.way.mode,
        "member_block": loop.way.member_block,
        "division": None if loop.way.division is None else loop.way.division.described(),
        "members": plan.members.size,
        "generator": str(jax.random.key_impl(plan.key)),
        "batch": plan.program.stream.batch,
        "prompts": plan.program.stream.name,
        "steps": plan.steps,
        "resumed_at": begun,
        "timings": loop.timings,
        "seconds": loop.seconds,
        "versions": wanted_versions(),
    }
    coordinates = {name: ("member", values) for name, values in plan.members.coordinates.items()}
    dataset = xr.Dataset(
        variables,
        coords={"step": steps, "position": list(plan.program.positions), **coordinates},
        attrs={"training": json.dumps(header)},
    )
    rest = eqx.combine(plan.constants.frozen, plan.program.static)
    trained = Ensemble(eqx.combine(state.params, rest), plan.members.coordinates)
    kept = tuple(step for step in plan.record.keep if step in loop.kept)
    return trained, Run(trained, dataset, header, Trajectory(kept, loop.kept, rest, plan.members.coordinates))
