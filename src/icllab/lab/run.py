"""Run the cells of a claim on any executor, in any number of processes, resume, and read results."""

import contextlib
import dataclasses
import math
import os
import random
import re
import shutil
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from icllab.core import progress
from icllab.core.domains import Domain
from icllab.core.errors import EnvironmentFault, IclError, InputError, expected, require_integer
from icllab.core.files import parse_json, write_atomically
from icllab.core.grid import Coordinates, Grid, spelled
from icllab.core.settings import DEFAULT
from icllab.lab import placement, provenance, registry
from icllab.lab.claim import SCHEMA
from icllab.lab.executors import executor_for
from icllab.lab.job import CellFault, Job, Request, UnfitWorker, measure
from icllab.lab.subjects import require_here, stated

if TYPE_CHECKING:
    import xarray as xr

    from icllab.lab.results import Store

TRIES = 3
"""How often a cell may fail before it has failed; an input that the claim refuses fails at once."""
Progress: TypeAlias = Callable[[int, int, str, float | None], None]
"""Called with cells finished, cells in all, the cell that has just ended, and the seconds left (None: unknown yet)."""


class RunInterrupted(IclError):
    """Ctrl-C; the finished cells are on disk (exit status 130)."""

    exit_status = 130


def show_cells(count: int, total: int, cell: str, left: float | None) -> None:
    """Show how far a run is, as its ``progress``, on the display that is open."""
    if left is None:
        progress.stage("", total, "cells", done=count)
    progress.move_to(count, cell, left=left)


@dataclass(frozen=True)
class Counts:
    """Cells that a run computed, kept and left, with notes.

    Attributes:
        computed: Cells that it computed.
        kept: Cells of its own part that were there already, or that other runs computed meanwhile.
        missing: Cells of the whole grid that are not there yet: those of other shards.
        notes: What a reader of the results should know.
    """

    computed: int
    kept: int
    missing: int
    notes: tuple[str, ...] = ()


def compute(
    request: Request,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    executor: Executor | None = None,
    limit: float | None = None,
    shard: tuple[int, int] | None = None,
    fresh: bool = False,
    progress: Progress = show_cells,
) -> Counts:
    """Compute the cells that a store lacks: all that ``request`` asks for, or one shard of them.

    Args:
        request: The claim, its size and where results are kept.
        workers: Number of processes; None: this process.
        scheduler: Address of a dask scheduler.
        executor: Any executor of :mod:`concurrent.futures`; its workers have this library and the claim.
        limit: Seconds that a cell may take in a process: then the process ends, and another measures the cell.
        shard: ``(i, N)``: the cells of the i-th of N disjoint parts, from 1 on.
        fresh: Set the store aside and start again.
        progress: Called as cells end; by default what shows them where a display is open.

    Raises:
        InputError: A value that cannot be used; or every cell that failed refused its input.
        EnvironmentFault: Cells failed; all others are kept.
        RunInterrupted: Ctrl-C.
    """
    from icllab.lab.results import Store

    _require_workers(workers, scheduler, executor, limit)
    if shard is not None and not 1 <= shard[0] <= shard[1]:
        raise expected("shard", "i/N with i from 1 to N", "/".join(map(str, shard)))
    if shard is not None and fresh:
        raise InputError("expected shard or fresh, got both; each shard would set the others' cells aside")
    if request.network is not None:
        elsewhere = (workers or 1) > 1 or any(choice is not None for choice in (scheduler, executor, limit))
        require_here(request.network, elsewhere)
    if scheduler is None and executor is None:
        placement.require_start(children=(workers or 1) > 1 or limit is not None)
    claim = request.claim()
    grid = claim.grid(request.size, request.axes, request.seeds)
    aside = Store(request.root).set_aside() if fresh else None
    store = Store.open(request.root, request.configuration())
    store.request(grid)
    notes = [f"the old results are now in {aside}"] if aside else []
    notes += _more_stored(grid, store.requests())
    cells = list(grid.cells())
    part = cells if shard is None else share(cells, *shard)
    if shard is not None and not part:
        notes.append(f"shard {shard[0]} of {shard[1]} has no cells: there are {len(cells)}")
    damaged_before = set(store.root.glob("cells/*.damaged"))
    with executor_for(workers, scheduler, executor, limit) as (pool, ahead):
        sweep = _Sweep(request, grid, store, part, pool, ahead, limit, progress)
        try:
            sweep.run()
        except KeyboardInterrupt:
            count = sum(store.path(cell).exists() for cell in part)
            raise RunInterrupted(
                f"{request.name}: interrupted; {count} of {len(part)} cells are kept, the same command goes on"
            ) from None
    for path in sorted(set(store.root.glob("cells/*.damaged")) - damaged_before):
        notes.append(f"{path.with_suffix('')} was damaged, or another cell's; it was set aside and computed again")
    if sweep.failures:
        failures = sorted(sweep.failures, key=lambda failure: cells.index(failure[0]))
        withdraw = shard is None or not any(store.root.glob("cells/*.nc"))
        if withdraw and len(failures) == len(part):  # no cell of this request can be computed
            store.withdraw(grid)
        raise _failure(request, store, failures, len(part))
    missing = [cell for cell in cells if not store.path(cell).exists()]
    failures = [path for cell in missing if (path := store.failure(cell)).exists()]
    if failures:
        notes.append(f"{len(failures)} of the missing cells have failed; of the first, {failures[0]} tells why")
    return Counts(sweep.computed, len(part) - sweep.computed, len(missing), tuple(notes))


