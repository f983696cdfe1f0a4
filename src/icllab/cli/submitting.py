"""``icl claim cost``, ``icl claim submit`` and ``icl run --dry-run``: the cost of a run, and a run as jobs of Slurm."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icllab.cli.options import axes
from icllab.cli.parameters import Batch, Sweep
from icllab.cli.reports import Report, lines
from icllab.core.errors import CellsMissing
from icllab.core.grid import spelled
from icllab.lab import cost as costs
from icllab.lab import recording, registry, submission
from icllab.lab.job import OUT, Request, new_request

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN = 8
_FACTOR = f"within a factor of {costs.FACTOR:g}"


def cost(claim: str, options: Sweep) -> Report:
    """Core-hours and memory of a run, by the claim's record."""
    registry.load(claim, options.claims)  # refuses a claim from elsewhere, whose code would run
    request = _request(claim, options)
    record = costs.estimate(request)
    hours = record.seconds / 3600
    cells = len(request.claim().grid(request.size, request.axes, request.seeds))
    data: dict[str, Any] = {"claim": claim, "size": request.size, "control": request.control, "cells": cells}
    data |= {"record": {"size": record.size, "seconds": record.recorded, "machine": record.machine}}
    data |= {"scale": record.scale, "core_hours": _bounded(hours), "memory_bytes": record.peak_bytes}
    amount = f"{hours:.1g}" if hours < 1 else f"{hours:.2g}"
    rows: list[tuple[str, object]] = [("cells", cells), ("record", _record(record))]
    rows.append(("core-hours", f"{amount}, {_FACTOR}"))
    if record.peak_bytes:
        rows.append(("memory", f"{_bytes(record.peak_bytes)} a process, recorded"))
    return Report(data, lambda console: lines(console, rows))


def dry_run(request: Request, options: Mapping[str, Any]) -> Report:
    """The cells that ``icl run`` would measure, their directory and their cost by the record; nothing is measured."""
    kept, missing = costs.plan(request, shard=options.get("shard"), fresh=options.get("fresh", False))
    data: dict[str, Any] = {"claim": request.name, "size": request.size, "control": request.control}
    data |= {"cells": {"kept": len(kept), "missing": missing}, "results": request.root}
    rows: list[tuple[str, object]] = [("cells", f"{len(kept)} are there, {len(missing)} to measure")]
    grid = request.claim().grid(request.size, request.axes, request.seeds)
    try:
        record = costs.estimate(request)
    except CellsMissing as error:
        rows.append(("cost", error))
    else:
        each = record.seconds / len(grid)
        total = each * len(missing)
        data |= {"seconds_each": _bounded(each), "seconds": _bounded(total)}
        rows += [("record", _record(record)), ("each", f"{_duration(each)} of a core, {_FACTOR}")]
        rows += [("all", f"{_duration(total)} of a core, by the record; nothing was measured")]
    rows.append(("results", request.root))
    if request.claims and (note := recording.size_note(request.claim(), grid)):
        rows.append(("note", note))
    rows += [("measure" if i == 0 else "", spelled(cell) or "the only cell") for i, cell in enumerate(missing[:_SHOWN])]
    rows += [("", f"and {len(missing) - _SHOWN} more")] * (len(missing) > _SHOWN)
    return Report(data, lambda console: lines(console, rows))


def submit(claim: str, options: Batch) -> Report:
    """Submit a run to Slurm, or say what would be submitted."""
    submission.require_bound("jobs", options.jobs)
    request = _request(claim, options, Path(options.out or OUT).absolute())
    jobs = submission.Jobs(
        tuple(_words(request, options)),
        min(options.jobs, len(request.claim().grid(request.size, request.axes, request.seeds))),
        submission.minutes(options.time),
        options.workers,
        options.memory,
        f"icl-{re.sub('[^a-z0-9]+', '-', claim.lower().partition('/')[2])[:48].strip('-')}",
    )
    parameters = dict(map(submission.parameter, options.parameter or ()))
    parameters |= {} if options.partition is None else {"slurm_partition": options.partition}
    folder = request.root / "jobs"
    if options.dry_run:
        report = dry_run(request, {})
        limit = f"{jobs.minutes // 60:02}:{jobs.minutes % 60:02}:00"
        rows = [("jobs", f"{jobs.count} of {jobs.cores} core(s), {jobs.memory} GB and {limit}; none submitted")]
        rows += [("run", f"icl {shlex.join(jobs.run)} --shard I/{jobs.count}"), ("logs", folder)]

        def plain(console: "Console") -> None:
            report.plain(console)
            lines(console, rows)

        return Report({**report.data, "jobs": jobs.count, "logs": folder}, plain)
    numbers = submission.submit(jobs, request.root, parameters=parameters)
    number = numbers[0].partition("_")[0]
    where = ["--out", str(request.out)]
    for name, value in (("--claims", request.claims), ("--control", request.control)):
        where += [name, value] if value else []
    rows = [("jobs", f"{len(numbers)} of array {number}" if len(numbers) > 1 else number), ("logs", folder)]
    rows += [("state", f"squeue --job {number}"), ("stop", f"scancel {number}")]
    rows += [("judge", " ".join(["icl check", claim, "--size", request.size, *where]))]
    return Report({"claim": claim, "jobs": numbers, "logs": folder}, lambda console: lines(console, rows))


def _request(claim: str, options: Sweep, out: Path | str = OUT) -> Request:
    return new_request(
        claim,
        options.size,
        axes=axes(options.set or ()),
        seeds=options.seeds,
        out=out,
        control=options.control,
        claims=options.claims,
    )


def _words(request: Request, options: Batch) -> list[str]:
    """The words of ``icl run`` that make the same request, without its shard."""
    words = ["run", request.name, "--size", request.size, "--out", request.out]
    words += [word for text in options.set or () for word in ("--set", text)]
    values = {"seeds": options.seeds, "control": options.control, "claims": request.claims}
    values |= {"workers": options.workers if options.workers > 1 else None}
    return words + [word for name, value in values.items() if value is not None for word in (f"--{name}", str(value))]


def _record(record: costs.Cost) -> str:
    scale = "" if record.scale == 1 else f", times {record.scale:.2g} for the work"
    return f"{_duration(record.recorded)} at {record.size}{scale}; {record.machine}"


def _duration(seconds: float) -> str:
    """Two digits, in seconds, minutes or hours."""
    unit, name = (1, "s") if seconds < 120 else (60, "min") if seconds < 7200 else (3600, "h")
    return f"{float(f'{seconds / unit:.2g}'):g} {name}"


def _bounded(value: float) -> dict[str, float]:
    return {"value": value, "low": value / costs.FACTOR, "high": value * costs.FACTOR}


def _bytes(count: float) -> str:
    unit, name = (1e9, "GB") if count >= 1e9 else (1e6, "MB")
    return f"{float(f'{count / unit:.2g}'):g} {name}"
