"""Run a claim's cells, each once, and read them back: resumable, in any number of processes."""

import concurrent.futures
import contextlib
import datetime
import functools
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import icllab
from icllab.core.errors import EnvironmentFault, IclError, InputError, expected
from icllab.core.files import DamagedFile, disk_faults
from icllab.core.grid import Coordinates, Grid, cell_key, spelled
from icllab.experiments import digests, provenance, registry
from icllab.experiments.experiment import Experiment
from icllab.experiments.heartbeat import beating
from icllab.experiments.pace import Pace, spread, watched
from icllab.experiments.pools import Submit, pool
from icllab.experiments.requests import Request
from icllab.experiments.store import SCHEMA, Store

if TYPE_CHECKING:
    import xarray as xr


Progress = Callable[[int, int, str, float | None], None]
"""Told of cells done, cells in all, the cell that has just ended, and the seconds left (None: not known yet)."""


class RunInterrupted(IclError):
    """Ctrl-C; the finished cells are on disk (exit status 130)."""

    exit_status = 130


@dataclass(frozen=True)
class Finished:
    """A finished run: the assembled Dataset and how many cells were computed and kept."""

    dataset: "xr.Dataset"
    root: Path
    computed: int
    kept: int
    notes: tuple[str, ...] = ()


def execute(
    request: Request,
    *,
    workers: int = 1,
    scheduler: str | None = None,
    fresh: bool = False,
    progress: Progress = lambda done, total, what, left: None,
) -> Finished:
    """Compute what ``request`` asks for and its store lacks; return everything it asked for."""
    if workers < 1:
        raise expected("workers", "an integer of at least 1", workers)
    experiment = request.experiment()
    grid = experiment.grid(request.size, request.axes, request.seeds)
    notes = _opened(request, experiment, grid, fresh)
    total = len(grid)
    todo, damaged = _unfinished(request, grid)
    notes += [f"{path} was damaged; it was set aside and is computed again" for path in damaged]
    todo, pace = spread(todo), Pace(workers)
    failures: list[tuple[Coordinates, Exception]] = []
    done, waiting = total - len(todo), list(todo)
    try:
        with beating(request.root, workers) as heart, pool(workers, scheduler) as submit:
            tell = _both(progress, heart.tell)
            tell(done, total, "kept", None)
            for cell, outcome in _finished(submit, request, grid, todo):
                waiting.remove(cell)
                if isinstance(outcome, Exception):
                    failures.append((cell, outcome))
                else:
                    pace.took(cell, outcome)
                    done += 1
                tell(done, total, spelled(cell), pace.left(waiting))
    except KeyboardInterrupt:
        raise RunInterrupted(
            f"{request.claim}: interrupted; {total - len(_unfinished(request, grid)[0])} of {total} cells are kept, "
            "the same command goes on"
        ) from None
    if failures:
        raise _failed(request, grid, failures, kept=done)
    dataset, root = _collected(request, experiment, [grid])
    return Finished(dataset, root, len(todo), total - len(todo), (*notes, *_staleness(request, dataset)))


def read(request: Request) -> tuple["xr.Dataset", list[str]]:
    """Everything that was ever asked of a store, without computing; missing cells are refused."""
    experiment = request.experiment()
    store = Store.existing(request.root)
    stored = store.configuration()
    if "fixed" not in stored or stored.get("schema") != SCHEMA:
        raise InputError(f"{store.root}: expected results of schema {SCHEMA}, got {stored.get('schema')!r}")
    experiment = experiment.with_fixed({name: (value,) for name, value in stored["fixed"].items()})
    store = Store.open(store.root, provenance.configuration(experiment, request.size, request.control, SCHEMA))
    dataset, _ = _collected(request, experiment, store.requested())
    return dataset, _staleness(request, dataset)


def _both(one: Progress, other: Progress) -> Progress:
    """Tells the second, then the first: what a user's function raises stops nothing that is kept for others."""

    def tell(done: int, total: int, what: str, left: float | None) -> None:
        other(done, total, what, left)
        one(done, total, what, left)

    return tell


def _failed(request: Request, grid: Grid, failures: Sequence[tuple[Coordinates, Exception]], kept: int) -> IclError:
    """What to say of cells that failed; a request of which no cell can be computed leaves no trace in the store."""
    total = len(grid)
    if len(failures) == total:
        Store(request.root).withdraw(grid)
    cell, first = failures[0]
    message = (
        f"{request.claim}: {len(failures)} of {total} cells failed, {kept} are kept; "
        f"the first, {spelled(cell)}: {type(first).__name__}: {first}"
    )
    refused = all(isinstance(failure, InputError) for _, failure in failures)
    return InputError(message) if refused else EnvironmentFault(message)


def _opened(request: Request, experiment: Experiment, grid: Grid, fresh: bool) -> list[str]:
    root = request.root
    aside = Store(root).set_aside() if fresh else None
    store = Store.open(root, provenance.configuration(experiment, request.size, request.control, SCHEMA))
    store.request(grid)
    return [f"the old results are now in {aside}"] if aside else []


def _unfinished(request: Request, grid: Grid) -> tuple[list[Coordinates], list[Path]]:
    """Cells that lack something, and damaged files (set aside under another name)."""
    from icllab.experiments.results import missing_part

    store, todo, damaged = Store(request.root), [], []
    outputs = request.experiment().outputs
    for cell in grid.cells():
        try:
            stored = store.read(cell)
        except DamagedFile:
            path = store.path(cell)
            # Another process may just have set it aside.
            with disk_faults(f"cannot set {path} aside"), contextlib.suppress(FileNotFoundError):
                path.replace(path.with_suffix(".nc.damaged"))
            damaged.append(path)
            stored = None
        if missing_part(stored, grid.inside(cell), outputs) is not None:
            todo.append(cell)
    return todo, damaged