def _require_workers(
    workers: int | None, scheduler: str | None, executor: Executor | None, limit: float | None
) -> None:
    """Raise unless one choice of workers is made, and a limit is one of workers on this machine."""
    if sum(choice is not None for choice in (workers, scheduler, executor)) > 1:
        raise InputError("expected one of workers, scheduler and executor, got several; choose who measures")
    if scheduler is not None and not isinstance(scheduler, str):
        raise expected("scheduler", "the address of a dask scheduler, as text", scheduler)
    if workers is not None:
        require_integer("workers", workers)
    if limit is not None:
        Domain(above=0, text="a positive number of seconds").require("limit", limit)
        if scheduler is not None or executor is not None:
            raise InputError("limit: expected workers of this machine, got an executor; set its own time limit")


def _more_stored(grid: Grid, stored: Sequence[Grid]) -> list[str]:
    """A note if earlier runs asked for values, such as seeds, that this run does not ask for."""
    axes = {
        axis: set(values).union(*({**g.static, **g.traced}.get(axis, ()) for g in stored))
        for axis, values in {**grid.static, **grid.traced}.items()
    }
    fewer = [
        f"{len(values)} of {len(axes[axis])} {'seeds' if axis == 'seed' else f'values of {axis}'}"
        for axis, values in {**grid.static, **grid.traced}.items()
        if len(axes[axis]) > len(values)
    ]
    if not fewer:
        return []
    return [
        f"this run is about {', '.join(fewer)} that are stored; `icl check` judges and records all of them, unless "
        "--fresh sets them aside or another --out keeps these apart"
    ]


