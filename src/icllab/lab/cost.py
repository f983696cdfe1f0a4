r"""The cost of a run before it: core-seconds from the record, scaled to the request and to this machine.

A record has the seconds :math:`T` of all cells of a run, one after the other. Another size, or other values of an axis,
take :math:`T W'/W`, where the work :math:`W` is the number of cells, times that of values of the traced axes inside,
times the largest number of steps. Compilation takes some of it, :math:`c P`: :math:`P` counts the shapes of the cells,
and :math:`c` is what makes the records of ``smoke`` and of the other size agree. The request takes
:math:`c P' + (T - c P)\, W'/W`. A machine is measured by the claim's ``smoke``: where that takes :math:`c` seconds of
CPU time here and :math:`T_0` seconds in the record, the run costs :math:`c T/T_0` here. Both scalings are estimates,
with errors of their logarithms that were found on other runs; an interval is to have a probability of 90 %.
"""

import math
import signal
import tempfile
from concurrent.futures import BrokenExecutor
from concurrent.futures import TimeoutError as OutOfTime
from dataclasses import dataclass
from typing import Any

from icllab.core.errors import CellsMissing, IclError
from icllab.core.grid import Coordinates, Grid
from icllab.lab import records, registry
from icllab.lab.claim import SIZES, Claim
from icllab.lab.executors import Processes
from icllab.lab.job import Request
from icllab.lab.placement import Placement
from icllab.lab.run import compute, share

