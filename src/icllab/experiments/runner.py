"""Run a claim's cells, each once, and read them back: resumable, in any number of processes and machines."""

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from icllab.core.errors import EnvironmentFault, IclError, InputError, expected, require_integer, require_number
from icllab.core.grid import Coordinates, Grid, spelled
from icllab.experiments import provenance, registry
from icllab.experiments.cells import Answer
from icllab.experiments.consolidation import held, unfinished
from icllab.experiments.experiment import Experiment
from icllab.experiments.heartbeat import beating, beats
from icllab.experiments.leases import Leases
from icllab.experiments.pace import share, spread
from icllab.experiments.pools import pool, require_guard
from icllab.experiments.requests import Request
from icllab.experiments.store import SCHEMA, Store
from icllab.experiments.sweep import Sweep
from icllab.experiments.tally import Progress, Tally

if TYPE_CHECKING:
    import xarray as xr


class RunInterrupted(IclError):
    """Ctrl-C; the finished cells are on disk (exit status 130)."""

    exit_status = 130


@dataclass(frozen=True)
class Computed:
    """What a run did.

    Attributes:
        computed: Cells that it computed.
        kept: Cells of its own part that were there already, or that other runs computed meanwhile.
        missing: Cells of the whole sweep that are not there yet: those of other shards.
        notes: What else is to be said.
    """

    computed: int
    kept: int
    missing: int
    notes: tuple[str, ...] = ()


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
    workers: int | None = None,
    scheduler: str | None = None,
    limit: float | None = None,
    fresh: bool = False,
    progress: Progress = lambda done, total, what, left: None,
) -> Finished:
    """Compute what ``request`` asks for and its store lacks; return everything it asked for."""
    done = compute(request, workers=workers, scheduler=scheduler, limit=limit, fresh=fresh, progress=progress)
    dataset, notes = collect(request)
    return Finished(dataset, request.root, done.computed, done.kept, (*done.notes, *notes))


def compute(
    request: Request,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    limit: float | None = None,
    shard: tuple[int, int] | None = None,
    fresh: bool = False,
    progress: Progress = lambda done, total, what, left: None,
) -> Computed:
    """Compute the cells that a store lacks: all that ``request`` asks for, or one shard of them.

    Args:
        request: What is asked for.
        workers: Number of processes; None: one.
        scheduler: Address of a dask scheduler whose workers measure instead.
        limit: Seconds that a cell may take: then its worker is replaced, and the cell given to another.
        shard: ``(i, N)``: the cells of the i-th of N disjoint parts, from 1 on.
        fresh: Set the store aside and start again.
        progress: Told how far the whole sweep is.

    Raises:
        InputError: A value that cannot be used; or every cell that failed refused its input.
        EnvironmentFault: Cells failed; all others are kept.
        RunInterrupted: Ctrl-C.
    """
    if workers is not None and scheduler is not None:
        raise InputError("expected workers or a scheduler, got both; a scheduler brings its own workers")
    if workers is not None:
        require_integer("workers", workers)
    if scheduler is not None and not isinstance(scheduler, str):
        raise expected("scheduler", "the address of a dask scheduler, as text", scheduler)
    if limit is not None:
        require_number("limit", limit, "a positive number of seconds", lambda seconds: 0 < seconds < math.inf)
    if shard is not None and not 1 <= shard[0] <= shard[1]:
        raise expected("shard", "i/N with i from 1 to N", "/".join(map(str, shard)))
    if shard is not None and fresh:
        raise InputError("expected shard or fresh, got both; each shard would set the others' cells aside")
    if scheduler is None and ((workers or 1) > 1 or limit is not None):
        require_guard()  # before a store is opened, which ``fresh`` would set aside
    experiment = request.experiment()
    grid = experiment.grid(request.size, request.axes, request.seeds)
    notes = _opened(request, experiment, grid, fresh)
    store, cells = Store(request.root), list(grid.cells())
    own = cells if shard is None else share(cells, *shard)
    todo, damaged = unfinished(store, grid, own)
    if shard is not None and not own:
        notes.append(f"shard {shard[0]} of {shard[1]} has no cells: there are {len(cells)}")
    notes += [f"{path} was damaged, or another cell's; it was set aside and is computed again" for path in damaged]
    paths = {store.path(cell) for cell in own}
    others = [cell for cell in cells if store.path(cell) not in paths]
    try:
        with (
            beating(request.root) as heart,
            Leases(store, heart) as leases,
            pool(workers or 1, scheduler, limit) as chosen,
        ):
            tally = Tally(len(cells), todo, others, store=store, pool=chosen, heart=heart, progress=progress)
            Sweep(request, grid, chosen, leases, limit).run(spread(todo), tally.ended)
    except KeyboardInterrupt:
        raise RunInterrupted(
            f"{request.claim}: interrupted; {len(own) - len(unfinished(store, grid, own)[0])} of {len(own)} cells "
            "are kept, the same command goes on"
        ) from None
    if tally.failed:
        alone = not any(beat.alive for beat in beats(request.root))
        raise _failed(request, grid, tally.failed, len(own), withdraw=shard is None or alone)
    absent = [cell for cell in others if not store.has(cell)]
    if not absent:
        absent, damaged = unfinished(store, grid, others)
        notes += [f"{path} was damaged, or another cell's; it was set aside" for path in damaged]
    failures = [path for cell in absent if (path := store.failure(cell)).exists()]
    if failures:
        notes.append(f"{len(failures)} of the missing cells have failed; of the first, {failures[0]} tells why")
    return Computed(tally.computed, len(own) - tally.computed, len(absent), tuple(notes))


