"""Every planted family: it is recorded as it is now, gives at most 5 % false verdicts, and tells strengths apart."""

import ast
import importlib
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from refusals import unchecked

from icllab.core.files import source_text
from icllab.lab import registry, source_files

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book" / "src" / "iclbook"


@pytest.fixture(scope="module")
def power():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "bench")
        yield importlib.import_module("power")
        sys.modules.pop("power", None)


NAMES = [path.stem for path in sorted((BOOK / "planted").glob("*.py"))]
each_family = pytest.mark.parametrize("name", NAMES)


def record(name):
    return json.loads((BOOK / "power" / f"{name}.json").read_text("utf-8"))


def test_every_record_has_its_family():
    assert [path.stem for path in sorted((BOOK / "power").glob("*.json"))] == NAMES


@each_family
def test_a_family_is_recorded_as_it_is(power, name):
    stated = power.stated(power.load(power.families()[name]))
    recorded = record(name)
    assert {field: recorded[field] for field in stated} == json.loads(json.dumps(stated))
    module, _, attribute = stated["statistic"].rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)
    counts = np.array(list(recorded["verdicts"].values()))
    np.testing.assert_array_equal(counts.sum(0), recorded["replicates"])
    assert len(set(stated["strengths"])) >= 5
    assert stated["replicates"] >= 100


def names_used(claim):
    """Dotted names that the files of a claim import, or read from what they import."""
    names = set()
    for file in source_files.source_files(claim).values():
        tree, imported = ast.parse(source_text(file)), {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                imported |= {alias.asname or alias.name: prefix + alias.name for alias in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
                names.add(f"{imported[node.value.id]}.{node.attr}")
        names |= set(imported.values())
    return names


def test_a_record_names_the_claims_that_use_its_statistic():
    """By the place that exports it too, such as ``icllab.diagnostics.transitions``."""
    used = {claim: names_used(claim) for claim in registry.claims()}
    for name in NAMES:
        module, _, attribute = record(name)["statistic"].rpartition(".")
        places = [module.split(".")[:end] for end in range(1, module.count(".") + 2)]
        exports = {".".join([*place, attribute]) for place in places}
        own = [claim for claim in used if module == f"iclbook.claims.{claim.replace('/', '.')}.claim"]
        assert record(name)["claims"] == sorted(own or [claim for claim in used if exports & used[claim]]), name


def test_a_list_of_claims_is_recorded_without_another_measurement(power, tmp_path, monkeypatch):
    name = np.random.default_rng().choice(NAMES)
    kept = {**record(name), "claims": ["another/claim"]}
    (tmp_path / f"{name}.json").write_text(json.dumps(kept))
    monkeypatch.setattr(power, "RECORDS", tmp_path)
    monkeypatch.setattr(power, "cache_compilations", lambda: None)
    monkeypatch.setattr(sys, "argv", ["power.py", "--only", name])
    monkeypatch.setattr(power, "families", lambda: {name: BOOK / "planted" / f"{name}.py"})
    monkeypatch.setattr(power, "measure", lambda family: pytest.fail("measured"))
    power.main()
    assert json.loads((tmp_path / f"{name}.json").read_text()) == record(name)


@each_family
def test_a_null_has_at_most_five_percent_false_verdicts(name):
    found = record(name)
    strengths = found["strengths"]
    assert found["false"]
    for strength, verdicts in found["false"].items():
        at = strengths.index(float(strength))
        count = sum(found["verdicts"][verdict][at] for verdict in verdicts if verdict in found["verdicts"])
        assert count <= 0.05 * found["replicates"], f"{name} at {strength}: {count} of {found['replicates']}"


@each_family
def test_a_statistic_tells_strengths_of_its_family_apart(name):
    """Not asked of an interval's coverage, whose misses are false everywhere."""
    found = record(name)
    if len(found["false"]) == len(found["strengths"]):
        return
    shares = np.array(list(found["verdicts"].values())) / found["replicates"]
    assert (abs(shares[:, :, None] - shares[:, None]).sum(0) / 2).max() >= 0.8  # the largest total variation


@each_family
def test_a_family_gives_the_verdicts_that_are_recorded(power, name):
    family, found = power.load(power.families()[name]), record(name)
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"), unchecked():  # as in the bench
        once, again = (power.verdicts(family, 0, 2) for _ in range(2))
    assert once == again
    assert len(once) == 2
    assert all(found["verdicts"].get(verdict, [0])[0] > 0 for verdict in once)  # each occurs at that strength
