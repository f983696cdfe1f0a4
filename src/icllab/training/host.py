"""The host's side of a run: stretches of steps, records, checkpoints, progress, and nothing inside a stretch."""

import json
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from icllab.core.errors import InputError
from icllab.training import finished
from icllab.training import progress as bars
from icllab.training.ensembles import Ensemble
from icllab.training.identity import configuration
from icllab.training.loop import CAPACITY, State, advanced, evaluated, started
from icllab.training.modes import chosen_mode
from icllab.training.plans import Plan
from icllab.training.records import Records
from icllab.training.repairs import repaired
from icllab.training.runs import Run
from icllab.training.stopping import RUNNING, STATUS
from icllab.training.store import Checkpoints, CheckpointStore, named, restored, wanted_versions
from icllab.training.trajectory import Trajectory

STRETCH_SECONDS = 1.0  # how long the host may not look


class _Loop:
    """A run under way: the state after ``step`` steps, and what has been written down."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.step, self.mode, self.timings = plan, 0, "", {}
        self.state = _settled(started(plan.program, plan.own, plan.params))
        self.records = Records(plan.shape)
        self.kept: dict[int, Any] = {}
        self.seconds = 0.0

    def advance(self, last: int, limit: jax.Array | None = None) -> tuple[State, jax.Array]:
        """State and losses after the steps up to ``last``; the loop itself stays where it is."""
        plan = self.plan
        unlimited = jnp.full((plan.members.size,), 2**31 - 1, jnp.int32)
        return advanced(
            plan.program,
            self.mode,
            plan.own,
            self.state,
            jnp.int32(self.step),
            jnp.int32(last),
            unlimited if limit is None else limit,
        )

    def go(self, last: int) -> None:
        """Make the steps up to ``last`` and write down what is due."""
        clock = time.perf_counter()
        after, losses = self.advance(last)
        after = repaired(lambda limit: self.advance(last, limit)[0], after, self.step, last)
        losses, ended = np.asarray(losses), np.asarray(after.ended)
        for step in self.due:
            if self.step <= step < last:
                present = (ended < 0) | (ended >= step)
                self.records.losses[step] = np.where(present[:, None], losses[step - self.step], np.nan)
        for member in np.flatnonzero((ended >= self.step) & (ended < last)):
            self.records.final[member] = losses[ended[member] - self.step, member]
        self.state, self.step = after, last
        self.seconds += time.perf_counter() - clock

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
        mean, error = evaluated(plan.program, plan.own, self.state.params, plan.held_out, shared)
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
        checkpoints.write(self.step, {"versions": wanted_versions(), "mode": self.mode}, arrays)

    def resume(self, checkpoints: Checkpoints) -> None:
        """Go back to the newest sound checkpoint, if there is one."""
        found = checkpoints.latest(self.plan.steps)
        if found is None:
            return
        header, arrays = found
        path = checkpoints.path(header["step"])
        self.state = restored(self.state, "state", arrays, path)
        self.records = Records.of(
            {k.removeprefix("records."): v for k, v in arrays.items() if k.startswith("records.")}
        )
        self.step, self.mode = header["step"], header["mode"]
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


def train(plan: Plan, *, mode: str, store: CheckpointStore | None) -> Run:
    """Run a plan to its end."""
    loop = _Loop(plan)
    checkpoints = None
    if store is not None:
        checkpoints = Checkpoints(store.path, configuration(plan, loop.state))
        loop.resume(checkpoints)
        if loop.mode and mode not in ("auto", loop.mode):
            raise InputError(
                f"mode: expected {loop.mode!r}, in which the run in {store.path} began, got {mode!r}; "
                "choose another store"
            )
    begun = loop.step
    if loop.running and loop.step < plan.steps:
        loop.mode, loop.timings = chosen_mode(
            loop.mode or mode, plan.program, plan.own, loop.state, loop.step, plan.members.size
        )
    loop.mode = loop.mode or ("map" if mode == "auto" else mode)
    with bars.shown(plan.steps, loop.step, plan.members.size, plan.record.progress) as show:
        try:
            _drive(loop, checkpoints, store.seconds if store else 0.0, show)
        except KeyboardInterrupt:
            raise _interrupted(loop, checkpoints) from None
    members, run = _finished(loop, begun)
    if checkpoints is not None:
        finished.write(checkpoints.root, run, members, loop.state.params)
    return run


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C in :func:`icllab.fit`; its one line says what is kept and how to go on."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows of it."""
        return [str(self)]


def _interrupted(loop: _Loop, checkpoints: Checkpoints | None) -> TrainingInterrupted:
    """Keep the present state, where there is a store, and say so."""
    said = f"icl.fit: interrupted after {loop.step} of {loop.plan.steps} steps; "
    if checkpoints is None:
        return TrainingInterrupted(said + "nothing is kept; with store='DIR' the same call goes on where it stood")
    loop.save(checkpoints)
    return TrainingInterrupted(said + f"they are kept in {checkpoints.root}, the same call goes on")


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
        losses = np.asarray(loop.advance(reached + 1)[1][0])
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
        "mode": loop.mode,
        "member_block": plan.members.size if loop.mode == "vmap" else 1,
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
    rest = eqx.combine(plan.own.frozen, plan.program.static)
    trained = Ensemble(eqx.combine(state.params, rest), plan.members.coordinates)
    kept = tuple(step for step in plan.record.keep if step in loop.kept)
    return trained, Run(trained, dataset, header, Trajectory(kept, loop.kept, rest, plan.members.coordinates))
