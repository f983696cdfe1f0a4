"""``icl doctor`` leaves nothing behind, and names each problem."""

import sys

import pytest
from faults.processes import strictly

from icllab.cli import environment as doctor


def test_the_doctor_finds_nothing_here(tmp_path, icl):
    status, out, _ = icl("doctor", "--out", tmp_path / "results")
    assert status == 0, out
    assert "no problems" in out
    assert not list(tmp_path.iterdir())


def test_the_doctor_names_each_problem(tmp_path, icl, monkeypatch):
    (tmp_path / "file").write_text("")
    version = doctor.metadata.version
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "0.1" if name == "optax" else version(name))
    status, out, _ = icl("doctor", "--out", tmp_path / "file" / "results", "--json")
    answer = strictly(out)
    assert status == 4
    assert len(answer["problems"]) == 2
    assert answer["problems"][0].startswith("optax: expected >=0.2.8, got 0.1")
    assert "cannot write there" in answer["problems"][1]


def test_what_the_doctor_cannot_examine_is_a_problem(tmp_path, icl, monkeypatch):
    def broken(name):
        raise RuntimeError("no metadata\nat all")

    monkeypatch.setattr(doctor.metadata, "requires", broken)
    status, out, _ = icl("doctor", "--out", tmp_path, "--json")
    assert status == 4
    assert strictly(out)["problems"] == ["packages: RuntimeError: no metadata at all"]


@pytest.mark.parametrize(("low", "high", "state"), [(0, 0, "ok"), (0, 1, "ok"), (-1, -1, "note"), (1, 1, "problem")])
def test_a_python_that_was_not_tested_is_noted(low, high, state, monkeypatch):
    major, minor = sys.version_info[:2]
    monkeypatch.setattr(doctor, "PYTHONS", ((major, minor + low), (major, minor + high)))
    row = next(doctor._python())
    assert row.state == state
    assert (f"{major}.{minor + high}" in row.detail.partition("; ")[2]) == (state != "ok")
