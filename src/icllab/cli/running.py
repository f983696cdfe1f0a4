"""``icl run`` and ``icl demo``: measure, save the Dataset and its figure, judge."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icllab.cli import progress
from icllab.cli.reports import Report, lines, write_verdict
from icllab.core.errors import EnvironmentFault, InputError
from icllab.lab import placement, records
from icllab.lab.claim import SIZES
from icllab.lab.job import OUT, Request, new_request
from icllab.lab.run import Counts, collect, compute, read, write_results

if TYPE_CHECKING:
    import xarray as xr
    from rich.console import Console

DEMO = "asymptotics/double_descent"


def demo(out: Path) -> Report:
    """The first claim at size ``small``, on two cores where there are two."""
    return run(DEMO, {"size": "small", "out": out, "workers": min(2, os.cpu_count() or 1)})


def run(claim: str, options: Mapping[str, Any]) -> Report:
    """Compute the cells that are not there yet, then judge them; ``options`` are those of the command line."""
    request = new_request(
        claim,
        options.get("size", "small"),
        axes=options.get("set"),
        seeds=options.get("seeds"),
        out=options.get("out", OUT),
        control=options.get("control"),
        claims=options.get("claims"),
        placement=placement.Placement(options.get("device"), options.get("precision")),
    )
    if "distributed" in options:
        _join(options)
    _compile(request.size)
    with progress.bar(claim) as report_progress:
        counts = compute(
            request,
            workers=options.get("workers"),
            scheduler=options.get("scheduler"),
            limit=options.get("limit"),
            shard=options.get("shard"),
            fresh=options.get("fresh", False),
            progress=report_progress,
        )
    if counts.missing:
        return _shard(request, options["shard"], counts)
    dataset, notes = collect(request)
    notes = [*counts.notes, *notes]
    if "shard" in options:
        notes.insert(0, "the last shard to end: every cell is here")
    return (
        _regression(request, dataset, counts, notes)
        if request.size == SIZES[0]
        else _judged(request, dataset, counts, notes, [name for name in ("device", "precision") if name in options])
    )


def _judged(request: Request, dataset: "xr.Dataset", counts: Counts, notes: list[str], placements: list[str]) -> Report:
    """The verdict on a complete run, with its figure."""
    from icllab.lab.results import figure_files, judge, judgement, note_verdict

    claim, results = request.claim(), write_results(request.root, dataset)
    figures, faults = figure_files(claim, dataset, request.root / "figure")
    verdict = judge(claim, dataset, [*notes, *faults])
    note_verdict(request, verdict)

    def plain(console: "Console") -> None:
        write_verdict(console, claim.sentence, request.size, request.control, verdict)
        files = [("results", results), *[("figure", figure) for figure in figures[:1]]]
        attributes = [(name, dataset.attrs[name]) for name in placements]
        lines(console, [*attributes, *files, ("cells", f"{counts.computed} computed, {counts.kept} were there")])

    data = judgement(request, verdict) | {name: dataset.attrs[name] for name in ("device", "precision")}
    data |= {"cells": {"computed": counts.computed, "kept": counts.kept}, "dataset": results, "figure": figures}
    return Report(data, plain, verdict.outcome.exit_status)


def _regression(request: Request, dataset: "xr.Dataset", counts: Counts, notes: list[str]) -> Report:
    """A run at ``smoke``, which has no verdict: whether its numbers are those of the record."""
    from icllab.lab.results import figure_files

    claim, results = request.claim(), write_results(request.root, dataset)
    figures, faults = figure_files(claim, dataset, request.root / "figure")
    changes = None
    if request.control is None and SIZES[0] in records.groups(request.name, request.claims):
        golden = records.data(request.name, SIZES[0], None, request.claims)
        measured, _ = read(request, theory=False)
        changes = records.differences(golden, records.reduced(claim, measured))
    agreement = "not recorded" if changes is None else "as recorded" if not changes else "moved"

    def plain(console: "Console") -> None:
        rows = [("numbers", f"{agreement}; smoke is a regression test and gets no verdict"), ("results", results)]
        rows += [("moved", change) for change in changes or ()] + [("note", note) for note in [*notes, *faults]]
        rows += [("figure", figure) for figure in figures[:1]]
        lines(console, [*rows, ("cells", f"{counts.computed} computed, {counts.kept} were there")])

    data = {
        "claim": request.name,
        "verdict": None,
        "sentence": claim.sentence,
        "size": request.size,
        "control": request.control,
        "results": request.root,
        "numbers": agreement,
        "moved": changes or [],
        "notes": [*notes, *faults],
        **{name: dataset.attrs[name] for name in ("device", "precision")},
        "cells": {"computed": counts.computed, "kept": counts.kept},
        "dataset": results,
        "figure": figures,
    }
    return Report(data, plain, 1 if changes else 0)


def _shard(request: Request, shard: tuple[int, int], counts: Counts) -> Report:
    """A shard that has ended while cells of others are missing: there is nothing to judge yet."""

    def plain(console: "Console") -> None:
        cells = f"{counts.computed} computed, {counts.kept} were there, {counts.missing} of other shards are missing"
        state = f"{shard[0]} of {shard[1]} has ended; the last to end judges the claim"
        notes = [("note", note) for note in counts.notes]
        lines(console, [("shard", state), ("cells", cells), ("results", request.root), *notes])

    cells = {"computed": counts.computed, "kept": counts.kept, "missing": counts.missing}
    data = {"claim": request.name, "size": request.size, "control": request.control, "results": request.root}
    return Report({**data, "verdict": None, "shard": list(shard), "cells": cells, "notes": list(counts.notes)}, plain)


def _join(options: Mapping[str, Any]) -> None:
    """Become one of several processes of JAX, each with its own devices; the cells are shared as by any processes."""
    for name in ("workers", "scheduler"):
        if name in options:
            raise InputError(f"expected distributed or {name}, got both; its processes are the workers")
    placement.distributed(options["distributed"])


def _compile(size: str) -> None:
    """Keep programs for the next run, unless the user says otherwise; at ``smoke`` compile them in less time."""
    from icllab.training.compilation import cache_compilations, compile_quickly

    if size == SIZES[0]:
        compile_quickly()
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or os.environ.get("JAX_ENABLE_COMPILATION_CACHE") == "false":
        return
    with contextlib.suppress(EnvironmentFault):  # a run needs no cache
        cache_compilations()
