"""A run as jobs of Slurm, through submitit: each measures one shard of the cells, and the last to end judges.

A job that is preempted, or reaches its time limit, is queued again. It keeps the cells that are there; a cell that
keeps checkpoints in its scratch directory goes on from them.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from icllab.core.errors import EnvironmentFault, InputError, expected, require_integer
from icllab.lab.executors import environment, missing_extra

TIMEOUTS = 100
"""How often a job may reach its time limit and be queued again."""
MOST = {"jobs": (4_000_000, "no array of Slurm is larger"), "workers": (65_533, "Slurm counts cores in 16 bits")}
"""Largest numbers, and the reason."""
_TIME = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?")
_UNITS = {"d": 1440, "h": 60, "m": 1}


def minutes(text: str) -> int:
    """Parse ``4h``, ``90m``, ``2d`` or Slurm's ``1-12:00:00`` and ``04:00:00`` into whole minutes, rounded up."""
    if match := _TIME.fullmatch(text):
        days, hours, count, seconds = (int(part or 0) for part in match.groups())
        total = days * 1440 + hours * 60 + count + (seconds > 0)
    elif match := re.fullmatch(r"(\d+)([dhm])", text):
        total = int(match[1]) * _UNITS[match[2]]
    else:
        total = 0
    if total < 1:
        raise expected("--time", "a time such as 4h, 90m or 1-12:00:00", text)
    return total


def parameter(text: str) -> tuple[str, Any]:
    """Parse ``name=value``, a parameter of submitit; a whole number becomes an int."""
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise expected("--parameter", "name=value, a parameter of submitit", text, "slurm_account=lab")
    return name, int(value) if value.isdecimal() else value


@dataclass(frozen=True)
class Jobs:
    """Equal jobs that share the cells of one run.

    Attributes:
        run: The words of ``icl run CLAIM ...`` after ``icl``, without ``--shard``.
        count: Number of jobs.
        minutes: Time limit of a job.
        cores: Cores of a job.
        memory: Gigabytes of a job.
        name: Name of the jobs; letters, digits and hyphens.
    """

    run: tuple[str, ...]
    count: int
    minutes: int
    cores: int = 1
    memory: int = 4
    name: str = "icl"

    def __post_init__(self) -> None:
        values = {"jobs": self.count, "minutes": self.minutes, "workers": self.cores, "memory": self.memory}
        for name, value in values.items():
            require_integer(name, value)
            require_bound(name, value)


def require_bound(name: str, value: int) -> None:
    """Raise if a number is larger than Slurm takes."""
    most, reason = MOST.get(name, (value, ""))
    if value > most:
        raise expected(name, f"at most {most}", value, reason)


class Shard:
    """A job of Slurm: ``icl run --shard`` as a process of its own, which is queued again when it is preempted."""

    def __init__(self, run: Sequence[str], store: str) -> None:
        self.run, self.store, self.cells = tuple(run), Path(store), 0

    def _count(self, pattern: str) -> int:
        return len(list(self.store.glob(pattern)))

    def __call__(self) -> int:
        """Run the command; the job fails with its status unless that is of a verdict or of an ended shard."""
        start, self.cells = 1 + int(os.environ.get("SLURM_RESTART_COUNT", "0")), self._count("cells/*.nc")
        say(f"icl {shlex.join(self.run)}")
        say(f"start {start}: {self.cells} cells are there, {self._count('scratch/*')} with checkpoints under way")
        command = [sys.executable, "-m", "icllab", *self.run]
        status = subprocess.run(command, env={**os.environ, **environment(1)}, check=False).returncode
        say(f"icl run ended with status {status}")
        if status not in (0, 1, 3):
            raise SystemExit(status)
        return status

    def checkpoint(self) -> Any:
        """Requeue the same command, or return None if no cell finished and none keeps checkpoints."""
        from submitit.helpers import DelayedSubmission

        if self._count("cells/*.nc") == self.cells and not self._count("scratch/*"):
            say("not queued again: no cell has ended in this time, and none keeps checkpoints; give it more --time")
            return None
        say("preempted, or at the time limit: queued again")
        return DelayedSubmission(self)


