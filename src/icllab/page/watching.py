"""What goes on in a directory of results: runs of the page, runs started elsewhere, and training runs."""

import threading
from dataclasses import asdict, dataclass
from typing import Any

from icllab.experiments.heartbeat import Beat
from icllab.page.index import Index, Stored
from icllab.page.runs import Job

_REMEMBERED = 30


@dataclass(frozen=True)
class Seen:
    """A run that was seen in the directory, and in which results."""

    result: str
    beat: Beat


class Watch:
    """Runs that were seen: one that is seen no more has ended."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int, str], Seen] = {}
        self._lock = threading.Lock()

    def state(self, index: Index, jobs: list[Job]) -> dict[str, Any]:
        """Everything that goes on or went on lately, ready for JSON; ``busy`` is whether something does."""
        results, beats = index.present(), index.beats()
        now = {(b.host, b.pid, b.born): Seen(id, b) for id, some in beats.items() for b in some}
        with self._lock:
            self._seen |= now
            for key in [key for key in self._seen if key not in now][:-_REMEMBERED]:
                del self._seen[key]
            seen = dict(self._seen)
        own = {job.process.pid for job in jobs if job.process is not None}
        runs = [_of_job(job, seen, results) for job in jobs]
        runs += [_of_beat(one, key in now, results) for key, one in seen.items() if one.beat.pid not in own]
        training = [
            {"id": one.id, "label": one.label, "updated": one.updated}
            for one in results.values()
            if one.kind == "training"
        ]
        busy = any(run["state"] in ("running", "stopping", "queued") for run in runs)
        changed = sum(hash((one.id, one.updated, one.verdict, one.cells)) for one in results.values()) % 2**32
        training.sort(key=lambda one: -one["updated"])
        return {"busy": busy, "runs": runs, "training": training, "results": changed}


def _progress(one: Seen | None, results: dict[str, Stored]) -> dict[str, Any]:
    """How far a run is, and its results."""
    if one is None:
        return {"done": 0, "total": 0, "what": "", "left": None, "updated": None, "result": None}
    found = results.get(one.result)
    said = asdict(one.beat)
    names = ("done", "total", "what", "left", "updated")
    return {name: said[name] for name in names} | {"result": found.id if found else None}


def _of_job(job: Job, seen: dict[tuple[str, int, str], Seen], results: dict[str, Stored]) -> dict[str, Any]:
    pid = job.process.pid if job.process is not None else None
    of = next((one for one in seen.values() if one.beat.pid == pid), None)
    names = ("id", "claim", "size", "workers", "command", "state", "asked", "started", "ended", "exit_status")
    said = {name: getattr(job, name) for name in (*names, "verdict", "reason")}
    key = (job.claim, job.size, None)
    place = next((r for r in results.values() if r.current and (r.claim, r.size, r.control) == key), None)
    progress = _progress(of, results)
    if place is not None:
        progress["result"] = place.id
    if job.state == "finished" and place is not None:
        progress |= {"done": place.cells, "total": place.of}
    return {**said, **progress, "control": None, "own": True}


def _of_beat(one: Seen, there: bool, results: dict[str, Stored]) -> dict[str, Any]:
    """A run that was started elsewhere."""
    beat, of = one.beat, results.get(one.result)
    state = ("running" if beat.alive else "killed") if there else "finished"
    progress = _progress(one, results)
    if state == "finished" and of is not None:
        progress |= {"done": of.cells, "total": of.of}
    return {
        "id": f"{one.result}-{beat.pid}",
        "claim": of.claim if of else "",
        "size": of.size if of else "",
        "control": of.control if of else None,
        "workers": beat.workers,
        "state": state,
        "started": beat.started,
        "asked": beat.started,
        "ended": None if state == "running" else beat.updated,
        "verdict": of.verdict if of and state == "finished" else None,
        "reason": "",
        "host": beat.host,
        "pid": beat.pid,
        "own": False,
        **progress,
    }
