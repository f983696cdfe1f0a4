"""``icl doctor`` leaves nothing behind, and names each problem."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from faults.processes import strictly

from icllab.cli import environment as doctor
from icllab.core import errors


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


def test_a_missing_extra_comes_with_a_command_that_works_here(icl, monkeypatch, tmp_path):
    """Of this environment, from this clone: the package is on no index."""
    version = doctor.metadata.version

    def lacking(name):
        if name == "starlette":
            raise doctor.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(doctor.metadata, "version", lacking)
    rows = {row.what: row for row in doctor._packages()}
    command = rows["extra [page]"].detail.partition("; ")[2]
    python, *words = shlex.split(command)
    assert python == sys.executable
    assert words[:4] == ["-m", "pip", "install", "-e"]
    clone, _, extra = words[4].partition("[")
    assert (Path(clone, "pyproject.toml").is_file(), extra) == (True, "page]")
    assert "; " not in rows["extra [tables]"].detail
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "a" / "b" / "c" / "d.py"))  # as in a wheel
    assert errors.install_command("page").endswith("-m pip install -e '.[page]' in a clone of icl-lab")


def test_no_command_installs_the_package_from_an_index():
    """But in a clone, with ``-e``; what others publish may be installed by name."""
    root = Path(doctor.__file__).parents[3]
    paths = [root / name for name in ("README.md", "CONTRIBUTING.md", "Makefile")]
    paths += [
        path
        for folder in ("src", "docs")
        for kind in ("*.py", "*.md", "*.js", "*.html")
        for path in (root / folder).rglob(kind)
    ]
    wrong = re.compile(r"pip install[^`\n]*icl-lab|pip install ['\"]?\.")
    # A user's own book is installed by its own README.
    paths = [path for path in paths if not {"_build", "book"} & {*path.relative_to(root).parts}]
    assert not [path for path in paths if wrong.search(path.read_text("utf-8"))]
