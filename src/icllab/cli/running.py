"""``icl run`` and ``icl demo``: measure, save the Dataset and its figure, judge."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icllab.cli import progress
from icllab.cli.reports import Report, lines, write_verdict
from icllab.core.errors import EnvironmentFault, InputError
from icllab.experiments import requests, runner, store
from icllab.experiments.judging import draw_beside, judged, judgement, note

if TYPE_CHECKING:
    from rich.console import Console

DEMO = "asymptotics/double_descent"


def demo(out: Path) -> Report:
    """The first claim at size ``small``, on two cores where there are two."""
    return run(DEMO, {"size": "small", "out": out, "workers": min(2, os.cpu_count() or 1)})


def run(claim: str, options: Mapping[str, Any]) -> Report:
    """Compute what is not there yet, then judge what was asked for; ``options`` are those of the command line."""
    workers, scheduler = options.get("workers"), options.get("scheduler")
    if workers is not None and scheduler is not None:
        raise InputError("expected --workers or --scheduler, got both; a scheduler brings its own workers")
    request = requests.requested(
        claim,
        options.get("size", "small"),
        axes=options.get("set"),
        seeds=options.get("seeds"),
        out=options.get("out", requests.OUT),
        control=options.get("control"),
        claims=options.get("claims"),
    )
    _compile(request.size)
    with progress.shown(claim) as shown:
        outcome = runner.execute(
            request,
            workers=1 if workers is None else workers,
            scheduler=scheduler,
            fresh=options.get("fresh", False),
            progress=shown,
        )
    results = outcome.root / "results.nc"
    store.write_dataset(results, outcome.dataset)
    experiment = request.experiment()
    files, notes = draw_beside(experiment, outcome.dataset, outcome.root / "figure")
    verdict = judged(experiment, outcome.dataset, [*outcome.notes, *notes], request.size)

    def plain(console: "Console") -> None:
        write_verdict(console, experiment.claim, request.size, request.control, verdict)
        where = [("results", results)] + ([("figure", files[0])] if files else [])
        lines(console, [*where, ("cells", f"{outcome.computed} computed, {outcome.kept} were there")])

    data = judgement(experiment, request, verdict)
    note(outcome.root, outcome.dataset, data)
    data |= {"cells": {"computed": outcome.computed, "kept": outcome.kept}, "dataset": results, "figure": files}
    return Report(data, plain, verdict.outcome.exit_status)


def _compile(size: str) -> None:
    """Keep programs for the next run, unless the user says otherwise; at ``smoke`` compile them in less time."""
    from icllab.training.compilation import cache_compilations, compile_quickly

    if size == "smoke":
        compile_quickly()
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or os.environ.get("JAX_ENABLE_COMPILATION_CACHE") == "false":
        return
    with contextlib.suppress(EnvironmentFault):  # a run needs no cache
        cache_compilations()