class _Sweep:
    """The cells of one run: submitted, measured, stored, and tried again if they failed."""

    def __init__(
        self,
        request: Request,
        grid: Grid,
        store: "Store",
        cells: Sequence[Coordinates],
        pool: Executor,
        ahead: int,
        limit: float | None,
        progress: Progress,
    ) -> None:
        self.request, self.grid, self.store, self.pool = request, grid, store, pool
        self.ahead, self.limit, self.progress = ahead, limit, progress
        waiting = [cell for cell in cells if not store.has(cell, grid.inside(cell))]
        for cell in cells:
            if cell not in waiting:  # a run may have been killed between the cell's file and this
                self._clear_scratch(cell)
        self.total, self.ended, self.computed = len(cells), len(cells) - len(waiting), 0
        self.failures: list[tuple[Coordinates, IclError]] = []
        self._start, self._versions = time.monotonic(), provenance.versions()
        self._tries: Counter[Path] = Counter()
        # In random order, times are those of the whole grid, and two runs seldom measure the same cell. Cells of one
        # shape share compiled programs, which are dropped later. The order is the system's, since two processes may
        # have seeded Python's generator alike.
        order: dict[object, float] = defaultdict(random.SystemRandom().random)
        self._waiting = deque(sorted(waiting, key=lambda cell: (order[grid.shape(cell)], order[spelled(cell)])))
        self._running: dict[Future[bytes], Coordinates] = {}

    def run(self) -> None:
        """Compute every cell that is not there."""
        self.progress(self.ended, self.total, "there already" if self.ended else "begun", None)
        while self._waiting or self._running:
            while self._waiting and len(self._running) < self.ahead:
                self._submit(self._waiting.popleft())
            for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                self._keep(self._running.pop(future), future)

    def _submit(self, cell: Coordinates) -> None:
        """Submit a cell unless its file is there; another run may have measured it meanwhile."""
        block = self.store.block_to_measure(cell, self.grid.inside(cell))
        if block is None:
            self._clear_scratch(cell)  # a run may have been killed between the cell's file and this
            self._end(cell)
            return
        directories = (str(path(cell).absolute()) for path in (self.store.scratch, self.store.checkpoints))
        job = Job(self.request, cell, block, self._versions, self.limit, *directories)
        self._running[self.pool.submit(measure, job)] = cell

    def _keep(self, cell: Coordinates, future: "Future[bytes]") -> None:
        """Write the file of a cell; if it failed, try again or note the reason."""
        try:
            content = future.result()
        except UnfitWorker:
            raise
        except CancelledError as error:
            raise EnvironmentFault(
                f"{self.request.name}: the executor has gone; every finished cell is kept, the same command goes on"
            ) from error
        except InputError as error:
            self.failures.append((cell, error))
        except (Exception, SystemExit) as error:  # whatever an executor raises of a worker that was lost
            self._try_again(cell, error)
            return
        else:
            self.store.put(cell, content)
            self._clear_scratch(cell)
            self.computed += 1
        self._end(cell)

    def _clear_scratch(self, cell: Coordinates) -> None:
        shutil.rmtree(self.store.scratch(cell), ignore_errors=True)
        with contextlib.suppress(OSError):
            self.store.scratch(cell).parent.rmdir()

    def _try_again(self, cell: Coordinates, error: BaseException) -> None:
        path = self.store.path(cell)
        self._tries[path] += 1
        if os.environ.get("ICL_DEBUG") and isinstance(error, CellFault):
            print(error.details, file=sys.stderr)
        if self._tries[path] < TRIES:
            self._waiting.append(cell)
            return
        if not isinstance(error, CellFault):
            kind = "its worker process ended" if isinstance(error, BrokenExecutor) else type(error).__name__
            limit = f" (the limit is {self.limit:g} s)" if self.limit is not None else ""
            error = CellFault(" ".join(f"{kind}{limit}: {error}".split()))
        origin = {"claim": self.request.name, "cell": spelled(cell), "commit": provenance.commit(), **self._versions}
        lines = [f"{name}: {value}" for name, value in origin.items()]
        self.store.note_failure(cell, "\n".join([*lines, "", str(error), "", error.details]))
        self.failures.append((cell, error))
        self._end(cell)

    def _end(self, cell: Coordinates) -> None:
        self.ended += 1
        pace = (time.monotonic() - self._start) / self.computed if self.computed else None
        left = None if pace is None else pace * (self.total - self.ended)
        self.progress(self.ended, self.total, spelled(cell), left)


def share(cells: Sequence[Coordinates], number: int, shards: int) -> list[Coordinates]:
    """The cells of one of several disjoint shards, numbered from 1, which together have all cells.

    Cells are dealt by size, the largest first, there and back again: each shard has as many as the others up to one,
    and of every size. The size is the product of the numeric coordinates, since what a cell costs grows with those; of
    equal sizes the order of the grid decides.
    """

    def size(cell: Coordinates) -> float:
        return sum(math.log(value) for value in cell.values() if isinstance(value, int | float) and value > 0)

    order = sorted(range(len(cells)), key=lambda i: -size(cells[i]))
    turns = [*range(shards), *reversed(range(shards))]
    return [cells[i] for i in sorted(i for turn, i in enumerate(order) if turns[turn % len(turns)] == number - 1)]


