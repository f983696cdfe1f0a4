"""Sweeps through faults of workers, limits, shards and clocks: every cell in the end, as if nothing had happened."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults.processes import (
    CLAIM,
    CLAIMS,
    DIMS,
    STORE,
    alive,
    assert_same,
    ended,
    finished,
    finished_run,
    inside,
    leftovers,
    measured,
    run_command,
    started,
    strictly,
)

from icllab.experiments import heartbeat, leases, requests, runner
from icllab.experiments.store import read_dataset


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The Dataset of a run that nothing happens to."""
    return read_dataset(finished_run(tmp_path_factory.mktemp("undisturbed")) / STORE / "results.nc")


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Where it is noted what is measured."""
    monkeypatch.setenv("STEADY_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def test_three_workers_killed_in_mid_cell(tmp_path, log, capfd, monkeypatch, undisturbed):
    monkeypatch.setenv("STEADY_FAULT", "die:3")
    status, _, err = inside(capfd, run_command(tmp_path, "--workers", "2"))
    assert status == 0, err
    begun = measured(log)
    assert len(begun) == len(DIMS) + 3
    assert {dim for dim, _ in begun} == set(DIMS)
    assert_same(tmp_path, undisturbed)
    assert leftovers(tmp_path) == []
    assert not any(alive(pid) for _, pid in begun)


def test_a_worker_that_hangs(tmp_path, log, capfd, monkeypatch, undisturbed):
    monkeypatch.setenv("STEADY_FAULT", "hang:1")
    status, _, err = inside(capfd, run_command(tmp_path, "--limit", "6"))
    assert status == 0, err
    assert "measure" in err[err.index("Timeout (0:00:0") :]  # where it was then
    begun = measured(log)
    assert [dim for dim, _ in begun].count(begun[0][0]) == 2
    assert len(begun) == len(DIMS) + 1
    assert not alive(begun[0][1])
    assert_same(tmp_path, undisturbed)
    assert leftovers(tmp_path) == []


def test_shards_that_overlap(tmp_path, log, undisturbed):
    """Two disjoint shards and one of another division, all at once: no cell is begun twice."""
    parts = ("1/2", "2/2", "1/3")
    at_once = [started(run_command(tmp_path, "--shard", part, "--json"), STEADY_PAUSE=0.3) for part in parts]
    answers = [ended(process) for process in at_once]
    assert [status for status, _, _ in answers] == [0] * len(parts), answers
    last = [answer for _, out, _ in answers if (answer := strictly(out))["verdict"] == "holds"]
    assert last
    assert all("the last shard to end: every cell is here" in answer["notes"] for answer in last)
    assert sorted(dim for dim, _ in measured(log)) == sorted(DIMS)
    assert sum(strictly(out)["cells"]["computed"] for _, out, _ in answers) == len(DIMS)
    assert_same(tmp_path, undisturbed)
    assert leftovers(tmp_path) == []


def test_a_shard_computes_its_part_and_the_last_one_judges(tmp_path, log, capfd):
    status, out, _ = inside(capfd, run_command(tmp_path, "--shard", "2/2", "--json"))
    first = strictly(out)
    assert (status, first["verdict"], first["shard"]) == (0, None, [2, 2])
    assert first["cells"] == {"computed": 2, "kept": 0, "missing": 3}
    assert len(measured(log)) == 2
    assert "2 of 2 has ended; the last to end judges" in inside(capfd, run_command(tmp_path, "--shard", "2/2"))[1]
    status, out, _ = inside(capfd, run_command(tmp_path, "--shard", "1/2"))
    assert status == 0
    assert "the last shard to end: every cell is here" in out
    for part, said in {"3/2": "3/2", "0/2": "0/2", "half": "half"}.items():
        status, _, err = inside(capfd, run_command(tmp_path, "--shard", part))
        assert status == 2
        assert f"--shard: expected i/N with i from 1 to N, got {said!r}" in err
    assert "each shard would set" in inside(capfd, run_command(tmp_path, "--shard", "1/2", "--fresh"))[2]
    for limit in ("0", "-1", "inf", "nan"):
        assert "limit: expected a positive number" in inside(capfd, run_command(tmp_path, "--limit", limit))[2]


def test_a_run_on_another_machine_that_has_stopped_is_overtaken(tmp_path, log, monkeypatch, undisturbed):
    """Its heartbeat is watched, its clock is not asked: a file of the year 2100 that never changes is silent."""
    store = tmp_path / STORE
    for folder in (leases.FOLDER, heartbeat.FOLDER):
        (store / folder).mkdir(parents=True)
    (store / leases.FOLDER / "dim=8.json").write_text('{"run": "far-1.json", "pid": 1, "born": "far 1"}')
    (store / heartbeat.FOLDER / "far-1.json").write_text('{"updated": 4102444800}')
    monkeypatch.setattr(leases, "SILENT", 1.5)
    begun = time.monotonic()
    finished_run(tmp_path)
    assert time.monotonic() - begun > 1.5
    assert [dim for dim, _ in measured(log)][-1] == 8
    assert_same(tmp_path, undisturbed)
    assert not (store / leases.FOLDER).exists()


def test_a_run_on_another_machine_that_goes_on_is_left_its_cells(tmp_path, log, monkeypatch):
    store = tmp_path / STORE
    (store / leases.FOLDER).mkdir(parents=True)
    lease = store / leases.FOLDER / "dim=8.json"
    lease.write_text('{"run": "far-1.json", "pid": 1, "born": "far 1"}')
    monkeypatch.setattr(leases, "SILENT", 30)
    request = requests.requested(CLAIM, "smoke", out=tmp_path, claims=CLAIMS)
    other = runner.compute(requests.requested(CLAIM, "smoke", out=tmp_path / "far", claims=CLAIMS))
    assert other.computed == len(DIMS)

    def arrives(done, total, what, left):
        if done == total - 1:
            shutil.copy(tmp_path / "far" / STORE / "cells" / "dim=8.nc", store / "cells")
            lease.unlink(missing_ok=True)

    done = runner.compute(request, progress=arrives)
    assert (done.computed, done.kept) == (len(DIMS) - 1, 1)
    assert [dim for dim, _ in measured(log)].count(8) == 1


def test_the_clock_is_set_back_by_a_day(tmp_path, log, monkeypatch, undisturbed):
    now, back = time.time, []
    monkeypatch.setattr(time, "time", lambda: now() - 86_400 * len(back))
    monkeypatch.setattr(heartbeat, "SECONDS", 0.0)
    request, beats = requests.requested(CLAIM, "smoke", out=tmp_path, claims=CLAIMS), []

    def progress(done, total, what, left):
        (beat,) = heartbeat.beats(tmp_path / STORE)
        beats.append((beat.alive, beat.count, beat.done))
        if done == 2:
            back.append(True)

    assert runner.compute(request, progress=progress).computed == len(DIMS)
    assert all(alive for alive, _, _ in beats)
    assert [count for _, count, _ in beats] == sorted({count for _, count, _ in beats})
    assert beats[-1][2] == len(DIMS)
    finished_run(tmp_path)
    assert_same(tmp_path, undisturbed)
    assert leftovers(tmp_path) == []


def test_the_clock_of_a_process_is_set_back(tmp_path, log, undisturbed):
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if library is None:
        pytest.skip("libfaketime is not installed here (Debian: faketime)")
    clock = tmp_path / "clock"
    clock.write_text("+0")
    fake = {"FAKETIME_TIMESTAMP_FILE": clock, "FAKETIME_NO_CACHE": 1, "FAKETIME_DONT_FAKE_MONOTONIC": 1}
    done = finished(run_command(tmp_path), STEADY_FAULT="clock:8", LD_PRELOAD=library, **fake)
    assert done.returncode == 0, done.stderr
    created = {read_dataset(path).attrs["created"] for path in (tmp_path / STORE / "cells").glob("*.nc")}
    assert len({when[:10] for when in created}) == 2
    assert_same(tmp_path, undisturbed)
    assert leftovers(tmp_path) == []


def test_workers_that_cannot_start_are_not_started_for_ever(tmp_path):
    """Each worker imports the script that starts it."""
    run = f"icllab.run({CLAIM!r}, 'smoke', claims={str(CLAIMS)!r}, out='out', workers=2)"
    script = tmp_path / "script.py"
    script.write_text(f"import icllab\nif __name__ == '__main__':\n    {run}\nelse:\n    raise SystemExit(3)\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 1
    assert "expected processes that start, 3 in a row did not" in done.stderr.splitlines()[-1]
