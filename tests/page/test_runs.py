"""Runs of the page: started, watched, stopped; finished cells stay."""

import shutil

import pytest
from faults.processes import CLAIM, CLAIMS, DIMS, ICL, STORE, cells

SMALL = {"claim": CLAIM, "size": "small"}


def state(page):
    """What goes on, as the browser is told."""
    return page.app.app.state.api.state()


def run(page, id):
    """One of the runs."""
    return next(one for one in state(page)["runs"] if one["id"] == id)


def test_runs_wait_for_each_other_can_be_stopped_and_keep_their_cells(opened, tmp_path, until, monkeypatch):
    monkeypatch.setenv("STEADY_PAUSE", "2")
    page = opened(tmp_path)
    first, second, third = (page.post("/api/runs", json=SMALL).json()["id"] for _ in range(3))
    assert page.post(f"/api/runs/{third}/stop", json={}).json()["state"] == "stopped"  # before it began

    def under_way():
        one = run(page, first)
        return one["done"] >= 2 and one

    one = until(under_way)
    assert (one["state"], one["total"], one["result"] is not None) == ("running", len(DIMS), True)
    assert run(page, second)["state"] == "queued"
    assert state(page)["busy"]
    kept = cells(tmp_path)
    assert page.post(f"/api/runs/{first}/stop", json={}).json()["state"] == "stopping"
    until(lambda: run(page, first)["state"] == "stopped")
    after = cells(tmp_path)
    assert kept.items() <= after.items()
    assert len(after) < len(DIMS)
    assert "interrupted" in run(page, first)["reason"]
    assert page.post(f"/api/runs/{first}/stop", json={}).status_code == 400  # it runs no more
    # What is finished is drawn while the rest is computed.
    picture = page.get(f"/api/results/{one['result']}/so-far.png")
    assert picture.content.startswith(b"\x89PNG")

    done = until(lambda: (one := run(page, second))["state"] == "finished" and one)
    assert (done["verdict"], done["exit_status"], done["done"]) == ("holds", 0, len(DIMS))
    assert after.items() <= cells(tmp_path).items()  # computed once
    log = page.get(f"/api/runs/{second}/log").json()["log"]
    assert f"0 of {len(DIMS)} cells (begun)" in log
    assert "a claim that prints" in log
    assert not state(page)["busy"]
    (tile,) = [one for one in page.get("/api/claims").json()["claims"] if one["claim"] == CLAIM]
    assert tile["verdict"] == "holds"

    # The page ends, and what runs or waits with it.
    for path in (tmp_path / STORE / "cells").iterdir():
        path.unlink()
    for _ in range(2):
        page.post("/api/runs", json=SMALL)
    until(lambda: cells(tmp_path))
    api = page.app.app.state.api
    api.close()
    assert [job.state for job in api.runs.jobs()[:2]] == ["stopped", "stopped"]
    assert 0 < len(cells(tmp_path)) < len(DIMS)


def test_a_run_that_fails_says_why(opened, tmp_path, until):
    folder = shutil.copytree(CLAIMS, tmp_path / "own" / "claims")
    page = opened(tmp_path / "out", claims=folder)
    page.get("/api/claims")
    shutil.rmtree(folder)
    id = page.post("/api/runs", json=SMALL).json()["id"]
    one = until(lambda: (one := run(page, id))["state"] == "failed" and one)
    assert one["exit_status"] == 2
    assert "expected a folder of claims" in one["reason"]


def test_a_log_is_text(opened, tmp_path, monkeypatch):
    page = opened(tmp_path)
    api = page.app.app.state.api
    monkeypatch.setattr(api.runs, "_begun", lambda job: setattr(job, "state", "failed"))
    id = page.post("/api/runs", json=SMALL).json()["id"]
    api.runs.job(id).log.write_bytes(b"<script>alert(1)</script>\xff\n")
    answer = page.get(f"/api/runs/{id}/log")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["log"] == "<script>alert(1)</script>\ufffd\n"


@pytest.mark.parametrize(("claim", "out"), [("a claim's", "o ut")])
def test_the_command_can_be_typed(claim, out, tmp_path):
    """It is what a person would type for the same run, quoted where it has to be."""
    import shlex

    from icllab.page.runs import Runs
    from icllab.page.stored import command

    runs = Runs(tmp_path / out, CLAIMS)
    try:
        runs._begun = lambda job: setattr(job, "state", "failed")
        job = runs.start(claim, "smoke", 2)
        assert shlex.split(job.command)[1:] == list(job.arguments[len(ICL) : -1])
        assert shlex.split(command(claim, "smoke", "wrong", tmp_path / out, None))[1:3] == ["run", claim]
    finally:
        runs.close()
