"""Jobs of Slurm: which shard each measures, and what Slurm is told."""

import os
import re
import subprocess
import sys

import pytest

from icllab.core.errors import EnvironmentFault, InputError
from icllab.lab import submission
from icllab.lab.submission import Jobs, Shard, UnknownJobs, job_number, minutes, parameter, submit

submitit = pytest.importorskip("submitit")
RUN = ("run", "claims/steady", "--out", "/a disk/results", "--set", "dim=2,4")


@pytest.mark.parametrize(
    ("text", "count"),
    [("4h", 240), ("90m", 90), ("2d", 2880), ("1-12:00:00", 2160), ("04:00:00", 240), ("0:30", 30), ("00:00:01", 1)],
)
def test_a_time_is_in_minutes(text, count):
    assert minutes(text) == count


@pytest.mark.parametrize("text", ["", "4", "h", "0m", "4 h", "1.5h", "-4h", "00:00:00", "4h30m", "1-12"])
def test_another_time_is_refused(text):
    with pytest.raises(InputError, match="--time: expected a time such as 4h, 90m or 1-12:00:00, got"):
        minutes(text)


@pytest.mark.parametrize("values", [{"count": 0}, {"minutes": 0}, {"cores": 0}, {"memory": 0}])
def test_jobs_are_at_least_one_of_everything(values):
    with pytest.raises(InputError, match="at least 1"):
        Jobs(RUN, **{"count": 2, "minutes": 60, **values})


def test_a_parameter_of_submitit_is_text_or_a_whole_number():
    assert (parameter("slurm_account=lab"), parameter("gpus_per_node=1")) == (
        ("slurm_account", "lab"),
        ("gpus_per_node", 1),
    )
    for text in ("slurm_account", "=lab", "slurm_account="):
        with pytest.raises(InputError, match="--parameter: expected name=value, a parameter of submitit, got"):
            parameter(text)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Slurm's commands, which note the script and give the number 77."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("srun", ""), ("sbatch", f'cp "$1" {tmp_path}/sbatch.sh; echo Submitted batch job 77')):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path / "sbatch.sh"


def test_what_slurm_is_told(slurm, tmp_path):
    """By submitit itself; what it keeps for a job is the job's shard."""
    numbers = submit(Jobs(RUN, 2, 240, 1, 4, "icl-steady"), tmp_path, {"slurm_partition": "low"})
    assert numbers == ["77_0", "77_1"]
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", slurm.read_text(), flags=re.MULTILINE))
    assert options["requeue"] == ""
    assert options["signal"].startswith("USR2@")  # before the time limit, so that the job is queued again
    assert options["array"] == "0-1%2"
    assert (options["time"], options["mem"], options["partition"]) == ("240", "4GB", "low")
    for i in range(2):
        kept = submitit.core.utils.DelayedSubmission.load(tmp_path / "jobs" / f"77_{i}_submitted.pkl")
        assert kept.function.run == (*RUN, "--shard", f"{i + 1}/2")
        assert kept._timeout_countdown == submission.TIMEOUTS


def test_one_job_is_no_array(slurm, tmp_path):
    assert submit(Jobs(RUN, 1, 60), tmp_path, {}) == ["77"]
    assert "--array" not in slurm.read_text()


