"""Runs that were asked for on the page: processes of the command line, one after the other.

A run is ``icl run CLAIM``, with its log in a file. To stop it is to send what a batch system sends: it keeps its
finished cells and ends. When the page's server ends, its runs are stopped so too.
"""

import contextlib
import itertools
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from icllab.core.errors import InputError, expected
from icllab.page.asked import NotThere

State = Literal["queued", "running", "stopping", "finished", "stopped", "failed"]
PATIENCE = 20.0
"""Seconds that a run that was asked to stop may take; then it is killed, and its finished cells are kept as well."""
MOST_QUEUED = 50
LOG_BYTES = 200_000
_FAULTS = {2, 4}


@dataclass
class Job:
    """A run that was asked for here.

    Attributes:
        id: For addresses.
        claim: With ``size``: what is run, on ``workers`` processes.
        command: As a person would type it.
        log: Its file.
        state: Where it is; ``exit_status`` and ``verdict`` once it has ended.
        asked: With ``started`` and ``ended`` in seconds since 1970.
    """

    id: str
    claim: str
    size: str
    workers: int
    command: str
    log: Path
    arguments: Sequence[str]
    asked: float = field(default_factory=time.time)
    state: State = "queued"
    started: float | None = None
    ended: float | None = None
    exit_status: int | None = None
    verdict: str | None = None
    reason: str = ""
    process: "subprocess.Popen[bytes] | None" = None


class Runs:
    """The queue of runs of one server."""

    def __init__(self, out: Path, claims: Path | None = None) -> None:
        self.out, self.claims = out, claims
        self._jobs: dict[str, Job] = {}
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._closed = False
        self._logs = tempfile.TemporaryDirectory(prefix="icl-page-")
        self._thread = threading.Thread(target=self._work, name="runs", daemon=True)
        self._thread.start()

    def start(self, claim: str, size: str, workers: int = 1) -> Job:
        """Queue a run; the caller has looked whether there is such a claim and size."""
        with self._changed:
            if sum(job.state == "queued" for job in self._jobs.values()) >= MOST_QUEUED:
                raise InputError(f"runs: expected at most {MOST_QUEUED} that wait, they are there; stop some")
            number = next(self._numbers)
            words = ["run", claim, "--size", size, "--out", str(self.out)]
            words += ["--workers", str(workers)] if workers > 1 else []
            words += ["--claims", str(self.claims)] if self.claims is not None else []
            job = Job(
                f"run-{number}",
                claim,
                size,
                workers,
                shlex.join(["icl", *words]),
                Path(self._logs.name) / f"{number}.log",
                [sys.executable, "-m", "icllab", *words, "--json"],
            )
            self._jobs[job.id] = job
            self._changed.notify_all()
            return job

    def stop(self, id: str) -> Job:
        """Stop a run, or take it out of the queue."""
        with self._changed:
            job = self.job(id)
            if job.state == "queued":
                job.state, job.ended = "stopped", time.time()
            elif job.state == "running" and job.process is not None:
                job.state = "stopping"
                job.process.terminate()  # which `icl` takes for Ctrl-C, wherever it was started from
                late = threading.Timer(PATIENCE, _kill, [job.process])
                late.daemon = True
                late.start()
            else:
                raise expected(f"run {id}", "one that waits or runs", job.state)
            return job

    def job(self, id: str) -> Job:
        """One of the runs."""
        if id not in self._jobs:
            raise NotThere("run: expected one of this page, it has none of that id")
        return self._jobs[id]

    def jobs(self) -> list[Job]:
        """All runs, the newest first."""
        with self._changed:
            return list(self._jobs.values())[::-1]

    def log(self, id: str) -> str:
        """The end of a run's log."""
        path = self.job(id).log
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            return file.read(LOG_BYTES).decode("utf-8", "replace")

    def close(self) -> None:
        """Stop every run; finished cells are kept."""
        with self._changed:
            self._closed = True
            for job in self._jobs.values():
                if job.state in ("queued", "running"):
                    with contextlib.suppress(InputError):
                        self.stop(job.id)
            self._changed.notify_all()
        self._thread.join(PATIENCE + 1)
        self._logs.cleanup()

    def _next(self) -> Job | None:
        with self._changed:
            while not self._closed:
                job = next((job for job in self._jobs.values() if job.state == "queued"), None)
                if job is not None:
                    return job
                self._changed.wait()
            return None

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                process = self._begun(job)
            except OSError as error:
                job.state, job.ended, job.reason = "failed", time.time(), f"cannot start: {error.strerror or error}"
                continue
            if process is not None:
                answer, _ = process.communicate()
                with self._changed:
                    self._ended(job, process.returncode, answer)

    def _begun(self, job: Job) -> "subprocess.Popen[bytes] | None":
        """The process of a run; None where it was stopped before it began."""
        with self._changed, job.log.open("wb") as log:
            if job.state != "queued":
                return None
            job.process = subprocess.Popen(
                job.arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C in the server's terminal is the server's to hand on
            )
            job.state, job.started = "running", time.time()
            return job.process

    def _ended(self, job: Job, status: int, answer: bytes) -> None:
        job.exit_status, job.ended = status, time.time()
        said: Any = None
        with contextlib.suppress(ValueError):
            said = json.loads(answer)
        if isinstance(said, dict):
            job.verdict = str(said["verdict"]) if "verdict" in said else None
            error = said.get("error")
            job.reason = str(error.get("message", "")) if isinstance(error, dict) else ""
        failed = job.verdict is None or status in _FAULTS
        job.state = "stopped" if job.state == "stopping" and failed else "failed" if failed else "finished"


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.kill()
