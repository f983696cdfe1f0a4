"""Every peer is recorded, differs within its tolerance or says why it does not, and is shown as it is recorded."""

import ast
import importlib
import json
import math
import pkgutil
import re
import sys
from pathlib import Path

import jax
import pytest
from refusals import unchecked

import icllab

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs" / "peers"
TEMPLATE = (RECORDS / "template.md").read_text("utf-8")
NAMES = [path.stem for path in sorted((ROOT / "bench" / "peers").glob("*.py"))]
each_peer = pytest.mark.parametrize("name", NAMES)
# Largest tolerances: a wider one would call different answers equal.
LARGEST = {"absolute": 1e-3, "relative": 1e-3, "standard errors": 5}


def module(folder, name):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / folder)
        yield importlib.import_module(name)
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def peers():
    yield from module("bench", "peers")


@pytest.fixture(scope="module")
def make_peers():
    yield from module("docs", "make_peers")


def record(name):
    return json.loads((RECORDS / f"{name}.json").read_text("utf-8"))


def peer_of(name):
    """The constant PEER of a module; to import it would need the peer."""
    body = ast.parse((ROOT / "bench" / "peers" / f"{name}.py").read_text("utf-8")).body
    (value,) = [node.value for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PEER"]
    return ast.literal_eval(value)


def public(text):
    """The object whose name a text begins with, within `icllab` or one of its subpackages."""
    name = re.match(r"`?(?:icllab\.|icl\.)?([A-Za-z]\w*(?:\.[A-Za-z]\w*)*)", text)[1]
    for prefix in ("icllab", *(f"icllab.{package}" for package in icllab.__all__)):
        try:
            return pkgutil.resolve_name(f"{prefix}.{name}")
        except (AttributeError, ModuleNotFoundError):
            continue
    raise AssertionError(f"{name}: not a public name")


def test_every_record_has_its_module():
    assert [path.stem for path in sorted(RECORDS.glob("*.json"))] == NAMES


@each_peer
def test_a_record_is_whole(peers, name):
    found = record(name)
    assert found["peer"] == peer_of(name)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    assert found["version"].strip()
    assert found["rows"]
    assert [peers.row(row) for row in found["rows"]] == found["rows"]
    assert len({row["case"] for row in found["rows"]}) == len(found["rows"])


@each_peer
def test_a_difference_is_within_its_tolerance_or_has_a_note_that_says_whose_answer_is_wrong(peers, name):
    rows = record(name)["rows"]
    assert peers.unexplained(rows) == []
    for row in rows:
        if row["difference"] is None:
            assert re.search(r"\buse\b", row["note"], re.IGNORECASE), row
            continue
        assert math.isfinite(row["difference"])
        assert row["difference"] >= 0
        assert 0 <= row["tolerance"] <= LARGEST[row["unit"]], row
        if row["difference"] > row["tolerance"]:
            assert re.search(r"\b(theirs?|ours?|they|we|here|there)\b", row["note"], re.IGNORECASE), row


@each_peer
def test_what_is_ours_exists(name):
    for row in record(name)["rows"]:
        public(row["ours"])


def test_a_name_that_is_not_there_is_noticed():
    for text in ("algorithms.Rigde(0.25)", "Transformer.raventoss", "tasks.linear_regresion"):
        with pytest.raises(AssertionError):
            public(text)


def test_the_page_shows_the_rows_of_the_records_and_no_others(make_peers):
    records = make_peers.read(RECORDS)
    page = make_peers.page(TEMPLATE, records)
    assert "<!--" not in page
    shown = re.findall(r"^\|.*\| (?:equal|\*\*not equal\*\*|\*\*removed\*\*)(?:: .*)? \|$", page, re.MULTILINE)
    expected = [line for name in records for line in make_peers.table(records[name]["rows"]).splitlines()[2:]]
    assert sorted(shown) == sorted(expected)
    assert len(shown) == sum(len(found["rows"]) for found in records.values())
    for name, found in records.items():
        assert page.count(f"`bench/peers.py --only {name}") == 1
        answered = sum(row["difference"] is not None for row in found["rows"])
        assert f"| `{found['peer']}` | {found['version']} | {answered} |" in page


def test_a_cell_of_names_counts_only_what_was_measured(make_peers):
    records = make_peers.read(RECORDS)
    page = make_peers.page(TEMPLATE, records)
    rows = re.findall(r"^\| there \| here \| measured \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    cells = [re.split(r"(?<!\\) \| ", line)[2] for body in rows for line in body.splitlines()]
    assert cells
    assert all(re.fullmatch(r"equal in \d+ of \d+, .* \||not compared \|", cell) for cell in cells)
    alone = make_peers.page(TEMPLATE, {})
    assert not re.search(r"equal in \d", alone)


def test_the_template_claims_no_equality():
    """What is equal is said by rows that were measured."""
    _, *sections = re.split(r"^## ", TEMPLATE, flags=re.MULTILINE)
    for section in sections:
        assert not re.search(r"\b(same|equals?|identical|exactly|agrees?|matches)\b", section), section.splitlines()[0]
    for name in re.findall(r"<(icllab[\w.]*)>", TEMPLATE):
        pkgutil.resolve_name(name)


@pytest.mark.slow
def test_scikit_learn_gives_the_rows_that_are_recorded(peers):
    pytest.importorskip("sklearn")
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"), unchecked():  # as in the bench
        again = peers.measure(peers.modules()["scikit_learn"], None)["rows"]
    known = record("scikit_learn")["rows"]
    fixed = ("case", "theirs", "ours", "unit", "tolerance", "note")
    assert [[row[name] for name in fixed] for row in again] == [[row[name] for name in fixed] for row in known]
    assert all(row["difference"] <= row["tolerance"] for row in again)


def test_a_case_that_lacks_a_field_or_has_another_unit_is_refused(peers):
    row = record("scikit_learn")["rows"][0]
    for wrong in (row | {"unit": "percent"}, {name: row[name] for name in row if name != "note"}, row | {"more": 1}):
        with pytest.raises(ValueError, match="case: expected"):
            peers.row(wrong)
    assert peers.unexplained([row | {"difference": 1.0}]) == [row["case"]]
    assert peers.unexplained([row | {"difference": math.nan}]) == [row["case"]]
    assert peers.unexplained([row | {"difference": 1.0, "note": "theirs stops early"}]) == []
    assert peers.unexplained([peers.row(row | {"difference": None})]) == [row["case"]]