def collect(request: Request) -> tuple["xr.Dataset", list[str]]:
    """Everything that ``request`` asks for, and whether it is stale; missing cells are refused."""
    experiment = request.experiment()
    grid = experiment.grid(request.size, request.axes, request.seeds)
    dataset = _collected(Store(request.root), experiment, [grid], keep=True)
    return dataset, _notes(request, dataset)


def read(request: Request, root: Path | None = None) -> tuple["xr.Dataset", list[str]]:
    """Everything that was ever asked of a store, without computing; missing cells are refused.

    ``root``: where the store is, if it was moved.
    """
    experiment = request.experiment()
    store = Store.existing(request.root if root is None else root)
    stored = store.configuration()
    if "fixed" not in stored or stored.get("schema") != SCHEMA:
        raise InputError(f"{store.root}: expected results of schema {SCHEMA}, got {stored.get('schema')!r}")
    experiment = experiment.with_fixed({name: (value,) for name, value in stored["fixed"].items()})
    experiment = dataclasses.replace(experiment, precision=stored.get("precision", experiment.precision))
    store = Store.open(store.root, provenance.configuration(experiment, request.size, request.control, SCHEMA))
    dataset = _collected(store, experiment, store.requested(), keep=False)
    return dataset, _notes(request, dataset)


def _failed(
    request: Request, grid: Grid, failed: Sequence[tuple[Coordinates, Answer]], total: int, *, withdraw: bool
) -> IclError:
    """What to say of cells that failed; a request of which none can be computed is asked for no more."""
    store = Store(request.root)
    if withdraw and len(failed) == total:
        store.withdraw(grid)
    cell, first = failed[0]
    message = (
        f"{request.claim}: {len(failed)} of {total} cells failed, {total - len(failed)} are kept; "
        f"the first, {spelled(cell)}: {first.message}"
    )
    if all(answer.ending == "refused" for _, answer in failed):
        return InputError(message)
    return EnvironmentFault(f"{message}; the whole of it is in {store.failure(cell)}")


def _several(text: str) -> list[str]:
    """The values of an attribute, of which a Dataset of unlike cells has a list."""
    return list(map(str, json.loads(text))) if text.startswith("[") else [text]


def _opened(request: Request, experiment: Experiment, grid: Grid, fresh: bool) -> list[str]:
    root = request.root
    aside = Store(root).set_aside() if fresh else None
    store = Store.open(root, provenance.configuration(experiment, request.size, request.control, SCHEMA))
    store.request(grid)
    return [f"the old results are now in {aside}"] if aside else []


def _collected(store: Store, experiment: Experiment, grids: Sequence[Grid], *, keep: bool) -> "xr.Dataset":
    """All that ``grids`` ask for; with ``keep``, what was read cell by cell opens at once the next time."""
    from icllab.experiments.results import described, from_stacks, require_complete

    found = held(store, grids, keep=keep)
    failures = [path for cell in found.missing if (path := store.failure(cell)).exists()]
    require_complete(experiment.name, found.missing, found.wanted, failures)
    dataset = from_stacks(experiment, grids, found.stacks, lambda cell: store.path(cell).name)
    if experiment.theory is not None:
        dataset = experiment.theory(dataset)
    return described(experiment, dataset)


def _notes(request: Request, dataset: "xr.Dataset") -> list[str]:
    """What whoever reads a verdict should know: results that are stale, of another precision, measured in parts."""
    notes = []
    if dataset.attrs["sources_digest"] != registry.digest(request.claim, request.claims):
        notes.append(
            "stale: the sources these results depend on have changed since; `icl run --fresh` computes them again"
        )
    for name, version in (("icllab", "package_version"), ("JAX", "jax_version")):
        several = _several(dataset.attrs.get(version, ""))
        if len(several) > 1:
            notes.append(
                f"cells of {' and '.join(several)} of {name}: versions may measure other numbers; "
                "`icl run --fresh` computes all with this one"
            )
    own, here = registry.load(request.claim, request.claims).precision, dataset.attrs.get("precision")
    if here not in (None, own):
        notes.append(f"measured in {here}; the claim is about {own}, and a record is of that alone")
    if "seeds_at_once" in dataset.attrs:
        fewest = min(re.findall(r"\d+", dataset.attrs["seeds_at_once"]), key=int)
        notes.append(f"a device was out of memory: seeds of a cell were measured {fewest} at a time")
    return notes
