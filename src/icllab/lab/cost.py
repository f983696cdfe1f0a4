r"""The cost of a run before it: core-seconds from the record, scaled to the request and to this machine.

A record has the seconds :math:`T` of all cells of a run, one after the other. Another size, or other values of an axis,
take :math:`T W'/W`, where the work :math:`W` is the number of cells, times that of values of the traced axes inside,
times the largest number of steps. A machine is measured by the claim's ``smoke``: where that takes :math:`c` seconds of
CPU time here and :math:`T_0` seconds in the record, the run costs :math:`c T/T_0` here. Both scalings are estimates,
with errors of their logarithms that were found on other runs; an interval is to have a probability of 90 %.
"""

import math
import tempfile
from concurrent.futures import BrokenExecutor
from concurrent.futures import TimeoutError as OutOfTime
from dataclasses import dataclass
from typing import Any

from icllab.core.errors import CellsMissing
from icllab.core.grid import Coordinates, Grid
from icllab.lab import records
from icllab.lab.claim import SIZES, Claim
from icllab.lab.executors import Processes
from icllab.lab.job import CellFault, Request
from icllab.lab.run import compute, share

EXTRAPOLATED = 0.45
"""Standard deviation of ln(seconds / those from another size): four claims have both recorded; widened as for four."""
TRANSFERRED = 0.45
"""Standard deviation of ln(core-seconds here / those from the record and the smoke): ``bench/cost.py``."""
UNMEASURED = 0.6
"""Standard deviation of ln(core-seconds here / seconds of the record), where the smoke was not measured."""
SIGMAS = 1.645
SECONDS = 10.0
"""What a measurement may take, imports not counted."""
STEPS = ("step", "steps")


@dataclass(frozen=True)
class Estimate:
    """A positive number and the standard deviation of its logarithm.

    Attributes:
        value: The median.
        spread: Standard deviation of ln(true / value).
    """

    value: float
    spread: float = 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds between which the number lies with a probability of 90 %."""
        factor = math.exp(SIGMAS * self.spread)
        return self.value / factor, self.value * factor

    def times(self, factor: float, spread: float = 0.0) -> "Estimate":
        """The number times another, whose error is independent."""
        return Estimate(self.value * factor, math.hypot(self.spread, spread))


@dataclass(frozen=True)
class Basis:
    """What the record tells of a request.

    Attributes:
        seconds: Seconds of all its cells, one after the other, on the machine of the record.
        size: The recorded size that it is from.
        recorded: Seconds of that.
        scale: Work of the request over that of the recorded run.
        smoke: Seconds of the recorded smoke; None: not recorded.
        machine: The machine of the record.
        peak_bytes: Memory of a process there; None: not recorded.
    """

    seconds: Estimate
    size: str
    recorded: float
    scale: float
    smoke: float | None
    machine: str
    peak_bytes: int | None


def work(claim: Claim, grid: Grid) -> float:
    """Cells, times the values of the traced axes inside, times the largest number of steps."""
    axes = {**grid.static, **grid.traced}
    steps = [max(map(float, axes[name])) for name in STEPS if name in axes] + [float(claim.fixed.get("steps", 1))]
    swept = [axis for axis in grid.traced if axis not in (*claim.outputs, *STEPS)]
    points = sum(math.prod(len(grid.inside(cell)[axis]) for axis in swept) for cell in grid.cells())
    return points * max(steps)


def basis(request: Request) -> Basis:
    """What the record tells of the cost of a request: that of its own size, or of the nearest that is recorded.

    Raises:
        CellsMissing: The record has no seconds of the claim.
    """
    claim = request.claim()
    entries = {size: entry for size, entry in records.read(request.name, request.claims).items() if "seconds" in entry}
    judged = [size for size in entries if size != SIZES[0]]
    if request.size not in entries and not judged:
        raise CellsMissing(
            f"{request.name}: expected a record with the seconds of a run, found none; "
            f"`icl run {request.name}` and `icl check {request.name} --record` make it"
        )
    place = SIZES.index(request.size)
    near = request.size if request.size in entries else min(judged, key=lambda size: abs(SIZES.index(size) - place))
    entry = entries[near]
    plain = Request(request.name, near, claims=request.claims).claim()
    grid = claim.grid(request.size, request.axes, request.seeds)
    scale = work(claim, grid) / work(plain, plain.grid(near))
    spread = 0.0 if near == request.size and scale == 1 else EXTRAPOLATED
    # Wall seconds of a machine that others used too are more than those of a core; older records have no other.
    first = entries.get(SIZES[0], {})
    unit = "cpu_seconds" if "cpu_seconds" in entry and "cpu_seconds" in first else "seconds"
    seconds, smoke = float(entry[unit]), first.get(unit)
    peak = entry.get("peak_bytes") if near == request.size else None
    return Basis(Estimate(seconds * scale, spread), near, seconds, scale, smoke, entry["machine"], peak)


@dataclass(frozen=True)
class Measurement:
    """The smoke of a claim on this machine.

    Attributes:
        seconds: CPU seconds of its cells.
        peak_bytes: Memory of the process.
        files: Bytes of a cell's file beside its arrays, and each array's axes and bytes of a value; of every cell.
    """

    seconds: float
    peak_bytes: int
    files: tuple[tuple[int, tuple[tuple[tuple[str, ...], int], ...]], ...]

    def bytes_of(self, grid: Grid) -> int:
        """Bytes of the cells of a grid: arrays by their axes, and beside them as much as at ``smoke``."""
        beside, arrays = max(self.files, key=lambda file: file[0])

        def of_cell(cell: Coordinates) -> int:
            inside = grid.inside(cell)
            return beside + sum(
                size * math.prod(len(inside.get(axis, ())) or 1 for axis in axes) for axes, size in arrays
            )

        return sum(map(of_cell, grid.cells()))


def measure_smoke(request: Request, seconds: float = SECONDS) -> Measurement | None:
    """The smoke of a request's claim in a process of its own; None if it takes more than so many seconds, or fails."""
    if SIZES[0] not in request.claim().sizes:
        return None
    with tempfile.TemporaryDirectory() as out:
        smoke = Request(request.name, SIZES[0], out=out, control=None, claims=request.claims)
        pool = Processes(1)
        try:
            pool.submit(_prepare, smoke).result()
            return pool.submit(_smoke, smoke).result(timeout=seconds)
        except (OutOfTime, BrokenExecutor, CellFault):
            return None
        finally:
            pool.shutdown()


