"""A lease is held by one run at a time, outlives no run for long, and is nobody else's to give back."""

import contextlib
import json
import os
import subprocess
import sys

import pytest

from icllab.experiments import heartbeat, leases
from icllab.experiments.heartbeat import Heart
from icllab.experiments.leases import Leases
from icllab.experiments.store import Store

CELL, OTHER = {"dim": 4}, {"dim": 8}


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store", {"claim": "a"})


@pytest.fixture
def run(store):
    """``run()``: a run that uses the store until the test ends."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(Leases(store, Heart(store.root)))


def killed():
    """The identity of a process of this machine that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    born = f"{heartbeat._machine()} {heartbeat._born(process.pid)}"
    assert not heartbeat.gone(process.pid, born)
    process.communicate()
    assert heartbeat.gone(process.pid, born)
    return process.pid, born


def write(store, pid, born, run="far-1.json", cell=CELL):
    path = store.root / leases.FOLDER / f"{store.path(cell).stem}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"run": run, "pid": pid, "born": born}))
    return path


def test_one_run_at_a_time(store, run):
    one, two = run(), run()
    assert one.take(CELL)
    assert not two.take(CELL)
    assert not one.take(CELL)
    assert two.take(OTHER)
    one.release(CELL)
    assert two.take(CELL)


def test_nothing_is_left_of_a_run_that_has_ended(store):
    with Leases(store, Heart(store.root)) as mine:
        assert mine.take(CELL)
        assert mine.take(OTHER)
        mine.release(CELL)
        assert [path.stem for path in (store.root / leases.FOLDER).iterdir()] == ["dim=8"]
    assert not (store.root / leases.FOLDER).exists()


def test_a_killed_run_of_this_machine_is_overtaken_at_once(store, run):
    mine = run()
    write(store, *killed())
    assert mine.take(CELL)


def test_what_killed_runs_left_is_removed(store, run):
    """A temporary file names the process that writes it: one that runs, as of a figure, is let write."""
    gone, far = write(store, *killed(), cell=OTHER), write(store, 1, "far 1")
    dead, living = killed()[0], os.getppid()
    names = ("cells/.dim=4.nc.{}.2.partial", "grids/.1f.json.{}.2.partial", ".results.nc.{}.2.partial")
    for name in names:
        for number in (dead, living, os.getpid()):
            (store.root / name.format(number)).write_text("half of")
    run()
    assert not gone.exists()
    assert [name for name in names if (store.root / name.format(dead)).exists()] == []
    assert [name for name in names if (store.root / name.format(os.getpid())).exists()] == []
    assert [name for name in names if (store.root / name.format(living)).exists()] == list(names)
    assert far.exists()  # it may go on


def test_files_that_a_living_run_writes_are_left(store, run):
    living = Heart(store.root)
    living.beat = heartbeat.replace(living.beat, born="far 1")
    living.start()
    partial = store.root / "cells" / f".dim=4.nc.{killed()[0]}.2.partial"
    partial.write_text("half of")
    run()
    assert partial.exists()
    living.stop()
    run()
    assert not partial.exists()


@pytest.mark.parametrize("said", [None, "", "{", "[]", '{"run": 3}'])
def test_one_elsewhere_is_overtaken_when_it_has_been_silent(said, store, run, monkeypatch):
    """Also one whose lease is torn, of whom nothing is known."""
    now = [1000.0]
    monkeypatch.setattr(leases.time, "monotonic", lambda: now[0])
    mine, path = run(), write(store, 1, "far 1")
    if said is not None:
        path.write_text(said)
    assert not mine.take(CELL)
    now[0] += leases.SILENT - 1
    assert not mine.take(CELL)
    now[0] += 2
    assert mine.take(CELL)


def test_one_elsewhere_that_beats_keeps_its_cell(store, run, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(leases.time, "monotonic", lambda: now[0])
    mine = run()
    write(store, 1, "far 1")
    (store.root / heartbeat.FOLDER).mkdir()
    for i in range(5):
        (store.root / heartbeat.FOLDER / "far-1.json").write_text(f'{{"count": {i}}}')
        assert not mine.take(CELL)
        now[0] += leases.SILENT - 1
    now[0] += 2
    assert mine.take(CELL)


def test_a_lease_that_was_taken_over_is_not_given_back(store, run):
    mine = run()
    assert mine.take(CELL)
    path = write(store, 1, "far 1")  # another took it over
    mine.release(CELL)
    assert path.exists()


def test_a_name_in_a_lease_leads_nowhere_else(store, run, tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("a")
    assert leases._owner(b'{"run": "../../secret", "pid": 1, "born": "far 1"}')[0] == "secret"