def compute_cell(request: Request, cell: Coordinates, traced: Mapping[str, tuple[Any, ...]]) -> float:
    """Measure what one cell lacks and keep it; runs in whichever process is given it.

    Should another process have grown the cell meanwhile, what is then still missing is measured again:
    neither's values are lost.

    Returns:
        Seconds that it took, without those in which programs were compiled.
    """
    from icllab.experiments.results import merged, missing_part

    store, experiment = Store(request.root), request.experiment()
    with watched() as watch:
        while True:
            version, stored = store.version(cell), store.read(cell)
            block = missing_part(stored, traced, experiment.outputs)
            if block is None:  # another process was faster
                break
            measured = _measured(request, experiment, cell, block)
            with store.locked():
                if store.version(cell) == version:
                    store.write(cell, merged(stored, measured))
                    break
    return watch.seconds - watch.compiling


def _measured(
    request: Request, experiment: Experiment, cell: Coordinates, block: Mapping[str, tuple[Any, ...]]
) -> "xr.Dataset":
    """One block of a cell, with where it comes from; the sources are those before it was measured."""
    import jax

    from icllab.experiments.results import as_cell

    origin = {
        "claim": experiment.name,
        "sources": json.dumps(experiment.sources),
        "cell": json.dumps(cell, sort_keys=True),
        "package_version": icllab.__version__,
        "git_commit": provenance.commit(),
        "sources_digest": _digest(request),
        "precision": experiment.precision,
        "key": experiment.key,
        "configuration": json.dumps(provenance.configuration(experiment, request.size, request.control, SCHEMA)),
        **provenance.machine(),
    }
    with jax.enable_x64(experiment.precision == "float64"):
        key = cell_key(jax.random.key(experiment.key), cell)
        began = time.perf_counter()
        assert experiment.measure is not None  # the registry has set it
        measured = experiment.measure(experiment.point(cell, block), key=key)
        seconds = time.perf_counter() - began
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return as_cell(experiment, measured, block, {**origin, "seconds": seconds, "created": created})


def _collected(request: Request, experiment: Experiment, grids: Sequence[Grid]) -> tuple["xr.Dataset", Path]:
    from icllab.experiments.results import assemble, described, label, missing_part, require_complete

    store = Store(request.root)
    cells, missing, wanted = {}, [], 0
    for grid in grids:
        for cell in grid.cells():
            wanted += 1
            stored = store.read(cell)
            if stored is None or missing_part(stored, grid.inside(cell), experiment.outputs) is not None:
                missing.append(cell)
            else:
                cells[label(cell)] = stored
    require_complete(request.claim, missing, wanted)
    dataset = assemble(experiment, grids, cells, _shared_attributes(list(cells.values())))
    if experiment.theory is not None:
        dataset = experiment.theory(dataset)
    return described(experiment, dataset), store.root


def _shared_attributes(cells: Sequence["xr.Dataset"]) -> dict[str, Any]:
    """One value where all cells agree, else all as JSON; the latest ``created`` and the sum of ``seconds``."""
    attributes: dict[str, Any] = {}
    for name in cells[0].attrs:
        values = sorted({str(cell.attrs.get(name, "")) for cell in cells})
        if name == "created":
            attributes[name] = values[-1]
        elif name == "seconds":
            attributes[name] = sum(float(cell.attrs[name]) for cell in cells)
        elif name != "cell":
            attributes[name] = values[0] if len(values) == 1 else json.dumps(values)
    return attributes


def _digest(request: Request) -> str:
    return digests.measurement(registry.measure_file(registry.claims(request.claims)[request.claim]))


def _staleness(request: Request, dataset: "xr.Dataset") -> list[str]:
    if dataset.attrs["sources_digest"] == _digest(request):
        return []
    return ["stale: the sources these results depend on have changed since; `icl run --fresh` computes them again"]


def _finished(
    submit: Submit | None, request: Request, grid: Grid, todo: Sequence[Coordinates]
) -> Iterator[tuple[Coordinates, Exception | float]]:
    """Each cell as it ends, with its seconds, or with why it failed."""
    # A disk that refuses a cell refuses the next one too, and a worker that was killed takes its pool along.
    try:
        for cell, call in _calls(submit, request, grid, todo):
            try:
                seconds = call()
            except (EnvironmentFault, concurrent.futures.BrokenExecutor):
                raise
            except Exception as error:  # whatever a claim's measure may raise
                if os.environ.get("ICL_DEBUG"):
                    traceback.print_exception(error)
                yield cell, error
            else:
                yield cell, seconds
    except concurrent.futures.BrokenExecutor as error:
        raise EnvironmentFault(
            f"{request.claim}: a worker process died ({error}); the finished cells are kept, the same command goes on"
        ) from None


def _calls(
    submit: Submit | None, request: Request, grid: Grid, todo: Sequence[Coordinates]
) -> Iterator[tuple[Coordinates, Callable[[], float]]]:
    """Each cell with what yields or raises its outcome: in order here, as they end elsewhere."""
    if submit is None:
        for cell in todo:
            yield cell, functools.partial(compute_cell, request, cell, grid.inside(cell))
    else:
        futures = {submit(compute_cell, request, cell, grid.inside(cell)): cell for cell in todo}
        for future in concurrent.futures.as_completed(futures):
            yield futures[future], future.result
