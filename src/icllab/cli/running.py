"""``icl run`` and ``icl demo``: measure, save the Dataset and its figure, judge."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icllab.cli import progress
from icllab.cli.reports import Report, lines, write_verdict
from icllab.core.errors import EnvironmentFault, InputError
from icllab.experiments import placement, requests, runner, store
from icllab.experiments.judging import draw_beside, judged, judgement, note

if TYPE_CHECKING:
    from rich.console import Console

DEMO = "asymptotics/double_descent"


def demo(out: Path) -> Report:
    """The first claim at size ``small``, on two cores where there are two."""
    return run(DEMO, {"size": "small", "out": out, "workers": min(2, os.cpu_count() or 1)})


def run(claim: str, options: Mapping[str, Any]) -> Report:
    """Compute what is not there yet, then judge what was asked for; ``options`` are those of the command line."""
    request = requests.requested(
        claim,
        options.get("size", "small"),
        axes=options.get("set"),
        seeds=options.get("seeds"),
        out=options.get("out", requests.OUT),
        control=options.get("control"),
        claims=options.get("claims"),
        placement=placement.Placement(options.get("device"), options.get("precision")),
    )
    if "distributed" in options:
        _join(options)
    _compile(request.size)
    how = {name: options[name] for name in ("workers", "scheduler", "limit", "shard", "fresh") if name in options}
    with progress.shown(claim) as shown:
        done = runner.compute(request, progress=shown, **how)
    if done.missing:
        return _of_shard(request, how["shard"], done)
    dataset, stale = runner.collect(request)
    results = request.root / "results.nc"
    store.write_dataset(results, dataset)
    experiment = request.experiment()
    files, notes = draw_beside(experiment, dataset, request.root / "figure")
    last = ["the last shard to end: every cell is here"] if "shard" in how else []
    verdict = judged(experiment, dataset, [*last, *done.notes, *stale, *notes], request.size)

    def plain(console: "Console") -> None:
        write_verdict(console, experiment.claim, request.size, request.control, verdict)
        where = [("results", results)] + ([("figure", files[0])] if files else [])
        asked = [(name, dataset.attrs[name]) for name in ("device", "precision") if name in options]
        lines(console, [*asked, *where, ("cells", f"{done.computed} computed, {done.kept} were there")])

    data = judgement(experiment, request, verdict)
    note(request.root, dataset, data)
    data |= {name: dataset.attrs[name] for name in ("device", "precision")}
    data |= {"cells": {"computed": done.computed, "kept": done.kept}, "dataset": results, "figure": files}
    return Report(data, plain, verdict.outcome.exit_status)


def _of_shard(request: requests.Request, shard: tuple[int, int], done: runner.Computed) -> Report:
    """Of a shard that has ended while cells of others are missing: there is nothing to judge yet."""

    def plain(console: "Console") -> None:
        there = f"{done.computed} computed, {done.kept} were there, {done.missing} of other shards are missing"
        said = f"{shard[0]} of {shard[1]} has ended; the last to end judges the claim"
        notes = [("note", one) for one in done.notes]
        lines(console, [("shard", said), ("cells", there), ("results", request.root), *notes])

    counts = {"computed": done.computed, "kept": done.kept, "missing": done.missing}
    where = {"claim": request.claim, "size": request.size, "control": request.control, "results": request.root}
    return Report({**where, "verdict": None, "shard": list(shard), "cells": counts, "notes": list(done.notes)}, plain)


def _join(options: Mapping[str, Any]) -> None:
    """Become one of several processes of JAX, each with its own devices; the cells are shared as by any processes."""
    for name in ("workers", "scheduler"):
        if name in options:
            raise InputError(f"expected distributed or {name}, got both; its processes are the workers")
    placement.distributed(options["distributed"])


def _compile(size: str) -> None:
    """Keep programs for the next run, unless the user says otherwise; at ``smoke`` compile them in less time."""
    from icllab.training.compilation import cache_compilations, compile_quickly

    if size == "smoke":
        compile_quickly()
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or os.environ.get("JAX_ENABLE_COMPILATION_CACHE") == "false":
        return
    with contextlib.suppress(EnvironmentFault):  # a run needs no cache
        cache_compilations()
