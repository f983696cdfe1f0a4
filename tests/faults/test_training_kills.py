"""A training run that is killed goes on from its last checkpoint to the same bits."""

import contextlib
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults.processes import ended, environment, finished, started, wait_until

from icllab.core.errors import EnvironmentFault
from icllab.training.checkpoints import unpacked

STEPS = 12_000
SCRIPT = Path(__file__).parent / "training_process.py"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


def command(store, cache, *more):
    return [sys.executable, str(SCRIPT), str(store), str(STEPS), str(cache), *map(str, more)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, cache):
    """The digest of a run that nothing happens to, and how long its second start takes."""
    store = tmp_path_factory.mktemp("undisturbed")
    done = finished(command(store / "run", cache))
    assert done.returncode == 0, done.stderr
    begun, digest = done.stdout.split()
    assert begun == "0"
    return digest


def newest(store):
    """The step of the newest sound checkpoint; 0 where there is none yet. Finished files are all sound."""
    steps = []
    for path in store.glob("checkpoint-*.icl"):
        with contextlib.suppress(EnvironmentFault):  # removed since it was listed
            steps.append(unpacked(path)[0]["step"])
    return max(steps, default=0)


def killed_soon_after(process, store, stood, pause):
    """Kill a run a moment after it has written its first further checkpoint, or ended."""
    wait_until(lambda: newest(store) > stood or process.poll() is not None, 120)
    time.sleep(pause)
    process.kill()
    ended(process)


def goes_on(store, cache, digest):
    stood = newest(store)
    done = finished(command(store, cache))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(stood), digest]


def killed_at_random(store, cache, times, seed):
    """Start and kill, again and again; what was on disk is never lost."""
    moments, stood, reached = random.Random(seed), 0, []
    for _ in range(times):
        process = started(command(store, cache))
        killed_soon_after(process, store, stood, moments.uniform(0, 0.15))
        assert newest(store) >= stood
        stood = newest(store)
        reached.append(stood)
    return reached


def killed_in_a_write(store, cache, kind, count):
    process = subprocess.run(command(store, cache, kind, count), capture_output=True, env=environment())
    assert process.returncode == -9, process.stderr


def test_a_run_that_is_killed_goes_on_to_the_same_bits(tmp_path, cache, undisturbed):
    """At a random moment, with half a checkpoint written, and before one is moved into place."""
    (reached,) = killed_at_random(tmp_path / "run", cache, 1, seed=1)
    assert 0 < reached < STEPS
    killed_in_a_write(tmp_path / "run", cache, "write", 4)
    killed_in_a_write(tmp_path / "run", cache, "replace", 5)
    goes_on(tmp_path / "run", cache, undisturbed)


@pytest.mark.slow
def test_ten_kills_at_random_moments(tmp_path, cache, undisturbed):
    reached = killed_at_random(tmp_path / "run", cache, 10, seed=2)
    assert len(set(reached)) >= 3
    goes_on(tmp_path / "run", cache, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("write", 1),
        ("write", 11),
        ("fsync", 1),
        ("fsync", 6),
        ("fsync", 9),  # of the directory
        ("replace", 1),
        ("replaced", 1),
        ("replaced", 7),
    ],
)
def test_a_kill_in_the_middle_of_a_write(tmp_path, cache, undisturbed, kind, count):
    killed_in_a_write(tmp_path / "run", cache, kind, count)
    goes_on(tmp_path / "run", cache, undisturbed)
