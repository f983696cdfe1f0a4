"""Runs of the page: processes of the command line, one after the other.

A run is ``icl run CLAIM``, with its log in a file. Stopping it sends the signal that a batch system sends: it ends and
keeps its finished cells. When the page's server ends, it stops its runs in the same way.
"""

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from icllab.core.errors import InputError, expected
from icllab.core.files import parse_json
from icllab.page.endpoints import NotFound

State = Literal["queued", "running", "stopping", "finished", "stopped", "failed"]
PATIENCE = 20.0
"""Seconds that a stopped run may take to end; then it is killed, and its finished cells are kept as well."""
MOST_QUEUED = 50
LOG_BYTES = 200_000
_FAULTS = {2, 4}


@dataclass
class Job:
    """A run in the queue, under way or ended.

    Attributes:
        id: Name in addresses.
        claim: The claim, at ``size`` and on ``workers`` processes.
        log: File with the log.
        arguments: The command of the process.
        state: The state; ``exit_status``, ``verdict`` and ``reason`` are those of an ended run.
        started: With ``ended``, in seconds since 1970.
    """

    id: str
    claim: str
    size: str
    workers: int
    log: Path
    arguments: Sequence[str]
    state: State = "queued"
    started: float | None = None
    ended: float | None = None
    exit_status: int | None = None
    verdict: str | None = None
    reason: str = ""
    process: "subprocess.Popen[bytes] | None" = None

    def as_dict(self) -> dict[str, Any]:
        """The run for a browser."""
        names = ("id", "claim", "size", "workers", "state", "started", "ended", "exit_status", "verdict", "reason")
        return {name: getattr(self, name) for name in names}


class Runs:
    """The queue of runs of one server."""

    def __init__(self, out: Path, claims: Path | None = None) -> None:
        self.out, self.claims = out, claims
        self._jobs: dict[str, Job] = {}
        self._numbers = itertools.count(1)
        self._condition = threading.Condition()
        self._closed = False
        self._logs = tempfile.TemporaryDirectory(prefix="icl-page-")
        self._thread = threading.Thread(target=self._work, name="runs", daemon=True)
        self._thread.start()

    def start(self, claim: str, size: str, workers: int = 1) -> Job:
        """Queue a run of a claim at one of its sizes."""
        with self._condition:
            if sum(job.state == "queued" for job in self._jobs.values()) >= MOST_QUEUED:
                raise InputError(f"runs: expected at most {MOST_QUEUED} in the queue; stop some")
            number = next(self._numbers)
            words = ["run", claim, "--size", size, "--out", str(self.out)]
            words += ["--workers", str(workers)] if workers > 1 else []
            words += ["--claims", str(self.claims)] if self.claims is not None else []
            job = Job(
                f"run-{number}",
                claim,
                size,
                workers,
                Path(self._logs.name) / f"{number}.log",
                [sys.executable, "-m", "icllab", *words, "--json"],
            )
            self._jobs[job.id] = job
            self._condition.notify_all()
            return job

    def stop(self, id: str) -> Job:
        """Stop a run, or take it out of the queue."""
        with self._condition:
            job = self.job(id)
            if job.state == "queued":
                job.state, job.ended = "stopped", time.time()
            elif job.state == "running" and job.process is not None:
                job.state = "stopping"
                job.process.terminate()  # which `icl` treats as Ctrl-C
                timer = threading.Timer(PATIENCE, _kill, [job.process])
                timer.daemon = True
                timer.start()
            else:
                raise expected(f"run {id}", "a queued or running one", job.state)
            return job

    def job(self, id: str) -> Job:
        """The run of an id."""
        if id not in self._jobs:
            raise NotFound("run: expected one of this page, got another id")
        return self._jobs[id]

    def jobs(self) -> list[Job]:
        """All runs, the newest first."""
        with self._condition:
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
        with self._condition:
            self._closed = True
            for job in self._jobs.values():
                if job.state in ("queued", "running"):
                    with contextlib.suppress(InputError):
                        self.stop(job.id)
            self._condition.notify_all()
        self._thread.join(PATIENCE + 1)
        self._logs.cleanup()

    def _next(self) -> Job | None:
        with self._condition:
            while not self._closed:
                job = next((job for job in self._jobs.values() if job.state == "queued"), None)
                if job is not None:
                    return job
                self._condition.wait()
            return None

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                process = self._launch(job)
            except OSError as error:
                job.state, job.ended, job.reason = "failed", time.time(), f"cannot start: {error.strerror or error}"
                continue
            if process is not None:
                answer, _ = process.communicate()
                with self._condition:
                    self._finish(job, process.returncode, answer)

    def _launch(self, job: Job) -> "subprocess.Popen[bytes] | None":
        """Start the process of a run; None if it was stopped while it was queued."""
        with self._condition, job.log.open("wb") as log:
            if job.state != "queued":
                return None
            job.process = subprocess.Popen(
                job.arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C in the terminal reaches the server alone, which stops its runs
            )
            job.state, job.started = "running", time.time()
            return job.process

    def _finish(self, job: Job, status: int, answer: bytes) -> None:
        job.exit_status, job.ended = status, time.time()
        output: Any = None
        with contextlib.suppress(ValueError):
            output = parse_json(answer)
        if isinstance(output, dict):
            job.verdict = output.get("verdict")  # none at smoke
            error = output.get("error")
            job.reason = str(error.get("message", "")) if isinstance(error, dict) else ""
        success = isinstance(output, dict) and "verdict" in output and status not in _FAULTS
        job.state = "finished" if success else "stopped" if job.state == "stopping" else "failed"


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.kill()