def test_what_slurm_or_submitit_refuses_is_one_line(slurm, tmp_path):
    with pytest.raises(InputError, match=r"submit: expected slurm with parameters of submitit, got .*slurm_partitoin"):
        submit(Jobs(RUN, 2, 60), tmp_path, {"slurm_partitoin": "low"})
    (slurm.parent / "bin" / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition' >&2; exit 1\n")
    with pytest.raises(EnvironmentFault, match=r"expected slurm to take 2 jobs, got .*invalid partition"):
        submit(Jobs(RUN, 2, 60), tmp_path, {})


@pytest.fixture
def sbatch(slurm):
    """Set the bytes that sbatch prints on both streams, and its status; it notes its calls in ``calls``."""

    def set_answer(answer, complaint=b"", status=0):
        folder = slurm.parent / "bin"
        (folder / "answer").write_bytes(answer)
        (folder / "complaint").write_bytes(complaint)
        lines = f"echo >>{folder}/calls; cat {folder}/answer; cat {folder}/complaint >&2; exit {status}"
        (folder / "sbatch").write_text(f"#!/bin/sh\n{lines}\n")
        return folder / "calls"

    return set_answer


ANSWERS = {
    b"Submitted batch job 4711\n": "4711",
    b"Submitted batch job 4711 on cluster north\n": "4711",
    b"sbatch: Submitted batch job 4711\r\n": "4711",
    b"4711": "4711",
    b"  4711  \n": "4711",
    b"4711;north\n": "4711",
    b"job 12 of 40 in your quota of 2026\nSubmitted batch job 4711\n": "4711",
    b"2026\nSubmitted batch job 4711\nnode 7\n": "4711",
    b"Welcome, job 1 of 3\n\n4711;north\n": "4711",
    b"n\xe9te: caf\xe9 job 3\nSubmitted batch job 4711\n": "4711",
    b"\xff\xfe 12\n4711\n": "4711",
    b"4711\n4711\n": "4711",
    b"": None,
    b"\n\n": None,
    b"job 12": None,
    b"Submitted job 4711": None,
    b"Submitted batch job\n": None,
    b"7 jobs\n": None,
    b"12\n4711\n": None,
    b"12;north;south x\n": None,
    b"Submitted batch job 12\nSubmitted batch job 4711\n": None,
    "\u0664\u0667\u0661\u0661\n".encode(): None,
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_number_of_the_jobs_is_read_from_the_answer(answer):
    assert job_number(answer.decode(errors="replace")) == ANSWERS[answer]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("answer", [b"4711;north\n", b"caf\xe9, job 3\nSubmitted batch job 4711\n"])
def test_jobs_have_the_number_of_the_answer(answer, count, sbatch, tmp_path):
    calls = sbatch(answer, b"sbatch: \xe9 note\n")
    assert submit(Jobs(RUN, count, 60), tmp_path, {}) == (["4711"] if count == 1 else ["4711_0", "4711_1"])
    assert len(list((tmp_path / "jobs").glob("4711*_submitted.pkl"))) == count
    assert calls.read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("answer", "complaint", "status"),
    [
        (b"", b"", 0),
        (b"job 12 of your quota\n", b"", 0),
        (b"\x1b[2Jjob\xe9\n", b"", 0),
        (b"Submitted batch job 4711\n", b"hook: error", 3),
        (b"", b"sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n", 1),
    ],
)
def test_jobs_of_an_unknown_number_are_submitted_once(answer, complaint, status, sbatch, tmp_path):
    calls = sbatch(answer, complaint, status)
    both = f"{answer.decode(errors='replace').strip()} {complaint.decode().strip()}".strip()
    with pytest.raises(UnknownJobs) as failure:
        submit(Jobs(RUN, 2, 60), tmp_path, {})
    message = str(failure.value)
    assert f"expected the number of 2 jobs from sbatch, got status {status} and {both!r}" in message
    assert "the jobs may run: look with squeue before you submit again, and remove" in message
    assert message.isprintable()
    assert failure.value.exit_status == 4
    sbatch(b"Submitted batch job 4711\n")
    with pytest.raises(EnvironmentFault) as again:
        submit(Jobs(RUN, 2, 60), tmp_path, {})
    assert str(again.value) == message
    assert calls.read_text().count("\n") == 1
    (tmp_path / "jobs" / "unknown.txt").unlink()
    assert submit(Jobs(RUN, 2, 60), tmp_path, {}) == ["4711_0", "4711_1"]


@pytest.mark.parametrize(
    ("answer", "complaint"), [(b"", b"sbatch: error: no\xe9\n"), (b"no, 3 times no", b""), (b"", b"")]
)
def test_jobs_that_slurm_refuses_may_be_submitted_again(answer, complaint, sbatch, tmp_path):
    sbatch(answer, complaint, 1)
    with pytest.raises(
        EnvironmentFault, match=r"expected slurm to take 2 jobs, got (sbatch: error: no|no, 3|status 1)"
    ):
        submit(Jobs(RUN, 2, 60), tmp_path, {})
    sbatch(b"4711")
    assert submit(Jobs(RUN, 2, 60), tmp_path, {}) == ["4711_0", "4711_1"]


def test_other_executors_of_submitit_stay_as_they_are(sbatch, tmp_path):
    """After jobs were submitted, and after Slurm refused them."""
    from submitit.slurm.slurm import SlurmExecutor

    before = SlurmExecutor._make_submission_command
    sbatch(b"4711;north\n")
    submit(Jobs(RUN, 1, 60), tmp_path, {})
    sbatch(b"", b"sbatch: error: invalid partition\n", 1)
    with pytest.raises(EnvironmentFault, match="invalid partition"):
        submit(Jobs(RUN, 1, 60), tmp_path, {})
    assert SlurmExecutor._make_submission_command is before


def test_without_sbatch_it_says_so(slurm, tmp_path, monkeypatch):
    (slurm.parent / "bin" / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(slurm.parent / "bin"))
    with pytest.raises(EnvironmentFault, match=r"submit: expected sbatch to run, got .*sbatch"):
        submit(Jobs(RUN, 2, 60), tmp_path, {})


@pytest.mark.parametrize(("name", "field", "most"), [("jobs", "count", 4_000_000), ("workers", "cores", 65_533)])
def test_numbers_that_no_slurm_takes_are_refused(name, field, most):
    assert getattr(Jobs(RUN, **{"count": 1, "minutes": 60, field: most}), field) == most
    with pytest.raises(InputError, match=f"^{name}: expected at most {most}, got {most + 1}; .*Slurm"):
        Jobs(RUN, **{"count": 1, "minutes": 60, field: most + 1})


def test_without_slurm_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match='Could not detect "srun"'):
        submit(Jobs(RUN, 2, 60), tmp_path, {})


