"""Runs of the page: started, watched, stopped; finished cells stay."""

import json
import shlex
import shutil
import signal
import sys

import pytest
from faults.processes import CLAIM, CLAIMS, DIMS, cells

from icllab.core.errors import InputError
from icllab.page import runs
from icllab.page.results import command
from icllab.page.runs import Job, Runs

SMALL = {"claim": CLAIM, "size": "small"}


def run(page, id):
    """One of the runs."""
    return next(one for one in page.get("/api/runs").json()["runs"] if one["id"] == id)


def test_runs_wait_for_each_other_can_be_stopped_and_keep_their_cells(opened, tmp_path, until, monkeypatch):
    monkeypatch.setenv("STEADY_PAUSE", "2")
    page = opened(tmp_path)
    first, second, third = (page.post("/api/runs", json=SMALL).json()["id"] for _ in range(3))
    assert page.post(f"/api/runs/{third}/stop", json={}).json()["state"] == "stopped"  # before it began

    def under_way():
        one = run(page, first)
        return one["done"] >= 2 and one

    one = until(under_way)
    assert (one["state"], one["total"], one["ended"]) == ("running", len(DIMS), None)
    assert run(page, second)["state"] == "queued"
    kept = cells(tmp_path)
    monkeypatch.delenv("STEADY_PAUSE")  # the second is not watched
    assert page.post(f"/api/runs/{first}/stop", json={}).json()["state"] == "stopping"
    until(lambda: run(page, first)["state"] == "stopped")
    after = cells(tmp_path)
    assert kept.items() <= after.items()
    assert len(after) < len(DIMS)
    assert "interrupted" in run(page, first)["reason"]
    assert page.post(f"/api/runs/{first}/stop", json={}).status_code == 400  # it runs no more

    done = until(lambda: (one := run(page, second))["state"] == "finished" and one)
    assert (done["verdict"], done["exit_status"], done["done"]) == ("holds", 0, len(DIMS))
    assert after.items() <= cells(tmp_path).items()  # computed once
    log = page.get(f"/api/runs/{second}/log").json()["log"]
    assert f"{len(after)} of {len(DIMS)} cells (there already)" in log
    assert "a claim that prints" in log
    (tile,) = [one for one in page.get("/api/claims").json()["claims"] if one["claim"] == CLAIM]
    assert tile["verdict"] == "holds"


def test_what_runs_and_what_waits_end_with_the_page(opened, tmp_path, until, monkeypatch):
    monkeypatch.chdir(tmp_path)
    api = opened(tmp_path / "out").app.app.state.api
    with api.runs._condition:
        first, second = api.runs.start(CLAIM, "small"), api.runs.start(CLAIM, "small")
        first.arguments = [sys.executable, "-c", "import time; open('ready', 'w'); time.sleep(60)"]
    until((tmp_path / "ready").exists)
    api.close()
    assert [first.state, second.state] == ["stopped", "stopped"]
    assert (first.exit_status, second.process) == (-signal.SIGTERM, None)


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
    monkeypatch.setattr(api.runs, "_launch", lambda job: setattr(job, "state", "failed"))
    id = page.post("/api/runs", json=SMALL).json()["id"]
    api.runs.job(id).log.write_bytes(b"<script>alert(1)</script>\xff\n")
    answer = page.get(f"/api/runs/{id}/log")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["log"] == "<script>alert(1)</script>\ufffd\n"


def test_a_log_is_sent_from_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "LOG_BYTES", 10)
    monkeypatch.setattr(Runs, "_work", lambda self: None)
    queue = Runs(tmp_path)
    job = queue.start(CLAIM, "small")
    for text in ("short", "0123456789" * 3 + "the end"):
        job.log.write_text(text)
        assert queue.log(job.id) == text[-10:]
    queue.close()


def test_the_queue_has_an_end_and_what_is_stopped_in_it_never_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "MOST_QUEUED", 3)
    monkeypatch.setattr(Runs, "_work", lambda self: None)
    queue = Runs(tmp_path)
    jobs = [queue.start(CLAIM, "small") for _ in range(3)]
    with pytest.raises(InputError, match="runs: expected at most 3 in the queue"):
        queue.start(CLAIM, "small")
    queue.stop(jobs[0].id)
    assert queue._launch(jobs[0]) is None  # it was taken out of the queue before, and stopped since
    assert (jobs[0].state, jobs[0].process) == ("stopped", None)
    jobs.append(queue.start(CLAIM, "small"))
    queue.close()
    assert [job.state for job in jobs] == ["stopped"] * 4


def test_a_run_that_does_not_end_when_it_is_asked_to_is_killed(tmp_path, until, monkeypatch):
    monkeypatch.setattr(runs, "PATIENCE", 0.1)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('ready', 'w'); time.sleep(60)"
    monkeypatch.chdir(tmp_path)
    queue = Runs(tmp_path)
    with queue._condition:
        job = queue.start(CLAIM, "small")
        job.arguments = [sys.executable, "-c", deaf]
    until((tmp_path / "ready").exists)
    queue.stop(job.id)
    until(lambda: job.state == "stopped")
    assert job.exit_status == -signal.SIGKILL
    queue.close()


def test_the_command_can_be_typed(tmp_path):
    """Every word is quoted if it has to be."""
    words = shlex.split(command("a claim's", "smoke", "wrong", tmp_path / "o ut", CLAIMS))
    assert words[:4] == ["icl", "run", "a claim's", "--size"]
    assert words[-5:] == ["wrong", "--out", str(tmp_path / "o ut"), "--claims", str(CLAIMS)]


def test_a_run_at_smoke_finishes_without_a_verdict(tmp_path):
    runs = Runs(tmp_path)
    for answer, state in ((b'{"verdict": null, "numbers": "as recorded"}', "finished"), (b'{"error": {}}', "failed")):
        job = Job("run-1", CLAIM, "smoke", 1, tmp_path / "log", [], state="running")
        runs._finish(job, 0, answer)
        assert (job.state, job.verdict) == (state, None)
    runs.close()


@pytest.mark.parametrize(
    ("status", "verdict", "state"),
    [
        (0, "holds", "finished"),
        (1, "fails", "finished"),
        (3, "undecided", "finished"),
        (2, None, "failed"),
        (4, None, "failed"),
    ],
)
def test_a_verdict_finishes_a_run_and_a_fault_fails_it(status, verdict, state, tmp_path):
    """Status 3 is a verdict: the data of this size cannot tell."""
    runs = Runs(tmp_path)
    job = Job("run-1", CLAIM, "small", 1, tmp_path / "log", [], state="running")
    runs._finish(job, status, json.dumps({"verdict": verdict}).encode())
    assert (job.state, job.verdict, job.exit_status) == (state, verdict, status)
    runs.close()
