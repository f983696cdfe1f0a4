"""Sweeps through faults of workers, limits and shards: every cell in the end, as if nothing had happened."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from faults.processes import (
    CLAIM,
    CLAIMS,
    DIMS,
    alive,
    assert_same,
    complaint,
    inside,
    leftovers,
    measured,
    run_command,
    strictly,
)

import icllab as icl
from icllab.lab.job import new_request as requested
from icllab.lab.run import compute


@pytest.mark.slow
def test_two_workers_killed_in_mid_cell(tmp_path, log, capfd, monkeypatch, undisturbed):
    monkeypatch.setenv("STEADY_FAULT", "die:2")
    status, _, err = inside(capfd, run_command(tmp_path, "--workers", "2"))
    assert status == 0, err
    begun = measured(log)
    assert len(begun) == len(DIMS) + 2
    assert {dim for dim, _ in begun} == set(DIMS)
    assert_same(tmp_path, undisturbed)
    assert leftovers(tmp_path) == []
    assert not any(alive(pid) for _, pid in begun)


def test_a_worker_that_hangs(tmp_path, log, capfd, monkeypatch, undisturbed):
    monkeypatch.setenv("STEADY_FAULT", "hang:1")
    status, _, err = inside(capfd, run_command(tmp_path, "--limit", "6", "--set", "dim=2"))
    assert status == 0, err
    assert "measure" in err[err.index("Timeout (0:00:0") :]  # where it was then
    begun = measured(log)
    assert [dim for dim, _ in begun] == [2, 2]
    assert not alive(begun[0][1])
    assert_same(tmp_path, undisturbed.sel(dim=[2]))
    assert leftovers(tmp_path) == []


@pytest.mark.slow
def test_a_cell_that_kills_every_worker_is_given_up_alone(tmp_path, log, capfd, monkeypatch):
    monkeypatch.setenv("STEADY_FAULT", "kill:8")
    status, _, err = inside(capfd, run_command(tmp_path, "--workers", "2", "--set", "dim=4,8"))
    assert status == 4
    assert "1 of 2 cells failed, 1 are kept; the first, dim=8: its worker process ended" in complaint(err)
    assert sorted(dim for dim, _ in measured(log)) == [4, 8, 8, 8]  # no other cell is begun again


def test_values_that_a_cell_lacks_are_measured_beside_those_it_has(tmp_path, log):
    more = requested(CLAIM, "small", axes={"ridge": [0.5]}, out=tmp_path, claims=CLAIMS)
    first = icl.run(CLAIM, "small", axes={"dim": [2]}, out=tmp_path, claims=CLAIMS)
    assert compute(more).computed == len(DIMS)
    whole = icl.open(CLAIM, out=tmp_path, claims=CLAIMS)
    np.testing.assert_array_equal(whole["icl_error"].sel(dim=2, ridge=0), first["icl_error"].sel(dim=2, ridge=0))
    assert np.isfinite(whole["icl_error"].sel(ridge=0.5)).all()
    assert np.isnan(whole["icl_error"].sel(dim=4, ridge=0)).all()  # never requested


def test_any_executor_measures(tmp_path, log, undisturbed):
    with ThreadPoolExecutor(2) as executor:
        icl.run(CLAIM, "small", out=tmp_path, claims=CLAIMS, executor=executor)
    assert {pid for _, pid in measured(log)} == {os.getpid()}
    assert_same(tmp_path, undisturbed)


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