def collect(request: Request) -> "tuple[xr.Dataset, list[str]]":
    """All results of a request with the claim's theory, and remarks for a reader."""
    from icllab.lab.judging import predicted
    from icllab.lab.results import Store

    claim = request.claim()
    grid = claim.grid(request.size, request.axes, request.seeds)
    dataset = predicted(claim, Store(request.root).collect(claim, [grid]))
    return dataset, _notes(request, dataset)


def read(request: Request, root: Path | None = None, *, theory: bool = True) -> "tuple[xr.Dataset, list[str]]":
    """Read all results that were ever requested of a store; raise CellsMissing if cells are missing.

    Args:
        request: The claim, its size and where results are kept.
        root: The directory of the results, if it was moved.
        theory: Whether the claim's theory stands beside what was measured.
    """
    from icllab.lab.judging import predicted
    from icllab.lab.results import Store

    claim = request.claim()
    store = Store.existing(request.root if root is None else root)
    configuration = store.configuration()
    if "network" in configuration:
        request = dataclasses.replace(request, network=stated(configuration["network"]))
        claim = request.claim()
    if "fixed" not in configuration or configuration.get("schema") != SCHEMA:
        raise InputError(f"{store.root}: expected results of schema {SCHEMA}, got {configuration.get('schema')!r}")
    version = configuration["version"]
    claim = claim.with_fixed({name: (value,) for name, value in configuration["fixed"].items()})
    claim = dataclasses.replace(claim, precision=configuration.get("precision", claim.precision), version=version)
    products = configuration.get("matmul_precision", DEFAULT)
    settings = claim.configuration(request.size, request.control, products)
    subject = {} if request.network is None else {"network": request.network.configuration()}
    store = Store.open(store.root, settings | subject)
    dataset = store.collect(claim, store.requests())
    return predicted(claim, dataset) if theory else dataset, _notes(request, dataset, version)


def write_results(root: Path, dataset: "xr.Dataset") -> Path:
    """Write ``results.nc``, which plain ``xr.open_dataset`` opens."""
    from icllab.lab.netcdf import netcdf_bytes

    path = root / "results.nc"
    write_atomically(path, netcdf_bytes(dataset))
    return path


def _failure(
    request: Request, store: "Store", failures: Sequence[tuple[Coordinates, IclError]], total: int
) -> IclError:
    cell, first = failures[0]
    message = (
        f"{request.name}: {len(failures)} of {total} cells failed, {total - len(failures)} are kept; "
        f"the first, {spelled(cell)}: {first}"
    )
    if all(isinstance(error, InputError) for _, error in failures):
        return InputError(message)
    return EnvironmentFault(f"{message}; the whole of it is in {store.failure(cell)}")


def _notes(request: Request, dataset: "xr.Dataset", version: int | None = None) -> list[str]:
    """Remarks for a reader of a verdict: stale results, another precision, shared code, measurement in parts."""
    claim, notes = registry.load(request.name, request.claims), []
    if version not in (None, claim.version):
        notes.append(
            f"stale: measured by version {version} of the claim's measure, which is {claim.version} now; "
            "`icl run --fresh` computes them again"
        )
    for name, attribute in (("icllab", "package_version"), ("JAX", "jax_version")):
        text = dataset.attrs.get(attribute, "")
        versions = [str(v) for v in parse_json(text)] if text.startswith("[") else [text]
        if len(versions) > 1:
            notes.append(
                f"cells of {' and '.join(versions)} of {name}: versions may measure other numbers; "
                "`icl run --fresh` computes all with this one"
            )
    precision = dataset.attrs.get("precision", claim.precision)
    if precision != claim.precision:
        notes.append(f"measured in {precision}; the claim is about {claim.precision}, and a record is of that alone")
    if (products := dataset.attrs.get("matmul_precision", DEFAULT)) != DEFAULT:
        notes.append(f"matrix products have the precision {products!r}, which JAX's settings asked for")
    if request.claims:
        from icllab.lab.separation import shared_code

        notes += [f"no evidence: {fault}" for fault in shared_code(claim, Path(request.claims))]
    if "seeds_at_once" in dataset.attrs:
        fewest = min(re.findall(r"\d+", dataset.attrs["seeds_at_once"]), key=int)
        notes.append(f"a device was out of memory: seeds of a cell were measured {fewest} at a time")
    return notes
