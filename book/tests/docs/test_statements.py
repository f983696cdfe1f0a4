"""The table of statements names nothing that does not exist, and its command fails where a call does."""

import importlib.util
import sys
from pathlib import Path

import pytest

from icllab.core.errors import InputError
from icllab.lab import records
from icllab.lab.checks import Verdict

DOCS = Path(__file__).parents[3] / "docs"
TESTS = "book/tests/docs/test_statements.py"


@pytest.fixture(scope="module")
def make():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)  # where it finds make_gallery
        spec = importlib.util.spec_from_file_location("make_statements", DOCS / "make_statements.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
        sys.modules.pop("make_gallery", None)


@pytest.fixture(scope="module")
def table(make):
    return make.read(DOCS / "statements.toml")


def test_every_claim_test_module_and_page_exists(make, table):
    assert make.absences(table[1]) == []


def test_every_statement_of_the_five_sources_has_one_row(table):
    sources, rows = table
    counts = {letter: sum(label[0] == letter for label in rows) for letter in sources}
    assert counts == {"S": 21, "T": 20, "R": 15, "L": 16, "B": 11}
    assert len({row["says"] for row in rows.values()}) == len(rows)
    missing = {label for label, row in rows.items() if row.get("state") == "missing"}
    assert missing <= {"T2", "T19"}  # it may only shrink


@pytest.mark.parametrize(
    "row",
    [
        {"claims": ["singular/none"]},
        {"tests": [f"{TESTS}::test_none"]},
        {"tests": ["tests/test_none.py"]},
        {"names": ["icllab.none"]},
        {"names": ["icllab.tasks.label_relations:LabelRelations.none"]},
        {"pages": ["none"]},
        {"pages": ["routing#none"]},
    ],
    ids=str,
)
def test_what_does_not_exist_is_found(make, row):
    (name,) = next(iter(row.values()))
    assert make.absences({"S1": row}) == [("S1", name)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('1 = {says = "a", claim = ["b"]}', "unknown field of S1"),
        ('1 = {claims = ["b"]}', "S1: expected a known source and a statement"),
        ('1 = {says = "a"}', "S1: expected either claims or tests, or a state"),
        ('1 = {says = "a", claims = ["b"], state = "prose"}', "S1: expected either claims or tests, or a state"),
        ('1 = {says = "a", state = "later"}', "S1: expected the state prose or missing, got 'later'"),
    ],
)
def test_a_row_that_says_too_little_is_refused(make, tmp_path, text, message):
    path = tmp_path / "statements.toml"
    path.write_text(f'[sources]\nS = "Notes"\n[S]\n{text}\n')
    with pytest.raises(InputError) as caught:
        make.read(path)
    assert message in str(caught.value)


def test_a_call_fails_if_a_verdict_is_not_the_recorded_one(make, monkeypatch, capsys):
    claim = "asymptotics/double_descent"
    row = {"says": "It peaks.", "claims": [claim]}
    assert make.run({"L9": row}) == 0
    monkeypatch.setattr(records, "judged", lambda name: ("small", Verdict(name, ())))
    assert make.run({"L9": row, "T2": {"says": "Long.", "state": "missing"}}) == 1
    said = capsys.readouterr().out
    assert "FAILED" in said
    assert "the record says holds, its data undecided" in said
    assert "2 rows, 1 failed" in said


def test_a_call_fails_if_a_test_does_or_does_not_run(make, tmp_path, monkeypatch):
    """Tests run in one process: the failure of one is not that of another, nor of one whose name begins as its own."""
    monkeypatch.setattr(make, "HERE", tmp_path / "docs")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    lines = ["import pytest", "def test_it_fails(): assert False", "def test_it(): pass"]
    lines += ["@pytest.mark.parametrize('x', ['a b', 1])", "def test_both(x): assert x != 1"]
    lines += ["@pytest.mark.skip", "def test_later(): pass"]
    (tmp_path / "test_one.py").write_text("\n".join(lines))
    names = ("", "::test_it_fails", "::test_it", "::test_both", "::test_later")
    found = make.failures([f"test_one.py{name}" for name in names])
    assert found == {
        "test_one.py": "test_one.py: failed and passed and skipped",
        "test_one.py::test_it_fails": "test_one.py::test_it_fails: failed",
        "test_one.py::test_both": "test_one.py::test_both: failed and passed",
        "test_one.py::test_later": "test_one.py::test_later: skipped",
    }
    (tmp_path / "test_two.py").write_text("import none")
    assert make.failures(["test_two.py::test_it"]) == {"test_two.py::test_it": "test_two.py::test_it: did not run"}


def test_the_page_shows_each_row_with_its_verdict(make, table):
    known = {claim: records.card(claim) for claim in ("induction/cliff",)}
    row = {"says": "A cliff_", "claims": ["induction/cliff"], "pages": ["routing#x-y", "page"], "open": "All"}
    page = make.page({"S": "Notes"}, {"S1": row, "S2": {"says": "b", "state": "prose"}}, known)
    assert '<span class="verdict holds">' in page
    assert r"A cliff\_" in page
    assert "[routing: x y](routing.md#x-y)\n" in page
    assert "[page](page.md)" in page
    assert "*Open*: All" in page
    assert "2 statements of the five texts" in page
    assert "in our words: 1 have a call" in page
