"""``icl claim submit`` on a real Slurm, where one answers: a job that is queued again goes on from its checkpoint."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import xarray as xr
from faults.processes import ICL, finished, strictly, wait_until

from icllab.lab.executors import environment as on_one_core

CLAIM, CLAIMS = "trained/slopes", Path(__file__).parent / "trained"
STORE = Path(*CLAIM.split("/"), "small")
STEPS = 6000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _slurm():
    if shutil.which("sbatch") is None or subprocess.run(["sinfo"], capture_output=True).returncode != 0:
        pytest.skip("no Slurm answers here")


def icl(command, out, *words):
    cells = ["--claims", str(CLAIMS), "--out", str(out), *(["--set", "dim=4,16"] if command != "check" else [])]
    return finished([*ICL, *command.split(), CLAIM, *cells, *words], timeout=900, SLOPES_STEPS=STEPS, **on_one_core(1))


def test_jobs_that_are_queued_again_go_on_from_their_checkpoints(tmp_path):
    """Both jobs in the middle of their cells; what they measure is what an undisturbed run does, to the bit."""
    words = ("--jobs", "2", "--time", "20m", "--memory", "1", "--json")
    submission = icl("claim submit", tmp_path / "out", *words)
    assert submission.returncode == 0, submission.stderr
    store, numbers = tmp_path / "out" / STORE, strictly(submission.stdout)["jobs"]
    try:
        wait_until(lambda: len(list(store.glob("scratch/*/checkpoint-*"))) >= 2 or list(store.glob("cells/*.nc")), 300)
        assert not list(store.glob("cells/*.nc"))  # else nothing is interrupted
        for number in numbers:
            subprocess.run(["scontrol", "requeue", number], check=True)
        wait_until(lambda: (store / "verdict.json").exists(), 900)  # Slurm lets a job wait two minutes
    finally:
        subprocess.run(["scancel", numbers[0].partition("_")[0]], check=True)
    logs = "\n".join(path.read_text() for path in store.glob("jobs/*_log.*"))
    assert logs.count("start 2: 0 cells are there, ") == 2
    starts = [int(step) for step in re.findall(rf"trained {STEPS} steps from step (\d+)", logs)]
    assert len(starts) == 2
    assert max(starts) > 0
    assert icl("check", tmp_path / "out").returncode == 0
    assert icl("run", tmp_path / "undisturbed").returncode == 0
    here, undisturbed = (xr.load_dataset(tmp_path / name / STORE / "results.nc") for name in ("out", "undisturbed"))
    xr.testing.assert_equal(here, undisturbed)
