"""The host's side of a run: stretches of steps, records, checkpoints and the progress display."""

import contextlib
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from icllab.core import progress
from icllab.core.errors import InputError
from icllab.core.statistics import mean_and_error
from icllab.training.checkpoints import (
    Checkpoints,
    CheckpointStore,
    configuration,
    environment,
    named,
    numerics,
    restored,
)
from icllab.training.ensembles import Ensemble
from icllab.training.finished_runs import write_finished
from icllab.training.loop import CAPACITY, State, advance, evaluate, finite_members, start_members
from icllab.training.plans import Plan
from icllab.training.records import History
from icllab.training.runs import Run, Trajectory
from icllab.training.sharding import Division, advance_on, divide
from icllab.training.stopping import DIVERGED, RUNNING, STATUS

STRETCH_SECONDS = 1.0  # time between two looks of the host
NO_LIMIT = 2**31 - 1


def roll_back(replay: Callable[[jax.Array], State], after: State, first: int, last: int) -> State:
    """Roll back every member whose parameters are no longer finite to the update that lost them.

    Args:
        replay: The state if each member makes only the steps from ``first`` before its limit, ``[member]``.
        after: The state at step ``last``, as it came out of the loop.
        first: The stretch's first step, before which all parameters are finite.
        last: The step after its last.
    """
    nonfinite = ~finite_members(after)
    if not nonfinite.any():
        return after
    # Parameters are finite after the steps before `low`, and not after those before `high`.
    low = np.full(nonfinite.shape, first, np.int32)
    high = np.where(nonfinite, last, first + 1).astype(np.int32)
    while (high - low > 1).any():
        middle = (low + high) // 2
        finite = finite_members(replay(jax.device_put(middle)))
        low, high = np.where(finite, middle, low), np.where(finite, high, middle)
    limit = jax.device_put(low)
    before = eqx.tree_at(
        lambda state: (state.status, state.ended), replay(limit), (jnp.full_like(after.status, DIVERGED), limit)
    )
    mask = jnp.asarray(nonfinite)
    return jax.tree.map(lambda a, b: jnp.where(mask.reshape((-1,) + (1,) * (a.ndim - 1)), a, b), before, after)