@pytest.mark.parametrize(("status", "fails"), [(0, False), (1, False), (3, False), (2, True), (4, True), (130, True)])
def test_a_verdict_is_no_fault_of_a_job(status, fails, tmp_path, monkeypatch, capsys):
    commands = []

    def ran(command, env, check):
        commands.append((command, env))
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(submission.subprocess, "run", ran)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    for name in ("cells/a.nc", "cells/b.nc", "scratch/c/checkpoint"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    shard = Shard([*RUN, "--shard", "1/2"], str(tmp_path))
    if fails:
        with pytest.raises(SystemExit) as ending:
            shard()
        assert ending.value.code == status
    else:
        assert shard() == status
    ((command, environment),) = commands
    assert command == [sys.executable, "-m", "icllab", *RUN, "--shard", "1/2"]
    assert environment["NPROC"] == "1"
    assert "start 3: 2 cells are there, 1 with checkpoints under way" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "goes_on"), [("cells/b.nc", True), ("scratch/c/checkpoint", True), ("log", False)])
def test_a_job_that_came_no_further_is_not_queued_again(name, goes_on, tmp_path, monkeypatch, capsys):
    """It would reach its time limit for ever."""

    def ran(command, env, check):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        queued.append(shard.checkpoint())
        return subprocess.CompletedProcess(command, 0)

    queued, shard = [], Shard(RUN, str(tmp_path))
    monkeypatch.setattr(submission.subprocess, "run", ran)
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "a.nc").touch()
    shard()
    if goes_on:
        assert queued[0].function is shard
    else:
        assert queued == [None]
        assert "give it more --time" in capsys.readouterr().out