EXTRAPOLATED = 0.9
"""Standard deviation of ln(seconds / those from another size): 14 claims have both recorded, some on two machines."""
TRANSFERRED = 0.75
"""Standard deviation of ln(core-seconds here / those from the record and the smoke): ``bench/cost.py``, widened too."""
UNMEASURED = 1.15
"""Standard deviation of ln(core-seconds here / seconds of the record), where the smoke was not measured; as above."""
COMPILED = 0.25
"""Least fraction of a recorded smoke that is taken for compilation; of 85 claims half have more than 0.4."""
SIGMAS = 1.645
SECONDS, LONGEST = 10.0, 60.0
"""Seconds of CPU time that a measurement may take, imports not counted; and seconds that it is waited for."""
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
        compilation: Seconds of the request in which programs are compiled, a part of ``seconds``.
    """

    seconds: Estimate
    size: str
    recorded: float
    scale: float
    smoke: float | None
    machine: str
    peak_bytes: int | None
    compilation: float = 0.0


def work(claim: Claim, grid: Grid) -> float:
    """Cells, times the values of the traced axes inside, times the largest number of steps."""
    axes = {**grid.static, **grid.traced}
    steps = [max(map(float, axes[name])) for name in STEPS if name in axes] + [float(claim.fixed.get("steps", 1))]
    swept = [axis for axis in grid.traced if axis not in (*claim.outputs, *STEPS)]
    points = sum(math.prod(len(grid.inside(cell)[axis]) for axis in swept) for cell in grid.cells())
    return points * max(steps)


def programs(grid: Grid) -> int:
    """The number of shapes among the cells of a grid."""
    return len({grid.shape(cell) for cell in grid.cells()})


def _compilation(smoke: float, seconds: float, first: tuple[float, int], near: tuple[float, int]) -> float:
    """Seconds of compilation for each program, by two runs of given ``(work, programs)``.

    At most all of the smoke is compilation. At least :data:`COMPILED` of it is, where the two records disagree because
    the cells of the other size are larger.
    """
    (work_0, programs_0), (work_1, programs_1) = first, near
    denominator = programs_0 * work_1 - programs_1 * work_0
    solution = (smoke * work_1 - seconds * work_0) / denominator if denominator > 0 else 0.0
    most = min(smoke / programs_0, seconds / programs_1)
    return min(max(solution, COMPILED * most), most)


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
    near_grid = plain.grid(near)
    scale = work(claim, grid) / work(plain, near_grid)
    spread = 0.0 if near == request.size and scale == 1 else EXTRAPOLATED
    # Wall seconds of a machine that others used too are more than those of a core; older records have no other.
    first = entries.get(SIZES[0], {})
    unit = "cpu_seconds" if "cpu_seconds" in entry and "cpu_seconds" in first else "seconds"
    seconds, smoke = float(entry[unit]), first.get(unit)
    each = 0.0
    if smoke and near != SIZES[0]:
        small = Request(request.name, SIZES[0], claims=request.claims).claim()
        sizes = [(work(c, g), programs(g)) for c, g in ((small, small.grid(SIZES[0])), (plain, near_grid))]
        each = _compilation(smoke, seconds, *sizes)
    compilation = each * programs(grid)
    total = Estimate(compilation + (seconds - each * programs(near_grid)) * scale, spread)
    peak = entry.get("peak_bytes") if near == request.size else None
    return Basis(total, near, seconds, scale, smoke, entry["machine"], peak, compilation)


@dataclass(frozen=True)
class Measurement:
    """The smoke of a claim on this machine.

    Attributes:
        seconds: CPU seconds of its cells.
        peak_bytes: Memory of the process; 0: unknown.
        beside: Bytes of a cell's file that are not its arrays'.
        arrays: Axes of each array of a cell, and bytes of a value.
    """

    seconds: float
    peak_bytes: int
    beside: int
    arrays: tuple[tuple[tuple[str, ...], int], ...]

    def bytes_of(self, grid: Grid) -> int:
        """Bytes of the cells of a grid: arrays by their axes, and beside them as much as at ``smoke``."""
        blocks = [grid.inside(cell) for cell in grid.cells()]
        return len(blocks) * self.beside + sum(
            size * math.prod(len(block[axis]) for axis in axes if axis in block)
            for block in blocks
            for axes, size in self.arrays
        )


def measure_smoke(request: Request, seconds: float = SECONDS) -> Measurement | None:
    """The smoke of a claim on a processor, in a process of its own; None if it takes too many ``seconds``, or fails."""
    with tempfile.TemporaryDirectory() as out:
        smoke = Request(request.name, SIZES[0], out=out, claims=request.claims, placement=Placement("cpu"))
        pool = Processes(1)
        try:
            pool.submit(_prepare, smoke, seconds).result()
            return pool.submit(_smoke, smoke).result(timeout=LONGEST)
        except (OutOfTime, BrokenExecutor, IclError):
            return None
        finally:
            pool.shutdown()


def _prepare(request: Request, seconds: float) -> None:
    """Import what a measurement needs; compile as records do, but use no kept programs; let it live so long."""
    import jax

    from icllab.training.compilation import compile_quickly

    compile_quickly()
    jax.config.update("jax_enable_compilation_cache", False)
    registry.parameters(request.claim(), request.claims)
    jax.numpy.zeros(1).block_until_ready()
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _smoke(request: Request) -> Measurement:
    from icllab.lab.results import Store

    compute(request, progress=lambda *_: None)
    store, cells = Store(request.root), list(request.claim().grid(SIZES[0]).cells())
    datasets: list[Any] = [store.read(cell) for cell in cells]
    seconds = sum(float(dataset.attrs["cpu_seconds"]) for dataset in datasets)
    peak = max(int(dataset.attrs.get("peak_bytes", 0)) for dataset in datasets)
    variables = list(datasets[-1].variables.values())
    beside = store.path(cells[-1]).stat().st_size - sum(variable.nbytes for variable in variables)
    return Measurement(seconds, peak, beside, tuple((variable.dims, variable.dtype.itemsize) for variable in variables))


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
        store = Store.open(request.root, request.configuration())
    kept, missing = [], []
    for cell in cells if shard is None else share(cells, *shard):
        (kept if not fresh and store.has(cell, grid.inside(cell)) else missing).append(cell)
    return kept, missing
