"""``icl list``: one line a claim, what was found, and which claims are meant."""

import dataclasses

import pytest
from faults.processes import CLAIM, CLAIMS, STORE, strictly

from icllab.lab import records, registry


def test_list_has_one_line_a_claim_with_what_was_found_here(ran, icl):
    def line():
        status, out, _ = icl("list", "--claims", CLAIMS, "--out", ran)
        assert status == 0
        assert len(out.splitlines()) == 1 + len(registry.claims(CLAIMS))
        return next(line for line in out.splitlines() if line.startswith(CLAIM)).split(maxsplit=2)

    name, record, rest = line()
    assert (name, record) == (CLAIM, "none")
    assert rest == "What is measured is one half and a litt…; small: holds"
    (ran / STORE / "cells" / "dim=2.nc").unlink()
    assert line()[2].endswith("; small: 4 of 5 cells")
    rows = {row["claim"]: row for row in strictly(icl("list", "--claims", CLAIMS, "--out", ran, "--json")[1])["claims"]}
    assert set(rows) == set(registry.claims(CLAIMS))
    (found,) = rows[CLAIM]["results"]
    assert (found["size"], found["control"], found["cells"], found["of"]) == ("small", None, 4, 5)
    assert (found["verdict"], found["stale"]) == ("holds", False)
    assert rows[CLAIM]["controls"].keys() == {"wrong", "raised"}


def test_list_says_which_verdicts_are_stale(ran, icl, monkeypatch):
    monkeypatch.setattr("icllab.lab.registry.version", lambda path: 2)
    assert "small: holds, stale" in icl("list", "--claims", CLAIMS, "--out", ran)[1]


def test_list_has_the_verdicts_of_records(icl):
    lines = icl("list", "best_step")[1].splitlines()[1:]
    record = records.read("descent/best_step")
    assert [line.replace(", stale", "").split()[:2] for line in lines] == [
        ["descent/best_step", record["small"]["verdict"]]
    ]


def test_list_filters_by_subject_paper_and_word(icl):
    def names(*words):
        return {row["claim"] for row in strictly(icl("list", *words, "--json")[1])["claims"]}

    assert names() == set(registry.claims())
    assert names("--subject", "descent") == {name for name in registry.claims() if name.startswith("descent/")}
    assert (
        names("--paper", "Ahn23")
        == {name for name in registry.claims() if "Ahn23" in registry.load(name).sources}
        != set()
    )
    assert names("STEP", "--subject", "descent") == {"descent/best_step"}


def test_long_list_has_all_that_one_asks_before_a_run(ran, icl):
    out = icl("list", "steady", "--long", "--claims", CLAIMS, "--out", ran)[1]
    for said in (CLAIM, "small: 5 of 5 cells, holds; 5 of 5 findings hold in", "negative controls  wrong", "Lu24"):
        assert said in out


@pytest.mark.parametrize("verdicts", [("fails", "holds"), ("holds", "undecided")])
def test_the_verdict_of_a_record_is_that_of_its_largest_size(verdicts, ran, icl, monkeypatch):
    entries = dict(zip(("small", "medium"), verdicts, strict=True))
    entries = {size: {"verdict": verdict, "stale": False, "findings": []} for size, verdict in entries.items()}
    card = records.card
    monkeypatch.setattr(records, "card", lambda *args: dataclasses.replace(card(*args), record=entries))
    assert icl("list", "steady", "--claims", CLAIMS)[1].splitlines()[1].split()[1] == verdicts[1]
    assert f"{verdicts[1]} (medium)" in icl("list", "steady", "--long", "--claims", CLAIMS)[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--subject", "asymptotic"], "unknown subject 'asymptotic'; did you mean 'asymptotics'?"),
        (["--paper", "Lu2"], "unknown paper 'Lu2'; did you mean 'Lu24'?"),
        (["zebra"], "icl list: expected a word of a claim, got 'zebra'; none of"),
    ],
    ids=["subject", "paper", "word"],
)
def test_a_filter_that_fits_nothing_is_refused(words, said, icl):
    status, out, err = icl("list", *words)
    assert (status, out) == (2, "")
    assert said in err
