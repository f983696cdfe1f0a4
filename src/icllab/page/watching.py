"""What goes on in a directory of results: the runs that were started on the page, and how far they are."""

from typing import Any

from icllab.page.index import Index, Stored
from icllab.page.runs import Job


def state(index: Index, jobs: list[Job]) -> dict[str, Any]:
    """Every run and a mark of the results, ready for JSON; ``busy`` is whether something goes on."""
    results = index.present()
    runs = [_run(job, results) for job in jobs]
    busy = any(run["state"] in ("running", "stopping", "queued") for run in runs)
    changed = sum(hash((one.id, one.updated, one.verdict, one.cells)) for one in results.values()) % 2**32
    return {"busy": busy, "runs": runs, "results": changed}


def _run(job: Job, results: dict[str, Stored]) -> dict[str, Any]:
    names = ("id", "claim", "size", "workers", "command", "state", "asked", "started", "ended", "exit_status")
    values = {name: getattr(job, name) for name in (*names, "verdict", "reason")}
    key = (job.claim, job.size, None)
    place = next((r for r in results.values() if r.current and (r.claim, r.size, r.control) == key), None)
    cells = {"result": None, "done": 0, "total": 0}
    if place is not None and job.started is not None:
        cells = {"result": place.id, "done": place.cells, "total": place.of}
    return {**values, **cells}
