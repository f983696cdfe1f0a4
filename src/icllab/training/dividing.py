"""The host's side of a run on several devices: how many, what each has, and the rest as on one."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from icllab.core.errors import InputError, expected
from icllab.training import finished
from icllab.training import progress as bars
from icllab.training.devices import Along, Division
from icllab.training.divided import advanced_on, padded
from icllab.training.host import _drive, _finished, _interrupted, _Loop, _settled
from icllab.training.identity import configuration
from icllab.training.loop import State
from icllab.training.modes import timed
from icllab.training.plans import Plan
from icllab.training.runs import Run
from icllab.training.store import Checkpoints, CheckpointStore, named, wanted_versions


class _Checkpoints(Checkpoints):
    """Checkpoints that say how the run was divided; ``icl.fit`` warns of those that were."""

    division: Mapping[str, Any] | None = None

    def _require_same(self, header: Mapping[str, Any], step: int) -> None:
        self.division = header.get("division")
        versions = {name: value for name, value in header["versions"].items() if name != "divided"}
        super()._require_same({**header, "versions": versions}, step)


class _DividedLoop(_Loop):
    """A run under way on several devices, or on one: ``division`` is None."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.division: Division | None = None
        self._program, self._own = plan.program, plan.own

    def divide(self, division: Division | None) -> None:
        """Go on like this from here."""
        self.division = division
        self.state = _settled(self.state)
        if division is not None:
            arrays, rest = eqx.partition(self.plan.program, eqx.is_array)
            self._program = eqx.combine(jax.device_put(arrays, division.sharding(divided=False)), rest)
            self._own = self._placed(self.plan.own)

    def _placed(self, tree: Any) -> Any:
        assert self.division is not None
        members = self.division.along == "member"
        tree = padded(tree, self.plan.members.size, self.division.count) if members else tree
        return jax.device_put(tree, self.division.sharding(divided=members))

    def advance(self, last: int, limit: jax.Array | None = None) -> tuple[State, jax.Array]:
        """State and losses after the steps up to ``last``; the loop itself stays where it is."""
        if self.division is None:
            return super().advance(last, limit)
        size = self.plan.members.size
        unlimited = jnp.full((size,), 2**31 - 1, jnp.int32)
        state, until = self._placed((self.state, unlimited if limit is None else limit))
        everywhere = self.division.sharding(divided=False)
        begin, end = (jax.device_put(jnp.int32(step), everywhere) for step in (self.step, last))
        after, losses = advanced_on(self.division, self._program, self.mode, self._own, state, begin, end, until)
        if losses.shape[1] == size:
            return after, losses
        return jax.tree.map(lambda leaf: leaf[:size], after), losses[:, :size]

    def evaluate(self) -> Any:
        """Held-out loss, on one device."""
        divided, self.state = self.state, _settled(self.state)
        found = super().evaluate()
        self.state = divided
        return found

    def save(self, checkpoints: Checkpoints) -> None:
        """Write a checkpoint of the present step."""
        if self.division is None:
            return super().save(checkpoints)
        arrays = named(self.state, "state") | {f"records.{k}": v for k, v in self.records.arrays().items()}
        versions = wanted_versions() | {"divided": str(self.division)}
        header = {"versions": versions, "mode": self.mode, "division": self.division.described()}
        return checkpoints.write(self.step, header, arrays)


def train_divided(plan: Plan, *, mode: str, store: CheckpointStore | None, devices: int | None) -> Run:
    """Run a plan to its end on so many devices; None: as many as a short timing finds to be best."""
    loop = _DividedLoop(plan)
    checkpoints = None
    if store is not None:
        checkpoints = _Checkpoints(store.path, configuration(plan, loop.state))
        loop.resume(checkpoints)
    if loop.mode:
        assert checkpoints is not None
        _keep(loop, checkpoints, mode, devices)
    begun = loop.step
    if loop.running and loop.step < plan.steps:
        _choose(loop, mode, devices)
    loop.mode = loop.mode or ("map" if mode == "auto" else mode)
    with bars.shown(plan.steps, loop.step, plan.members.size, plan.record.progress) as show:
        try:
            _drive(loop, checkpoints, store.seconds if store else 0.0, show)
        except KeyboardInterrupt:
            raise _interrupted(loop, checkpoints) from None
    loop.state = _settled(loop.state)  # the trained arrays are on one device, as those of `icl.fit`
    members, run = _finished(loop, begun)
    run = _described(run, loop.division)
    if checkpoints is not None:
        finished.write(checkpoints.root, run, members, loop.state.params)
    return run