class TrainingLoop:
    """A run in progress: the state after ``step`` steps, and its records."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.step, self.seconds = plan, 0, 0.0
        self.state = strong(start_members(plan.program, plan.constants, plan.params))
        self.history = History(plan.shape)
        self.trajectory: dict[int, Any] = {}
        self.due = plan.record.due(plan.steps)
        self.use("map", None)

    def use(self, mode: str, division: Division | None) -> None:
        """Run members in this mode, on these devices."""
        self.mode, self.division = mode, division
        self._program, self._constants = self.plan.program, self.plan.constants
        if division is not None:
            self._program = division.replicate(self._program)
            self._constants = division.place_members(self._constants)

    def advance(self, last: int, limit: jax.Array | None = None) -> tuple[State, jax.Array]:
        """State and losses after the steps up to ``last``; the loop itself does not move."""
        # An array made by NumPy costs no compilation, one made by jax.numpy a program for every shape.
        none = np.full(self.plan.members.size, NO_LIMIT, np.int32)
        first, end, limits = jax.device_put((np.int32(self.step), np.int32(last), none if limit is None else limit))
        values = (self._program, self.mode, self._constants, self.state, first, end, limits)
        return advance(*values) if self.division is None else advance_on(self.division, *values)

    def run_to(self, last: int) -> None:
        """Make the steps up to ``last`` and record losses at their steps."""
        clock = time.perf_counter()
        after, device_losses = self.advance(last)
        after = roll_back(lambda limit: self.advance(last, limit)[0], after, self.step, last)
        losses, ended = np.asarray(device_losses), np.asarray(after.ended)
        for step in self.due:
            if self.step <= step < last:
                present = (ended < 0) | (ended >= step)
                self.history.rows["losses"][step] = np.where(present[:, None], losses[step - self.step], np.nan)
        for member in np.flatnonzero((ended >= self.step) & (ended < last)):
            self.history.final[member] = losses[ended[member] - self.step, member]
        self.state, self.step = after, last
        self.seconds += time.perf_counter() - clock

    @property
    def running(self) -> int:
        """Number of members that have not stopped."""
        return int(np.sum(np.asarray(self.state.status) == RUNNING))

    def evaluate(self) -> tuple[np.ndarray, np.ndarray]:
        """Held-out loss of the present parameters, and its standard error."""
        plan = self.plan
        params = self.state.params if self.division is None else strong(self.state).params  # on one device
        mean, error = evaluate(plan.program, plan.constants, params, plan.held_out, plan.record.shared is not None)
        return np.asarray(mean), np.asarray(error)

    def look(self, checkpoints: Checkpoints | None) -> None:
        """At the requested steps, record the held-out loss and keep the parameters."""
        held_out, errors = self.history.rows["held_out"], self.history.rows["held_out_error"]
        if self.plan.held_out is not None and self.step in self.due and self.step not in held_out:
            held_out[self.step], errors[self.step] = self.evaluate()
        if self.step in self.plan.record.keep and self.step not in self.trajectory:
            self.trajectory[self.step] = jax.tree.map(np.asarray, self.state.params)
            if checkpoints is not None:
                checkpoints.write_kept(self.step, named(self.trajectory[self.step], "params"))

    def save(self, checkpoints: Checkpoints) -> None:
        """Write a checkpoint of the present step."""
        arrays = named(self.state, "state") | {f"records.{k}": v for k, v in self.history.arrays().items()}
        way = {"mode": self.mode, "division": None if self.division is None else self.division.header()}
        checkpoints.write(self.step, {"versions": environment(), "way": way}, arrays)

    def resume(self, checkpoints: Checkpoints) -> Mapping[str, Any] | None:
        """Return to the newest sound checkpoint, and return its mode and division, or None if there is none."""
        checkpoint = checkpoints.latest(self.plan.steps)
        if checkpoint is None:
            return None
        header, arrays = checkpoint
        self.step = header["step"]
        self.state = restored(self.state, "state", arrays, checkpoints.path(self.step))
        self.history = History.from_arrays(
            {name.removeprefix("records."): a for name, a in arrays.items() if name.startswith("records.")}
        )
        for step in self.plan.record.keep:
            params = checkpoints.read_kept(step)
            if params is not None:
                params = restored(self.plan.params, "params", params, checkpoints.path(step, "kept"))
                self.trajectory[step] = jax.tree.map(np.asarray, params)
            elif step < self.step:
                raise InputError(
                    f"keep: expected steps from {self.step} on, where the run in {checkpoints.root} stands, "
                    f"got {step}; choose another store"
                )
        return header.get("way", header)  # version 0.1 wrote the mode alone

    def drive(self, checkpoints: Checkpoints | None, interval: float) -> None:
        """Run stretches of about a second until all steps are made or all members stopped; save every ``interval``."""
        plan, stretch, saved_at, saved_step = self.plan, 8, time.monotonic(), self.step
        bounds = {plan.steps, *plan.record.keep, *(self.due if plan.held_out is not None else [])}
        self.look(checkpoints)
        if self.running and self.step < plan.steps:
            jax.block_until_ready(self.advance(self.step)[0].status)  # compiles
            progress.move_to(self.step)
        while self.step < plan.steps and self.running:
            last = min(self.step + stretch, min(bound for bound in bounds if bound > self.step))
            steps, clock = last - self.step, time.perf_counter()
            self.run_to(last)
            seconds = max(time.perf_counter() - clock, 1e-9)
            stretch = int(np.clip(STRETCH_SECONDS * steps / seconds, 1, min(4 * stretch, CAPACITY)))
            self.look(checkpoints)
            members = "" if plan.members.size == 1 else f", {self.running} of {plan.members.size} members"
            # NaN at positions at which no prompt of the step has a target.
            loss = float(mean_and_error(np.asarray(self.state.loss).ravel())[0])
            progress.move_to(self.step, f"loss {loss:.4g}{members}")
            if checkpoints is not None and time.monotonic() - saved_at >= interval:
                self.save(checkpoints)
                saved_at, saved_step = time.monotonic(), self.step
        if checkpoints is not None and (saved_step != self.step or not checkpoints.steps()):
            self.save(checkpoints)

    def finish(self, start: int) -> Run:
        """The finished run."""
        plan, history, state = self.plan, self.history, strong(self.state)  # the trained arrays are on one device
        status, ended = np.asarray(state.status), np.asarray(state.ended)
        last = plan.steps if self.running else int(ended.max())
        final = np.where((ended == last)[:, None], history.final, np.nan)
        if self.running:
            # The losses of the step after the last, without its update: a longer run records the same.
            losses = np.asarray(self.advance(last + 1)[1])[0]
            final = np.where((status == RUNNING)[:, None], losses, final)
        steps = [*(step for step in self.due if step < last), last]
        dims = ("member", "step", "position")
        variables: dict[str, Any] = {
            "training_loss": (dims, history.table("losses", steps, final)),
            "status": ("member", np.asarray(STATUS)[status]),
            "ended": ("member", np.where(ended < 0, last, ended)),
        }
        if plan.held_out is not None:
            mean, error = self.evaluate()
            variables["held_out_loss"] = (dims, history.table("held_out", steps, mean))
            variables["held_out_error"] = (dims, history.table("held_out_error", steps, error))
        header = {
            "mode": self.mode,
            "division": None if self.division is None else self.division.header(),
            "members": plan.members.size,
            "generator": str(jax.random.key_impl(plan.key)),
            **numerics(),
            "batch": plan.program.stream.batch,
            "prompts": plan.program.stream.name,
            "steps": plan.steps,
            "resumed_at": start,
            "seconds": self.seconds,
            "versions": environment(),
        }
        coordinates = plan.members.coordinates
        dataset = xr.Dataset(
            variables,
            coords={"step": steps, "position": list(plan.program.positions)}
            | {name: ("member", values) for name, values in coordinates.items()},
            attrs={"training": json.dumps(header)},
        )
        untrained = eqx.combine(plan.constants.frozen, plan.program.static)
        steps_kept = tuple(step for step in plan.record.keep if step in self.trajectory)
        trajectory = Trajectory(steps_kept, self.trajectory, untrained, coordinates)
        return Run(Ensemble(eqx.combine(state.params, untrained), coordinates), dataset, header, trajectory)


def train(plan: Plan, *, mode: str, devices: int, store: CheckpointStore | None) -> Run:
    """Run a plan to its end, from its newest checkpoint if there is one."""
    with not_begun():
        loop, checkpoints, header = TrainingLoop(plan), None, None
        if store is not None:
            checkpoints = Checkpoints(store.path, configuration(plan, loop.state))
            header = loop.resume(checkpoints)
        division = divide(devices, members=plan.members.size, batch=plan.program.stream.batch)
        if header is not None:
            mode = _stored_mode(header, mode, devices, store)
        elif mode == "auto":
            mode = default_mode(plan.members.size)
        loop.use(mode, division)
    start = loop.step
    try:
        with progress.shown("training", plan.record.progress):
            progress.stage("", plan.steps, "steps", done=loop.step)
            loop.drive(checkpoints, store.seconds if store else 0.0)
        run = loop.finish(start)
        if checkpoints is not None:
            write_finished(checkpoints.root, run, loop.state.params, plan.prompt)
    except KeyboardInterrupt:
        raise _interrupted(loop, checkpoints, start) from None
    return run


def default_mode(members: int) -> str:
    """Default mode of a run: one member after the other on a processor, side by side on other devices."""
    return "map" if members == 1 or jax.default_backend() == "cpu" else "vmap"


def _stored_mode(header: Mapping[str, Any], mode: str, devices: int, store: Any) -> str:
    """The mode of a stored run; raise if another is requested, and warn if the number of devices differs."""
    if mode not in ("auto", header["mode"]):
        raise InputError(
            f"mode: expected {header['mode']!r}, with which the run in {store.path} began, got {mode!r}; "
            "choose another store"
        )
    count = (header.get("division") or {"devices": 1})["devices"]
    if devices != count:
        warnings.warn(
            f"{store.path}: the run began on {count} device{'s' * (count > 1)}, and goes on with {devices}: "
            "not with the same bits",
            stacklevel=4,
        )
    return header["mode"]


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C in :func:`icllab.fit`; its one-line message says what was kept and how to continue."""

    def _render_traceback_(self) -> list[str]:
        """Lines of the traceback in a notebook."""
        return [str(self)]


@contextlib.contextmanager
def not_begun() -> Iterator[None]:
    """Turn Ctrl-C before the first step into a message that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        message = "icl.fit: interrupted before it began; nothing is lost, the same call starts again"
        raise TrainingInterrupted(message) from None


def _interrupted(loop: TrainingLoop, checkpoints: Checkpoints | None, start: int) -> TrainingInterrupted:
    """Save the present state if there is a store and steps were made since ``start``; return the error that says so."""
    message = f"icl.fit: interrupted after {loop.step} of {loop.plan.steps} steps; "
    if checkpoints is None:
        return TrainingInterrupted(message + "nothing is kept; with store='DIR' the same call goes on where it stood")
    if loop.step > start:
        loop.save(checkpoints)
    if not loop.step:
        return TrainingInterrupted(message + "nothing is kept yet, the same call starts again")
    return TrainingInterrupted(message + f"they are kept in {checkpoints.root}, the same call goes on")


def strong(state: State) -> State:
    """Copy a state without weak types, as if read from a file, so that one program runs both."""

    def copy(leaf: Any) -> Any:
        return leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else jax.device_put(np.asarray(leaf))

    return jax.tree.map(copy, state)
