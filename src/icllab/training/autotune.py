"""How members are run: one after the other or side by side, how many at once, on which devices; by a short timing."""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax

from icllab.core.errors import InputError, expected
from icllab.training.devices import Division
from icllab.training.loop import CAPACITY
from icllab.training.plans import Plan

SECONDS = 0.3  # how long each mode is tried, its compilation apart


@dataclass(frozen=True)
class Way:
    """How the members of a run are run.

    Attributes:
        mode: ``"map"``: one after the other; ``"vmap"``: side by side.
        block: How many are computed at once, on all devices together.
        division: What each of several devices has; None: there is one.
    """

    mode: str
    block: int
    division: Division | None = None

    def __str__(self) -> str:
        return self.mode if self.division is None else f"{self.mode}, {self.division}"

    @property
    def member_block(self) -> int:
        """How many members a device has side by side."""
        if self.mode == "map":
            return 1
        if self.division is None or self.division.along == "batch":
            return self.block
        return -(-self.block // self.division.count)

    def described(self) -> dict[str, Any]:
        """For the header of a checkpoint; :func:`resumed` reads it."""
        division = None if self.division is None else self.division.described()
        return {"mode": self.mode, "block": self.block, "division": division}


def resumed(plan: Plan, stored: Mapping[str, Any], mode: str, devices: int | str, root: Path) -> Way:
    """How a stored run goes on: as it began; or, with a warning, on another number of devices that was asked for."""
    if mode not in ("auto", stored["mode"]):
        raise InputError(
            f"mode: expected {stored['mode']!r}, with which the run in {root} began, got {mode!r}; choose another store"
        )
    began = 1 if stored["division"] is None else stored["division"]["devices"]
    available = jax.local_devices()
    if devices == "auto" and began > len(available):
        raise InputError(
            f"devices: expected {began}, with which the run in {root} began, this process has {len(available)}; "
            f"training.split_processor({began}) makes them of a processor's cores, devices={len(available)} uses these"
        )
    if devices not in ("auto", began):
        warnings.warn(
            f"{root}: the run began on {began} device{'s' * (began > 1)}, and goes on with {devices}: "
            "not with the same bits",
            stacklevel=4,
        )
    return Way(stored["mode"], stored["block"], _division(plan, began if devices == "auto" else devices))


@runtime_checkable
class Loop(Protocol):
    """What is timed: a run under way."""

    plan: Plan
    way: Way

    def take(self, way: Way) -> None:
        """Go on like this."""
        ...

    def attempt(self, steps: int) -> None:
        """Make so many steps and keep none of them."""
        ...


def choose(loop: Loop, mode: str, devices: int | str, kept: Way | None) -> dict[str, Any]:
    """Let a loop go on as it began, as was asked, or in the way that is fastest in a short timing; what was timed.

    ``"auto"`` as mode tries both, and ``"auto"`` as devices then one, two, four and so on, as long as more are faster.
    The programs are those of the run itself: the winner is not compiled again.

    Returns:
        For each way that was tried, seconds per step of all members and seconds to compile.
    """
    timings: dict[str, Any] = {}
    if kept is not None:
        _fastest(loop, [kept], timings, several=False)
        return timings
    members = loop.plan.members.size
    division = _division(loop.plan, 1 if devices == "auto" else devices)
    modes = ("map", "vmap") if mode == "auto" and members > 1 else ("map" if mode == "auto" else mode,)
    counts = list(_doublings(loop.plan, len(jax.local_devices()))) if devices == "auto" else []
    several = len(modes) + len(counts) > 1
    best = _fastest(loop, [Way(one, members, division) for one in modes], timings, several=several)
    for count in counts:
        before = loop.way
        seconds = _fastest(loop, [Way(before.mode, members, _division(loop.plan, count))], timings, several=several)
        if seconds > best:
            loop.take(before)
            break
        best = seconds
    return timings


def _fastest(loop: Loop, ways: list[Way], timings: dict[str, Any], *, several: bool) -> float:
    """The seconds of a step in the fastest of these ways, which the loop takes."""
    tried = []
    for way in ways:
        loop.take(way)
        # The first step of a single way is also timed: that is where its compilation shows.
        step, compiling = timed(loop.attempt, several)
        timings[str(way)] = {"seconds_per_step": step, "seconds_to_compile": compiling}
        tried.append((step or 0.0, loop.way))  # where memory was short, with fewer members at once
    least, way = min(tried, key=lambda one: one[0])
    loop.take(way)
    return least


def _doublings(plan: Plan, most: int) -> Iterator[int]:
    """Two devices, four and so on, as many as there are and as can be given a part."""
    count, members, batch = 2, plan.members.size, plan.program.stream.batch
    while count <= most and (count <= members if members > 1 else not batch % count):
        yield count
        count *= 2


def _division(plan: Plan, devices: Any) -> Division | None:
    """What each of so many devices has; None of one. Refuses those that would have nothing, or unequal parts."""
    if devices == 1:
        return None
    batch, members = plan.program.stream.batch, plan.members.size
    if members > 1 and devices > members:
        raise expected("devices", f"at most {members}, the number of members", devices)
    if members == 1 and batch % devices:
        divisors = [count for count in range(1, devices + 1) if not batch % count]
        raise expected("devices", f"a divisor of the batch, {batch}", devices, f"{divisors[-1]} is one")
    return Division("batch" if members == 1 else "member", tuple(jax.local_devices()[:devices]))


def timed(run: Callable[[int], None], several: bool) -> tuple[float | None, float]:
    """Seconds per step (the least of three tries; None where nothing is to be compared) and to compile."""
    clock = time.perf_counter()
    run(0)
    compiling = time.perf_counter() - clock
    if not several:
        return None, compiling
    clock = time.perf_counter()
    run(1)
    steps = max(1, min(CAPACITY, int(SECONDS / 3 / max(time.perf_counter() - clock, 1e-9))))
    tries = []
    for _ in range(3):
        clock = time.perf_counter()
        run(steps)
        tries.append((time.perf_counter() - clock) / steps)
    return min(tries), compiling