def say(line: str) -> None:
    """Write a line with the time to the job's log."""
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", flush=True)


def submit(jobs: Jobs, store: Path, parameters: Mapping[str, Any]) -> list[str]:
    """Submit the jobs as one array through submitit; return their numbers.

    Args:
        jobs: The jobs.
        store: Directory of the results; submitit's files and the logs lie in its ``jobs/``.
        parameters: Others of ``submitit.AutoExecutor.update_parameters``, such as ``slurm_partition``.

    Raises:
        EnvironmentFault: submitit is not installed, or Slurm refuses the jobs.
        UnknownJobs: The answer of sbatch has no number; or an earlier one had none, and jobs are not submitted twice.
        InputError: There is no Slurm here; or submitit does not know a parameter.
    """
    try:
        import submitit
        from submitit.slurm.slurm import SlurmExecutor
    except ImportError:
        raise missing_extra("submit") from None
    values = {"name": jobs.name, "timeout_min": jobs.minutes, "cpus_per_task": jobs.cores, "mem_gb": jobs.memory}
    # Slurm sends its signal up to a minute early.
    values |= {"slurm_signal_delay_s": min(90, 20 * jobs.minutes)}
    values |= {"slurm_additional_parameters": {"requeue": True}, **parameters}
    folder = store / "jobs"
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster="slurm", slurm_max_num_timeout=TIMEOUTS)
        executor.update_parameters(**values)
    except (RuntimeError, NameError, TypeError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"submit: expected slurm with parameters of submitit, got {reason}") from None
    unknown = folder / "unknown.txt"
    if unknown.exists():
        raise EnvironmentFault(f"{unknown.read_text('utf-8')}, and remove {unknown} then")
    command_of = SlurmExecutor._make_submission_command

    def submitted(slurm: Any, path: Path) -> list[str]:
        """Run sbatch here; submitit runs, decodes and reads the number alone."""
        return ["echo", f"Submitted batch job {_run_sbatch(command_of(slurm, path), jobs.count)}"]

    shards = [Shard([*jobs.run, "--shard", f"{i}/{jobs.count}"], str(store)) for i in range(1, jobs.count + 1)]
    try:
        with mock.patch.object(SlurmExecutor, "_make_submission_command", submitted), executor.batch():
            numbered = [executor.submit(shard) for shard in shards]
    except UnknownJobs as fault:
        unknown.write_text(str(fault), "utf-8")
        raise UnknownJobs(f"{fault}, and remove {unknown} then") from fault
    return [job.job_id for job in numbered]


class UnknownJobs(EnvironmentFault):
    """Jobs may have been submitted, but their number is not known."""


def _run_sbatch(command: list[str], count: int) -> str:
    """Run sbatch for a number of jobs; return the number that Slurm gives them."""
    try:
        process = subprocess.run(command, capture_output=True, check=False)
    except OSError as error:
        raise EnvironmentFault(f"submit: expected sbatch to run, got {error}") from error
    answer, complaint = (text.decode(errors="replace").strip() for text in (process.stdout, process.stderr))
    number, status = job_number(answer), process.returncode
    if status == 0 and number is not None:
        return number
    # Slurm may have taken jobs although sbatch waited in vain for its answer.
    if status > 0 and number is None and "timed out" not in complaint:
        reason = " ".join((complaint or answer or f"status {status}").split())
        raise EnvironmentFault(f"submit: expected slurm to take {count} jobs, got {reason}")
    came = f"status {status} and {f'{answer} {complaint}'.strip()!r}"
    advice = "the jobs may run: look with squeue before you submit again"
    raise UnknownJobs(f"submit: expected the number of {count} jobs from sbatch, got {came}; {advice}")


def job_number(answer: str) -> str | None:
    """The number in an answer of sbatch: ``Submitted batch job N``, else a line of ``N`` or ``N;cluster``.

    None if there is no such number, or more than one.
    """
    numbers = re.findall(r"Submitted batch job ([0-9]+)\b", answer)
    lines = (re.fullmatch(r"([0-9]+)(?:;\S+)?", line.strip()) for line in answer.splitlines())
    (number, *others) = {*numbers} or {line[1] for line in lines if line} or {None}
    return None if others else number
