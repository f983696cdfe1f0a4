"""``icl cost``, ``icl submit`` and ``icl run --dry-run``: what a run costs, and a run as jobs of a batch system."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icllab.cli.options import axes
from icllab.cli.parameters import Batch, Sweep
from icllab.cli.reports import Report, lines, paragraph
from icllab.core.errors import CellsMissing, InputError, expected
from icllab.core.grid import spelled
from icllab.lab import cost as costs
from icllab.lab import recording, registry, submission
from icllab.lab.executors import parameter
from icllab.lab.job import OUT, Request, new_request

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN = 8


def cost(claim: str, options: Sweep) -> Report:
    """Core-hours, memory and disk of a run on this machine, after a measurement of ten seconds."""
    registry.load(claim, options.claims)  # refuses one from elsewhere: its smoke would run its code
    request = _request(claim, options)
    record, smoke = costs.basis(request), costs.measure_smoke(request)
    grid = request.claim().grid(request.size, request.axes, request.seeds)
    hours = costs.seconds_here(record, smoke).times(1 / 3600)
    rows: list[tuple[str, object]] = [("cells", len(grid)), ("record", _record(record))]
    data: dict[str, Any] = {"claim": claim, "size": request.size, "control": request.control, "cells": len(grid)}
    data |= {"record": {"size": record.size, "seconds": record.recorded, "machine": record.machine}}
    data |= {"scale": record.scale, "core_hours": _plain(hours), "memory_bytes": record.peak_bytes, "disk_bytes": None}
    if smoke is None:
        rows.append(("machine", f"not measured: the smoke takes over {costs.SECONDS:g} s of CPU time here, or fails"))
    else:
        recorded = "not recorded" if record.smoke is None else f"{_duration(record.smoke)} in the record"
        rows.append(("machine", f"measured: smoke takes {_duration(smoke.seconds)} of a core here, {recorded}"))
    rows.append(("core-hours", f"{_range(hours)}; in brackets, bounds that 9 runs of 10 are to keep"))
    if record.peak_bytes:
        rows.append(("memory", f"{_bytes(record.peak_bytes)} a process, recorded"))
    elif smoke is not None and smoke.peak_bytes:
        rows.append(("memory", f"more than {_bytes(smoke.peak_bytes)} a process, measured at smoke; not extrapolated"))
        data["memory_bytes"] = smoke.peak_bytes
    if smoke is not None:
        data["disk_bytes"] = disk = 2 * smoke.bytes_of(grid)
        rows.append(("disk", f"{_bytes(disk)}, by the shapes measured at smoke; checkpoints come besides"))
    data |= {"measured": smoke is not None, "smoke_seconds": smoke and smoke.seconds}
    return Report(data, lambda console: lines(console, rows))


def dry_run(request: Request, options: Mapping[str, Any]) -> Report:
    """What ``icl run`` would measure, where it would be kept and what it costs by the record; nothing is measured."""
    kept, missing = costs.plan(request, shard=options.get("shard"), fresh=options.get("fresh", False))
    data: dict[str, Any] = {"claim": request.name, "size": request.size, "control": request.control}
    data |= {"cells": {"kept": len(kept), "missing": missing}, "results": request.root}
    rows: list[tuple[str, object]] = [("cells", f"{len(kept)} are there, {len(missing)} to measure")]
    request_grid = request.claim().grid(request.size, request.axes, request.seeds)
    try:
        record = costs.basis(request)
    except CellsMissing as error:
        rows.append(("cost", error))
    else:
        each = costs.seconds_here(record, None).times(1 / len(request_grid))
        total = each.times(len(missing))
        data |= {"seconds_each": _plain(each), "seconds": _plain(total)}
        rows += [("record", _record(record)), ("each", f"{_range(each, _duration)} of a core")]
        rows += [("all", f"{_range(total, _duration)} of a core, by the record; nothing was measured")]
    rows.append(("results", request.root))
    if request.claims and (note := recording.size_note(request.claim(), request_grid)):
        rows.append(("note", note))
    rows += [("measure" if i == 0 else "", spelled(cell) or "the only cell") for i, cell in enumerate(missing[:_SHOWN])]
    rows += [("", f"and {len(missing) - _SHOWN} more")] * (len(missing) > _SHOWN)
    return Report(data, lambda console: lines(console, rows))


def submit(claim: str, options: Batch) -> Report:
    """Submit a run to Slurm; or say or print what would be submitted."""
    if options.slurm == (options.print is not None):
        raise InputError("submit: expected --slurm, or --print with pbs, kubernetes or skypilot; choose one")
    target = "--slurm" if options.print is None else f"--print {options.print}"
    values = {"partition": options.partition, "parameter": options.parameter, "dry-run": options.dry_run or None}
    values |= {"image": options.image, "volume": options.volume}
    for name, value in values.items():
        if value is not None and name not in submission.USES[target]:
            users = ", ".join(user for user, names in submission.USES.items() if name in names)
            raise expected(f"--{name}", f"no such option with {target}", value, f"it is an option of {users}")
    submission.require_bound("jobs", options.jobs)
    remote = options.print in ("kubernetes", "skypilot")
    if remote and options.claims:
        raise InputError(f"submit: expected a claim of the book for {options.print}, got --claims")
    out = Path(options.out or (submission.RESULTS if remote else OUT))
    request = _request(claim, options, out if remote else out.absolute())
    jobs = submission.Jobs(
        tuple(_words(request, options)),
        min(options.jobs, len(request.claim().grid(request.size, request.axes, request.seeds))),
        submission.minutes(options.time),
        options.workers,
        options.memory,
        f"icl-{re.sub('[^a-z0-9]+', '-', claim.lower().partition('/')[2])[:48].strip('-')}",
    )
    if options.print is not None:
        text = submission.script(
            options.print, jobs, image=options.image or "icl-lab", volume=options.volume or "icl-results"
        )
        data = {"claim": claim, "system": options.print, "script": text}
        return Report(data, lambda console: paragraph(console, text))
    parameters = dict(map(parameter, options.parameter or ()))
    parameters |= {} if options.partition is None else {"slurm_partition": options.partition}
    folder = request.root / "jobs"
    if options.dry_run:
        report = dry_run(request, {})
        rows = [("jobs", f"{jobs.count} of {jobs.cores} core(s), {jobs.memory} GB and {jobs.walltime}; none submitted")]
        rows += [("run", f"icl {jobs.command('I/' + str(jobs.count), ())}"), ("logs", folder)]

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


def _record(record: costs.Basis) -> str:
    scale = "" if record.scale == 1 else f", times {record.scale:.2g} for the work"
    scale += f"; {_duration(record.compilation)} of it to compile" if scale and record.compilation else ""
    return f"{_duration(record.recorded)} at {record.size}{scale}; {record.machine}"


def _range(estimate: costs.Estimate, text: Any = lambda value: f"{value:.1g}" if value < 1 else f"{value:.2g}") -> str:
    low, high = estimate.interval
    return f"{text(estimate.value)} ({text(low)} to {text(high)})"


def _duration(seconds: float) -> str:
    """Two digits, in a unit that suits."""
    unit, name = (1, "s") if seconds < 120 else (60, "min") if seconds < 7200 else (3600, "h")
    return f"{float(f'{seconds / unit:.2g}'):g} {name}"


def _plain(estimate: costs.Estimate) -> dict[str, float]:
    low, high = estimate.interval
    return {"value": estimate.value, "low": low, "high": high}


def _bytes(count: float) -> str:
    unit, name = (1e9, "GB") if count >= 1e9 else (1e6, "MB")
    return f"{float(f'{count / unit:.2g}'):g} {name}"
