"""A run says how far it is while it runs, and nobody is misled by one that has ended."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest
from faults.processes import CLAIM, CLAIMS, DIMS, STORE

import icllab as icl
from icllab.experiments import heartbeat, requests, runner
from icllab.experiments.heartbeat import Beat


def test_a_run_says_how_far_it_is_and_leaves_nothing_behind(tmp_path):
    seen = []
    request = requests.requested(CLAIM, "smoke", out=tmp_path, claims=CLAIMS)

    def progress(done, total, what, left):
        (beat,) = heartbeat.beats(tmp_path / STORE)
        seen.append((beat.done, beat.total, beat.what, beat.left, beat.alive, beat.pid))
        assert (beat.done, beat.total) == (done, total) or time.time() - beat.updated < heartbeat.SECONDS

    runner.execute(request, progress=progress)
    assert seen[0] == (0, len(DIMS), "kept", None, True, os.getpid())
    assert seen[-1][:2] == (len(DIMS), len(DIMS))
    assert seen[-1][3] == 0.0
    assert heartbeat.beats(tmp_path / STORE) == []
    assert not (tmp_path / STORE / heartbeat.FOLDER).exists()


def test_one_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("STEADY_FAULT", "raise:4")
    with pytest.raises(Exception, match="1 of 5 cells failed"):
        icl.run(CLAIM, "smoke", out=tmp_path, claims=CLAIMS)
    assert not (tmp_path / STORE / heartbeat.FOLDER).exists()


def test_a_disk_that_refuses_it_stops_no_run(tmp_path):
    store = tmp_path / STORE
    store.mkdir(parents=True)
    (store / heartbeat.FOLDER).write_text("in the way")
    assert icl.run(CLAIM, "smoke", out=tmp_path, claims=CLAIMS).sizes["dim"] == len(DIMS)


def test_it_writes_now_and_then_and_always_at_the_ends(tmp_path):
    with heartbeat.beating(tmp_path) as heart:
        said = []
        for done in range(101):
            heart.tell(done, 100, f"cell {done}", 100.0 - done, workers=3)
            said.append(heartbeat.beats(tmp_path)[0].done)
        assert (said[0], said[50], said[-1]) == (0, 0, 100)
        assert heartbeat.beats(tmp_path)[0].workers == 3


def test_it_beats_while_a_cell_takes_long(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "PERIOD", 0.02)
    with heartbeat.beating(tmp_path) as heart:
        heart.tell(3, 9, "dim=4", 1.0)
        counts = []
        while len(set(counts)) < 4:
            counts.append(heartbeat.beats(tmp_path)[0].count)
            time.sleep(0.01)
        assert heartbeat.beats(tmp_path)[0].done == 3
        assert counts == sorted(counts)
    assert not heart._thread.is_alive()


def ended():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_killed_run_is_known_and_the_next_one_removes_what_it_left(tmp_path):
    here = heartbeat.Heart(tmp_path).beat
    assert here.alive
    killed = replace(here, pid=ended())
    reused = replace(here, born=here.born.rpartition(" ")[0] + " 1")  # another process has the number
    assert not killed.alive
    assert not reused.alive
    (tmp_path / heartbeat.FOLDER).mkdir()
    for i, beat in enumerate((killed, reused, replace(here, host="elsewhere", born="another 1"))):
        (tmp_path / heartbeat.FOLDER / f"{i}.json").write_text(json.dumps(asdict(beat)))
    assert [beat.alive for beat in heartbeat.beats(tmp_path)] == [False, False, True]
    with heartbeat.beating(tmp_path) as heart:
        heart.tell(0, 1, "", None)
        assert [beat.host for beat in heartbeat.beats(tmp_path)].count("elsewhere") == 1
        assert len(heartbeat.beats(tmp_path)) == 2


def test_one_on_another_machine_that_is_silent_for_long_has_ended():
    now = time.time()
    assert Beat(1, "elsewhere", "", now, now - heartbeat.SILENT + 60).alive
    assert not Beat(1, "elsewhere", "", now, now - heartbeat.SILENT - 60).alive


@pytest.mark.parametrize("said", ["", "{", "[]", "{}", '{"pid": "x"}', '{"pid": Infinity}'])
def test_what_is_no_such_file_is_passed_over(said, tmp_path):
    (tmp_path / heartbeat.FOLDER).mkdir()
    (tmp_path / heartbeat.FOLDER / "a.json").write_text(said)
    assert heartbeat.beats(tmp_path) == []
