"""``icl run`` and ``icl demo``: measure, save the Dataset and its figure, judge."""

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icllab.cli import progress
from icllab.cli.reports import Report, lines, write_verdict
from icllab.core.errors import EnvironmentFault, InputError
from icllab.lab import placement, recording, records, regression
from icllab.lab.checks import Verdict
from icllab.lab.claim import SIZES
from icllab.lab.job import OUT, Request, new_request
from icllab.lab.run import Counts, collect, compute, read, write_results

if TYPE_CHECKING:
    import xarray as xr
    from rich.console import Console

DEMO = "asymptotics/double_descent"
NETWORK = ("store", "family", "heads", "checkpoints", "load")
"""Options that open a network by its name."""


def demo(out: Path) -> Report:
    """The first claim at size ``small``, on two cores where there are two."""
    return run(DEMO, {"size": "small", "out": out, "workers": min(2, os.cpu_count() or 1)})


def run(claim: str, options: Mapping[str, Any]) -> Report:
    """Compute the missing cells, then judge all; ``options`` are the merged options of the command."""
    request = new_request(
        claim,
        options.get("size", "small"),
        axes=options.get("set"),
        seeds=options.get("seeds"),
        out=options.get("out", OUT),
        control=options.get("control"),
        claims=options.get("claims"),
        placement=placement.Placement(options.get("device"), options.get("precision")),
        network=options.get("network"),
        task=options.get("task"),
        options={name: str(value) if name == "store" else value for name in NETWORK if (value := options.get(name))},
    )
    grid = request.claim().grid(request.size, request.axes, request.seeds)
    if options.get("dry_run"):
        from icllab.cli.submitting import dry_run

        return dry_run(request, options)
    if "distributed" in options:
        for name in ("workers", "scheduler"):
            if name in options:
                raise InputError(f"expected distributed or {name}, got both; its processes are the workers")
        placement.distributed(options["distributed"])
    if "scheduler" not in options:
        placement.require_start(children=options.get("workers", 1) > 1 or "limit" in options)
    if request.claims and (note := recording.size_note(request.claim(), grid)):
        print(f"icl: {claim}: {note}", file=sys.stderr, flush=True)
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
    placements = [name for name in ("device", "precision") if name in options]
    worlds = {}
    if request.network is not None and request.control is None:
        from icllab.lab.controls import control_verdicts, unfailed

        given = {name: options.get(name) for name in ("workers", "scheduler", "limit")}
        worlds = control_verdicts(request, progress=progress.bar, fresh=options.get("fresh", False), **given)
        notes += unfailed(worlds)
    return _complete(request, dataset, counts, notes, placements, worlds)


def _complete(
    request: Request,
    dataset: "xr.Dataset",
    counts: Counts,
    notes: Sequence[str],
    placements: Sequence[str],
    worlds: Mapping[str, str],
) -> Report:
    """A complete run with its figure: its verdict; at ``smoke``, whether its numbers are those of the record."""
    from icllab.lab.drawing import figure_files
    from icllab.lab.judging import judge
    from icllab.lab.verdict_files import judgement, note_verdict

    claim, results = request.claim(), write_results(request.root, dataset)
    figures, faults = figure_files(claim, dataset, request.root / "figure")
    regression = request.size == SIZES[0]
    verdict = Verdict(claim.name, (), (*notes, *faults)) if regression else judge(claim, dataset, [*notes, *faults])
    data, status = judgement(request, verdict), verdict.outcome.exit_status
    rows = [(name, dataset.attrs[name]) for name in placements]
    if regression:
        changes = _changes(request)
        agreement = "not recorded" if changes is None else "moved" if changes else "as recorded"
        data |= {"verdict": None, "numbers": agreement, "moved": changes or []}
        status = 3 if changes else 0  # 1 means that a claim fails
        rows += [("numbers", f"{agreement}; smoke is a regression test and gets no verdict")]
        rows += [("moved", change) for change in changes or ()] + [("note", note) for note in verdict.notes]
    else:
        note_verdict(request, verdict)
    rows += [(f"control {name}", f"{outcome}, as it has to" if outcome == "fails" else outcome)
             for name, outcome in worlds.items()]  # fmt: skip
    data |= {"controls": dict(worlds)} if worlds else {}
    rows += [("results", results), *(("figure", figure) for figure in figures[:1])]
    rows += [("cells", f"{counts.computed} computed, {counts.kept} were there")]
    data |= {name: dataset.attrs[name] for name in ("device", "precision")}
    data |= {"cells": {"computed": counts.computed, "kept": counts.kept}, "dataset": results, "figure": figures}

    def plain(console: "Console") -> None:
        if not regression:
            write_verdict(console, claim.sentence, request.size, request.control, verdict)
            if request.network is not None:
                sizes = f"({request.size}{f', under {request.control!r}' if request.control else ''})"
                console.out(f"  {verdict.outcome} of {request.network.name} {sizes}", highlight=False)
        lines(console, rows)

    return Report(data, plain, status)


def _changes(request: Request) -> list[str] | None:
    """Lines on numbers of a run at ``smoke`` that differ from the golden ones; None where none are recorded."""
    if request.control is not None or SIZES[0] not in records.groups(request.name, request.claims):
        return None
    golden = records.data(request.name, SIZES[0], None, request.claims)
    return regression.differences(golden, records.reduced(request.claim(), read(request, theory=False)[0]))


def _shard(request: Request, shard: tuple[int, int], counts: Counts) -> Report:
    """Report a finished shard while cells of other shards are missing: nothing is judged yet."""

    def plain(console: "Console") -> None:
        cells = f"{counts.computed} computed, {counts.kept} were there, {counts.missing} of other shards are missing"
        state = f"{shard[0]} of {shard[1]} has ended; the last to end judges the claim"
        notes = [("note", note) for note in counts.notes]
        lines(console, [("shard", state), ("cells", cells), ("results", request.root), *notes])

    cells = {"computed": counts.computed, "kept": counts.kept, "missing": counts.missing}
    data = {"claim": request.name, "size": request.size, "control": request.control, "results": request.root}
    return Report({**data, "verdict": None, "shard": list(shard), "cells": cells, "notes": list(counts.notes)}, plain)


def _compile(size: str) -> None:
    """Keep programs for the next run, unless the user says otherwise; at ``smoke`` compile them in less time."""
    from icllab.training.compilation import cache_compilations, compile_quickly

    if size == SIZES[0]:
        compile_quickly()
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or os.environ.get("JAX_ENABLE_COMPILATION_CACHE") == "false":
        return
    with contextlib.suppress(EnvironmentFault):  # a run needs no cache
        cache_compilations()
