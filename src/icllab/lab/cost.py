r"""The cost of a run before it: seconds of the record times the work, within a factor of five.

A record has the core-seconds :math:`T` of all cells of a run. Another size, or other values of an axis, take
:math:`T W'/W`. The work :math:`W` is the number of cells, times the number of values of the traced axes in each, times
the largest number of steps. Fourteen claims of the book have ``small`` and ``medium`` recorded, thirteen of them on two
machines. In thirteen of the fourteen each size predicts the other within a factor of five. A record of ``smoke`` is not
used for another size: its prediction of ``small`` is within that factor for 38 of 77 claims.
"""

import math
from dataclasses import dataclass

from icllab.core.errors import CellsMissing
from icllab.core.grid import Coordinates, Grid
from icllab.lab import records
from icllab.lab.claim import SIZES, Claim
from icllab.lab.job import Request
from icllab.lab.run import share

FACTOR = 5.0
"""Factor up and down that most runs lie within."""
STEPS = ("step", "steps")


@dataclass(frozen=True)
class Cost:
    """The estimated cost of a request.

    Attributes:
        seconds: Core-seconds of all its cells.
        size: The recorded size that the estimate is from.
        recorded: Seconds of the recorded run.
        scale: Work of the request over that of the recorded run.
        machine: The machine of the record.
        peak_bytes: Memory of a process; None if that is not recorded for this size.
    """

    seconds: float
    size: str
    recorded: float
    scale: float
    machine: str
    peak_bytes: int | None


def work(claim: Claim, grid: Grid) -> float:
    """Number of cells, times values of the traced axes in each, times the largest number of steps."""
    axes = {**grid.static, **grid.traced}
    steps = [max(map(float, axes[name])) for name in STEPS if name in axes] + [float(claim.fixed.get("steps", 1))]
    swept = [axis for axis in grid.traced if axis not in (*claim.outputs, *STEPS)]
    points = sum(math.prod(len(grid.inside(cell)[axis]) for axis in swept) for cell in grid.cells())
    return points * max(steps)


def estimate(request: Request) -> Cost:
    """Estimate the cost of a request from the record of its size, or of the nearest size that is judged.

    Raises:
        CellsMissing: The record has no seconds of the claim.
    """
    claim = request.claim()
    entries = {size: entry for size, entry in records.read(request.name, request.claims).items() if "seconds" in entry}
    sizes = [request.size] if request.size in entries else [size for size in entries if size != SIZES[0]]
    if not sizes:
        raise CellsMissing(
            f"{request.name}: expected a record with the seconds of a run, found none; "
            f"`icl run {request.name}` and `icl check {request.name} --record` make it"
        )
    size = min(sizes, key=lambda size: abs(SIZES.index(size) - SIZES.index(request.size)))
    plain = Request(request.name, size, claims=request.claims).claim()
    scale = work(claim, claim.grid(request.size, request.axes, request.seeds)) / work(plain, plain.grid(size))
    entry = entries[size]
    # Wall seconds of a machine that others used too are more than those of a core; older records have no other.
    seconds = float(entry.get("cpu_seconds", entry["seconds"]))
    peak = entry.get("peak_bytes") if size == request.size else None
    return Cost(seconds * scale, size, seconds, scale, entry["machine"], peak)


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
