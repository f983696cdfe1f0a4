"""``icl claim cost``, ``icl claim submit`` and ``icl run --dry-run``: what they say, and that they change nothing."""

import pytest
from faults.processes import CLAIM, CLAIMS, STORE, strictly

from icllab.lab import cost, records, submission


@pytest.fixture
def recorded(monkeypatch):
    """A record of the toy claim."""
    machine = {"machine": "cpu: cpu, 2 cores of a kind"}
    entries = {"smoke": {"seconds": 2.0, **machine}, "small": {"seconds": 7200.0, **machine}}
    monkeypatch.setattr(records, "read", lambda claim, folder=None: entries)
    return entries


def rows(out):
    """Name -> text of the lines of an answer."""
    return {name: text.strip() for name, _, text in (line.strip().partition("  ") for line in out.splitlines())}


def test_the_cost_of_a_run(recorded, icl):
    status, out, _ = icl("claim", "cost", CLAIM, "--claims", CLAIMS)
    assert status == 0
    lines = rows(out)
    assert lines == {
        "cells": "5",
        "record": "2 h at small; cpu: cpu, 2 cores of a kind",
        "core-hours": f"2, within a factor of {cost.FACTOR:g}",
    }
    _, out, _ = icl("claim", "cost", CLAIM, "--claims", CLAIMS, "--seeds", "12")
    assert rows(out)["record"].startswith("2 h at small, times 2 for the work;")
    answer = strictly(icl("claim", "cost", CLAIM, "--claims", CLAIMS, "--seeds", "12", "--json")[1])
    assert answer["core_hours"] == pytest.approx({"value": 4.0, "low": 4 / cost.FACTOR, "high": 4 * cost.FACTOR})
    assert answer["memory_bytes"] is None


def test_recorded_memory_is_said_to_be_recorded(recorded, icl):
    recorded["small"]["peak_bytes"] = 1_234_000_000
    assert rows(icl("claim", "cost", CLAIM, "--claims", CLAIMS)[1])["memory"] == "1.2 GB a process, recorded"


def test_a_claim_without_a_record_has_no_cost(icl):
    status, _, err = icl("claim", "cost", CLAIM, "--claims", CLAIMS)
    assert status == 3
    assert "expected a record with the seconds of a run, found none" in err


def test_a_dry_run_measures_and_writes_nothing(recorded, ran, icl, monkeypatch):
    monkeypatch.setenv("STEADY_LOG", str(ran / "log"))
    (ran / STORE / "cells" / "dim=8.nc").unlink()
    before = sorted(ran.rglob("*"))
    status, out, _ = icl("run", CLAIM, "--claims", CLAIMS, "--out", ran, "--dry-run")
    assert (status, sorted(ran.rglob("*"))) == (0, before)
    lines = rows(out)
    assert lines["cells"] == "4 are there, 1 to measure"
    assert lines["each"] == "24 min of a core, within a factor of 5"
    assert lines["all"] == "24 min of a core, by the record; nothing was measured"
    assert lines["results"] == str(ran / STORE)
    assert lines["measure"] == "dim=8"
    answer = strictly(icl("run", CLAIM, "--claims", CLAIMS, "--out", ran, "--dry-run", "--fresh", "--json")[1])
    assert (answer["cells"]["kept"], len(answer["cells"]["missing"])) == (0, 5)
    assert answer["seconds"]["value"] == pytest.approx(7200)
    assert answer["seconds_each"]["value"] == pytest.approx(7200 / 5)
    config = ran / "config.toml"
    config.write_text("dry_run = true\nshard = '1/2'\n")
    answer = strictly(icl("run", CLAIM, "--claims", CLAIMS, "--out", ran, "--config", config, "--json")[1])
    assert answer["cells"]["kept"] + len(answer["cells"]["missing"]) == 3


def test_a_dry_run_without_a_record_tells_the_cells(tmp_path, icl):
    status, out, _ = icl("run", CLAIM, "--claims", CLAIMS, "--out", tmp_path, "--dry-run", "--set", "dim=1:20:20")
    assert status == 0
    assert "0 are there, 20 to measure" in out
    assert "expected a record" in out
    assert "and 12 more" in out


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["--slurm"], "jobs go to Slurm without it"),
        (["--print", "pbs"], "docs/batch-systems.md has texts"),
        (["--image", "a"], "docs/batch-systems.md has texts"),
        (["--volume", "b"], "docs/batch-systems.md has texts"),
    ],
)
def test_an_option_of_version_0_3_says_what_replaces_it(words, advice, icl):
    status, out, err = icl("claim", "submit", CLAIM, "--claims", CLAIMS, *words)
    assert (status, out) == (2, "")
    assert f"{words[0]}: expected no such option since version 0.4, got it; {advice}" in err


def test_more_jobs_than_any_array_has_are_refused(icl):
    status, _, err = icl("claim", "submit", "asymptotics/double_descent", "--jobs", "99999999999")
    assert status == 2
    assert "jobs: expected at most 4000000, got 99999999999; no array of Slurm is larger" in err


def test_a_submission_to_slurm(recorded, tmp_path, icl, monkeypatch):
    """All that the run was asked for reaches the jobs, with paths that hold wherever they start."""
    submissions = []

    def submit(jobs, store, parameters):
        submissions.append((jobs, store, parameters))
        return ["77_0", "77_1"]

    monkeypatch.setattr(submission, "submit", submit)
    monkeypatch.chdir(tmp_path)
    words = ["--control", "raised", "--seeds", "4", "--set", "dim=2,4,8", "--out", "results", "--workers", "2"]
    words += ["--partition", "low", "--parameter", "slurm_account=lab", "--parameter", "gpus_per_node=1"]
    words += ["--jobs", "2", "--time", "4h", "--memory", "8"]
    status, out, _ = icl("claim", "submit", CLAIM, "--claims", CLAIMS, *words, "--dry-run")
    assert (status, submissions) == (0, [])
    assert rows(out)["jobs"] == "2 of 2 core(s), 8 GB and 04:00:00; none submitted"
    assert not (tmp_path / "results").exists()
    status, out, _ = icl("claim", "submit", CLAIM, "--claims", CLAIMS, *words)
    assert status == 0
    ((jobs, store, parameters),) = submissions
    assert parameters == {"slurm_account": "lab", "gpus_per_node": 1, "slurm_partition": "low"}
    assert store == tmp_path / "results" / "claims" / "steady" / "small@raised"
    assert (jobs.count, jobs.minutes, jobs.cores, jobs.memory, jobs.name) == (2, 240, 2, 8, "icl-steady")
    where = ["--out", str(tmp_path / "results")]
    values = ["--seeds", "4", "--control", "raised", "--claims", str(CLAIMS), "--workers", "2"]
    assert list(jobs.run) == ["run", CLAIM, "--size", "small", *where, "--set", "dim=2,4,8", *values]
    assert rows(out)["jobs"] == "2 of array 77"
    assert f"icl check {CLAIM} --size small --out {tmp_path / 'results'} --claims {CLAIMS} --control raised" in out
    assert strictly(icl("claim", "submit", CLAIM, "--claims", CLAIMS, *words, "--json")[1])["jobs"] == ["77_0", "77_1"]
