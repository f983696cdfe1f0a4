"""A run as jobs of a batch system: each measures one shard of the cells with ``icl run``, and the last to end judges.

A job that is preempted, or reaches its time limit, is queued again. It keeps the cells that are there; a cell that
keeps checkpoints in its scratch directory goes on from them.
"""

import json
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

from icllab.core.errors import EnvironmentFault, expected, require_integer
from icllab.lab.executors import UnknownJobs, batch_executor, environment

SYSTEMS = ("pbs", "kubernetes", "skypilot")
TIMEOUTS = 100
"""How often a job may reach its time limit and be queued again."""
RESULTS = "/results"
"""Where containers and virtual machines see the volume of the results."""
USES = {
    "--slurm": ("partition", "parameter", "dry-run"),
    "--print pbs": (),
    "--print kubernetes": ("image", "volume"),
    "--print skypilot": ("volume",),
}
"""Options of ``icl submit`` that only some systems use."""
MOST = {"jobs": (4_000_000, "no array of Slurm is larger"), "workers": (65_533, "Slurm counts cores in 16 bits")}
"""Largest numbers, and the reason."""
_UNTRIED = "Untried on a cluster; its syntax was checked"
_TIME = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?")
_UNITS = {"d": 1440, "h": 60, "m": 1}


def minutes(text: str) -> int:
    """``4h``, ``90m``, ``2d`` or Slurm's ``1-12:00:00`` and ``04:00:00`` in whole minutes, rounded up."""
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

    def command(self, shard: str, program: Sequence[str] = ("icl",)) -> str:
        """The shell command of a job; ``shard`` is text that the shell fills in."""
        return f"{shlex.join([*program, *self.run])} --shard {shard}"

    @property
    def walltime(self) -> str:
        """The time limit as ``HH:MM:00``."""
        return f"{self.minutes // 60:02}:{self.minutes % 60:02}:00"


def require_bound(name: str, value: int) -> None:
    """Raise if a number is larger than any batch system takes."""
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
        """What is queued again: the same command, which keeps what is there; None if it came no further."""
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
    """Submit the jobs as one array through submitit; the numbers of the jobs.

    Args:
        jobs: The jobs.
        store: Directory of the results; what submitit keeps, and the logs, lie in its ``jobs/``.
        parameters: Others of ``submitit.AutoExecutor.update_parameters``, such as ``slurm_partition``.

    Raises:
        EnvironmentFault: submitit is not installed, or Slurm refuses the jobs.
        UnknownJobs: The answer of sbatch has no number; or an earlier one had none, and jobs are not submitted twice.
        InputError: There is no Slurm here; or submitit does not know a parameter.
    """
    values = {"name": jobs.name, "timeout_min": jobs.minutes, "cpus_per_task": jobs.cores, "mem_gb": jobs.memory}
    # Slurm sends its signal up to a minute early.
    values |= {"slurm_signal_delay_s": min(90, 20 * jobs.minutes)}
    values |= {"slurm_additional_parameters": {"requeue": True}, **parameters}
    folder = store / "jobs"
    executor = batch_executor("submit", "slurm", folder, values, slurm_max_num_timeout=TIMEOUTS)
    unknown = folder / "unknown.txt"
    if unknown.exists():
        raise EnvironmentFault(f"{unknown.read_text('utf-8')}, and remove {unknown} then")
    shards = [Shard([*jobs.run, "--shard", f"{i}/{jobs.count}"], str(store)) for i in range(1, jobs.count + 1)]
    try:
        with executor.batch():
            submitted = [executor.submit(shard) for shard in shards]
    except UnknownJobs as fault:
        unknown.write_text(str(fault), "utf-8")
        raise UnknownJobs(f"{fault}, and remove {unknown} then") from fault
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise EnvironmentFault(f"submit: expected slurm to take {jobs.count} jobs, got {reason}") from None
    return [job.job_id for job in submitted]


def script(system: str, jobs: Jobs, *, image: str, volume: str) -> str:
    """The text to submit to one of ``SYSTEMS``; ``image`` and ``volume`` are for those that start containers.

    None of them was tried on a cluster, which the text says; each was checked by its own parser or schema.
    """
    exports = environment(1)
    if system == "pbs":
        return _pbs(jobs, exports)
    if system == "kubernetes":
        return _kubernetes(jobs, exports, image, volume)
    return _skypilot(jobs, exports, volume)


def _pbs(jobs: Jobs, exports: Mapping[str, str]) -> str:
    # An array of PBS has at least two jobs.
    array = f"#PBS -J 1-{jobs.count}\n" if jobs.count > 1 else ""
    shard = f'"$PBS_ARRAY_INDEX/{jobs.count}"' if jobs.count > 1 else "1/1"
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in exports.items())
    return f"""\
#!/bin/bash
# {_UNTRIED}: qsub {jobs.name}.sh
#PBS -N {jobs.name[:15]}
{array}#PBS -l select=1:ncpus={jobs.cores}:mem={jobs.memory}gb
#PBS -l walltime={jobs.walltime}
#PBS -r y
#PBS -j oe
cd "$PBS_O_WORKDIR" || exit 1
export {variables}
exec {jobs.command(shard, (sys.executable, "-m", "icllab"))}
"""


def _kubernetes(jobs: Jobs, exports: Mapping[str, str], image: str, volume: str) -> str:
    command = jobs.command(f'"$((JOB_COMPLETION_INDEX + 1))/{jobs.count}"')
    variables = "\n".join(
        f"            - {{name: {name}, value: {json.dumps(value)}}}" for name, value in exports.items()
    )
    return f"""\
# {_UNTRIED}: kubectl apply -f {jobs.name}.yaml
apiVersion: batch/v1
kind: Job
metadata:
  name: {jobs.name}
spec:
  completionMode: Indexed
  completions: {jobs.count}
  parallelism: {jobs.count}
  backoffLimit: {3 * jobs.count}
  podFailurePolicy:
    rules:  # a pod that is preempted or evicted begins again, and is no failure
      - action: Ignore
        onPodConditions:
          - {{type: DisruptionTarget, status: "True"}}
  template:
    spec:
      restartPolicy: Never
      activeDeadlineSeconds: {60 * jobs.minutes}
      containers:
        - name: icl
          image: {json.dumps(image)}
          command: [/bin/sh, -c]
          args: [{json.dumps(f"exec {command}")}]
          env:
{variables}
          resources:
            requests: {{cpu: "{jobs.cores}", memory: {jobs.memory}Gi}}
            limits: {{memory: {jobs.memory}Gi}}
          volumeMounts:
            - {{name: results, mountPath: {RESULTS}}}
      volumes:
        - name: results
          persistentVolumeClaim: {{claimName: {json.dumps(volume)}}}
"""


def _skypilot(jobs: Jobs, exports: Mapping[str, str], volume: str) -> str:
    command = jobs.command(f'"$((SKYPILOT_NODE_RANK + 1))/{jobs.count}"')
    variables = "\n".join(f"  {name}: {json.dumps(value)}" for name, value in exports.items())
    return f"""\
# {_UNTRIED}: sky jobs launch {jobs.name}.yaml, in a clone of icl-lab
name: {jobs.name}
workdir: .
num_nodes: {jobs.count}
resources:
  cpus: {jobs.cores}+
  memory: {jobs.memory}+
  use_spot: true
envs:
{variables}
file_mounts:
  {RESULTS}:
    name: {json.dumps(volume)}
    mode: MOUNT_CACHED
setup: python -m pip install -e .
run: |
  timeout --signal=TERM {60 * jobs.minutes} {command}
"""
