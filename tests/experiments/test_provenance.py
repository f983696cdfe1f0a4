"""The digest of a claim's sources changes with every source it may reach, and with no other."""

import shutil
from pathlib import Path

import pytest

import icllab
from icllab.experiments import provenance
from icllab.experiments.store import SCHEMA


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A copy of the library's sources that may be edited, and a function that digests a claim in it."""
    package = tmp_path / "icllab"
    shutil.copytree(Path(icllab.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(provenance, "_PACKAGE", package)

    def digest(text):
        for cached in (provenance._imported, provenance._resolve, provenance._exported):
            cached.cache_clear()
        claim = tmp_path / "claim.py"
        claim.write_text(text)
        return provenance.sources_digest(claim)

    yield package, digest
    for cached in (provenance._imported, provenance._resolve, provenance._exported):
        cached.cache_clear()


@pytest.mark.parametrize(
    ("text", "reached", "not_reached"),
    [
        ("from icllab.core.grid import Grid", ["core/grid.py", "core/axes.py", "core/errors.py"], ["core/linalg.py"]),
        (
            "def measure():\n    from icllab.tasks import LinearRegression",
            ["tasks/linear_regression.py", "core/prompt.py"],
            ["theory/wishart.py", "experiments/runner.py"],
        ),
        (
            "from icllab.experiments import Experiment",
            ["experiments/experiment.py", "core/grid.py"],
            ["experiments/runner.py", "experiments/store.py", "cli/entry.py", "tasks/linear_regression.py"],
        ),
        (
            "import icllab.theory.linear_attention as t",
            ["theory/wishart.py"],
            ["theory/__init__.py", "models/reduced.py"],
        ),
        ("from icllab import theory", ["theory/wishart.py", "theory/__init__.py"], ["models/reduced.py"]),
        # An attribute may lead anywhere but to the library's surfaces and its other claims.
        (
            "import icllab as icl",
            ["theory/wishart.py", "models/reduced.py", "core/linalg.py", "tasks/linear_regression.py"],
            ["cli/entry.py", "experiments/asymptotics/double_descent.py"],
        ),
        ("import numpy", [], ["core/grid.py", "__init__.py"]),
    ],
)
def test_it_changes_with_what_the_claim_may_reach(text, reached, not_reached, library):
    package, digest = library
    before = digest(text)
    assert digest(text) == before
    assert digest(text + "\n") != before
    for name in (*reached, *not_reached):
        source = package / name
        content = source.read_text()
        source.write_text(content + "\n# another line\n")
        assert (digest(text) != before) == (name in reached), name
        source.write_text(content)
    assert digest(text) == before


def test_the_commit_is_a_hash_or_nothing():
    commit = provenance.commit()
    assert commit == "" or len(commit.removesuffix("+changes")) == 40


def test_the_configuration_is_what_a_cell_depends_on():
    from icllab.experiments import registry

    experiment = registry.load("asymptotics/double_descent")
    here = provenance.configuration(experiment, "smoke", None, SCHEMA)
    assert here["fixed"] == dict(experiment.fixed)
    other = experiment.with_fixed({"rho": [0.5]})
    assert provenance.configuration(other, "smoke", None, SCHEMA) != here
    assert provenance.configuration(experiment, "smoke", "slide_q", SCHEMA) != here
    assert provenance.configuration(experiment, "small", None, SCHEMA) != here