def _keep(loop: _DividedLoop, checkpoints: _Checkpoints, mode: str, devices: int | None) -> None:
    """Go on as the run began; what was asked for and is otherwise is refused."""
    began = checkpoints.division or {"devices": 1, "along": "batch"}
    for name, kept, asked in (("mode", loop.mode, mode), ("devices", began["devices"], devices)):
        if asked not in (None, "auto", kept):
            raise InputError(
                f"{name}: expected {kept!r}, with which the run in {checkpoints.root} began, got {asked!r}; "
                "choose another store"
            )
    here = jax.local_devices()
    if began["devices"] > len(here):
        raise InputError(
            f"devices: expected {began['devices']}, with which the run in {checkpoints.root} began, this process has "
            f"{len(here)}; training.split_processor({began['devices']}) makes them of a processor's cores"
        )
    if began["devices"] > 1:
        loop.divide(Division(began["along"], tuple(here[: began["devices"]])))


def _choose(loop: _DividedLoop, mode: str, devices: int | None) -> None:
    """Set mode and devices: those given or kept, or the fastest in a short timing; nothing it computes is kept."""
    members = loop.plan.members.size
    along: Along = "batch" if members == 1 else "member"
    if loop.mode:
        _time(loop, [loop.mode], several=False)
        return
    modes = ["map", "vmap"] if mode == "auto" and members > 1 else ["map" if mode == "auto" else mode]
    here = tuple(jax.local_devices())
    if devices is not None and devices > 1:
        _require_fitting(loop.plan, along, devices)
        loop.divide(Division(along, here[:devices]))
    several = len(modes) > 1 or (devices is None and len(here) > 1)
    best = _time(loop, modes, several)
    for count in _doublings(loop.plan, along, len(here)) if devices is None else ():
        before = loop.division, loop.mode
        loop.divide(Division(along, here[:count]))
        found = _time(loop, [loop.mode], several)
        if found > best:
            loop.divide(before[0])
            break
        best = found


def _time(loop: _DividedLoop, modes: list[str], several: bool) -> float:
    """The seconds of a step in the fastest of these modes, which is then the loop's."""
    seconds = {}
    for mode in modes:
        loop.mode = mode
        step, compiling = timed(lambda steps: _run(loop, steps), several)
        name = mode if loop.division is None else f"{mode}, {loop.division}"
        loop.timings[name] = {"seconds_per_step": step, "seconds_to_compile": compiling}
        seconds[mode] = step or 0.0
    loop.mode = min(modes, key=lambda mode: seconds[mode])
    return seconds[loop.mode]


def _run(loop: _DividedLoop, steps: int) -> None:
    jax.block_until_ready(loop.advance(loop.step + steps)[0].status)


def _doublings(plan: Plan, along: Along, most: int) -> Iterator[int]:
    """Two devices, four and so on, as many as there are and as can be given a part."""
    count = 2
    while count <= most and (
        count <= plan.members.size if along == "member" else not plan.program.stream.batch % count
    ):
        yield count
        count *= 2


def _require_fitting(plan: Plan, along: Along, devices: int) -> None:
    """Refuse devices that would have nothing to do, or parts of a batch that are not alike."""
    batch, members = plan.program.stream.batch, plan.members.size
    if along == "member" and devices > members:
        raise expected("devices", f"at most {members}, the number of members", devices)
    if along == "batch" and batch % devices:
        divisors = [count for count in range(1, devices + 1) if not batch % count]
        raise expected("devices", f"a divisor of the batch, {batch}", devices, f"{divisors[-1]} is one")


def _described(run: Run, division: Division | None) -> Run:
    """The run, whose header says how it was divided."""
    header = {**run.header, "division": None if division is None else division.described()}
    if division is not None and division.along == "member" and header["mode"] == "vmap":
        header["member_block"] = -(-header["members"] // division.count)
    return dataclasses.replace(run, header=header, dataset=run.dataset.assign_attrs(training=json.dumps(header)))