def _prepare(request: Request) -> None:
    """Import what a measurement needs, and compile as records do, but keep and use no compiled programs."""
    import jax

    from icllab.lab import registry, results  # noqa: F401
    from icllab.training.compilation import compile_quickly

    registry.parameters(request.claim(), request.claims)

    compile_quickly()
    jax.config.update("jax_enable_compilation_cache", False)
    jax.numpy.zeros(1).block_until_ready()


def _smoke(request: Request) -> Measurement:
    from icllab.lab.results import Store

    compute(request, progress=lambda *_: None)
    store, seconds, peak, files = Store(request.root), 0.0, 0, []
    for cell in request.claim().grid(SIZES[0]).cells():
        dataset: Any = store.read(cell)
        seconds += float(dataset.attrs["cpu_seconds"])
        peak = max(peak, int(dataset.attrs.get("peak_bytes", 0)))
        arrays = tuple((tuple(map(str, v.dims)), v.dtype.itemsize) for v in dataset.variables.values())
        files.append((store.path(cell).stat().st_size - sum(v.nbytes for v in dataset.variables.values()), arrays))
    return Measurement(seconds, peak, tuple(files))


def seconds_here(record: Basis, smoke: Measurement | None) -> Estimate:
    """Core-seconds of a request on this machine; without a smoke, as many as the record has seconds."""
    if smoke is None or not record.smoke:
        return record.seconds.times(1.0, UNMEASURED)
    return record.seconds.times(smoke.seconds / record.smoke, TRANSFERRED)


def plan(
    request: Request, *, shard: tuple[int, int] | None = None, fresh: bool = False
) -> tuple[list[Coordinates], list[Coordinates]]:
    """The cells of a request, or of one shard, that are there, and those that a run would measure; nothing is written.

    Raises:
        InputError: The results that are there are of another configuration.
    """
    from icllab.lab.results import Store

    claim = request.claim()
    grid = claim.grid(request.size, request.axes, request.seeds)
    cells = list(grid.cells())
    store = Store(request.root)
    if not fresh and (store.root / "configuration.json").is_file():
        store = Store.open(request.root, claim.configuration(request.size, request.control))
    kept, missing = [], []
    for cell in cells if shard is None else share(cells, *shard):
        (kept if not fresh and store.has(cell, grid.inside(cell)) else missing).append(cell)
    return kept, missing
