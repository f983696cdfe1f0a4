"""The index by paper names every source of claims and tables, nothing that is not there, and the records' verdicts."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from icllab.arena import Score
from icllab.arena import registry as tables
from icllab.core.errors import InputError
from icllab.core.sources import reference
from icllab.lab import records, registry
from icllab.lab.records import Card

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def make_papers():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)  # where it finds make_gallery
        spec = importlib.util.spec_from_file_location("make_papers", DOCS / "make_papers.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
        sys.modules.pop("make_gallery", None)


@pytest.fixture(scope="module")
def known():
    return {claim: records.card(claim) for claim in registry.claims()}


@pytest.fixture(scope="module")
def sources(make_papers):
    return make_papers.table_sources()


@pytest.fixture(scope="module")
def papers(make_papers, known, sources):
    return make_papers.read(DOCS / "papers.toml", known, make_papers.theory_names(), sources)


@pytest.fixture(scope="module")
def scores(make_papers):
    """A score of every theory, as if none beat a null."""
    return {name: score(name) for name in make_papers.theory_names()}


def toy(record=None):
    """A claim that cites one source."""
    card = Card("descent/toy", "Things fall.", "", (reference("Ahn23"),), ("small",), {}, record or {})
    return {card.claim: card}


def score(name, beats=(), **fields):
    """A score that is compared with three null theories."""
    return Score(name, "", False, differences=dict.fromkeys("abc", (0.0, 1.0)), beats=tuple(beats), **fields)


def test_every_source_of_every_claim_and_table_has_a_row_that_names_it(make_papers, papers, known, sources):
    assert make_papers.missing(papers, list(known.values()), sources) == []


def test_every_theory_stands_in_a_row(make_papers, papers):
    """But for those that are ours: they cite no paper."""
    named = {name for paper in papers.values() for row in paper["row"] for name in row.get("theories", ())}
    ours = {f"task_threshold/{name}" for name in ("boundary", "free_energy", "pool_evidence")}
    assert set(make_papers.theory_names()) - named == ours


def test_a_source_without_such_a_row_is_found(make_papers):
    row = {"says": "Things fall."}
    assert make_papers.missing({"Ahn23": {"row": [row]}}, list(toy().values())) == [("Ahn23", "descent/toy")]
    assert make_papers.missing({"Ahn23": {"row": [row | {"claims": ["descent/toy"]}]}}, list(toy().values())) == []
    fall = {"falls": [reference("Ahn23")]}
    assert make_papers.missing({"Ahn23": {"row": [row]}}, [], fall) == [("Ahn23", "falls")]
    assert make_papers.missing({"Ahn23": {"row": [row | {"theories": ["falls/fast"]}]}}, [], fall) == []


def test_every_row_says_something_else(papers):
    for key, paper in papers.items():
        said = [row["says"] for row in paper["row"]]
        assert len(set(said)) == len(said), key
        tested = [row for row in paper["row"] if row.get("claims") or row.get("theories")]
        assert all(row.get("differs") for row in tested), key


def test_every_verdict_is_that_of_the_record(make_papers, papers, known, scores, sources):
    page = make_papers.page(papers, known, scores, sources)
    for claim in registry.claims():
        verdict, stale = known[claim].verdict or "none", known[claim].stale
        shown = page.split(f"[`{claim}`](gallery.md#")[1:]
        assert shown
        for text in shown:
            line = text.partition("\n")[0]
            assert f'<span class="verdict {verdict}">' in line
            assert ("stale</span>" in line) == stale
            assert f"`icl run {claim} --size {known[claim].ordinary}`" in text.partition("\n  - ")[0]


def test_a_stale_record_is_marked(make_papers, known):
    row = {"says": "Things fall.", "claims": ["descent/toy"]}
    entry = known["asymptotics/double_descent"].record["small"] | {"verdict": "fails", "stale": True}
    page = make_papers.page({"Ahn23": {"row": [row]}}, toy({"small": entry}))
    badges = '<span class="verdict fails">fails</span> <span class="verdict stale">stale</span>'
    assert re.search(rf'{badges} <span class="where"[^>]*>small, recorded', page)


def test_a_paper_that_no_claim_cites_says_what_of_it_is_here(make_papers, papers, known, sources):
    cited = {source.key for card in known.values() for source in card.sources}
    cited |= {source.key for table in sources.values() for source in table}
    left = papers.keys() - cited
    assert {"Gibson26", "Varre25", "HitchcockHoogland25"} <= left
    assert all("note" in papers[key] for key in left)
    page = make_papers.page({"Gibson26": {"note": "Here: nothing.", "row": [{"says": "Things fall."}]}}, toy())
    assert "Gibson et al. (2026), Gibson26" in page
    assert "arXiv:2604.12151" in page
    assert "Here: nothing." in page


def test_what_nobody_tests_is_said_to_be_so(make_papers):
    page = make_papers.page({"Ahn23": {"row": [{"says": "Things rise."}]}}, toy())
    assert "* - Things rise.\n  - not tested yet\n" in page
    assert "1 sources, and 1 of their statements: 0 are tested" in page


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({}, "beats no null theory"),
        ({"beats": "ab"}, "beats 2 of 3 null theories"),
        ({"beats": "abc", "late": True}, "beats every null theory, registered late"),
        ({"refused": "not registered"}, "not registered"),
    ],
)
def test_a_theory_is_shown_with_its_score_and_its_command(make_papers, fields, verdict):
    name = "depth_error/best_steps"
    row = {"says": "Things fall.", "theories": [name], "differs": "Not here."}
    sources = {"depth_error": [reference("Ahn23")]}
    page = make_papers.page({"Ahn23": {"row": [row]}}, {}, {name: score("best_steps", **fields)}, sources)
    link = "[`best_steps`](arena.md#how-large-is-the-error-of-l-layers)"
    assert f"  - {link} {verdict}\n    \n    `icl arena depth_error`\n" in page
    assert "1 sources, and 1 of their statements: 1 are tested" in page


def test_every_table_has_the_section_that_is_linked():
    headings = [line for line in (DOCS / "arena.md").read_text("utf-8").splitlines() if line.startswith("## ")]
    assert {f"## {tables.title(table)}" for table in tables.tables()} <= set(headings)


def test_text_is_escaped(make_papers):
    said = "a_b* <i>c</i> | $d$"
    row = {"where": said, "says": said, "differs": said}
    page = make_papers.page({"Ahn23": {"note": said, "row": [row]}}, toy())
    assert page.count(r"a\_b\* \<i\>c\</i\> \| \$d\$") == 4
    assert said not in page


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[Ahn24]\n[[Ahn24.row]]\nsays = "a"', "unknown source in papers.toml 'Ahn24'; did you mean 'Ahn23'?"),
        (
            '[Ahn23]\n[[Ahn23.row]]\nsays = "a"\nclaims = ["descent/tot"]',
            "unknown claim of Ahn23 in papers.toml 'descent/tot'; did you mean 'descent/toy'?",
        ),
        (
            '[Ahn23]\n[[Ahn23.row]]\nsays = "a"\nclaim = "descent/toy"',
            "unknown field of Ahn23 in papers.toml 'claim'; did you mean 'claims'?",
        ),
        ('[Ahn23]\n[[Ahn23.row]]\nwhere = "a"', "papers.toml, Ahn23: expected a row with what the paper says"),
        (
            '[Ahn23]\n[[Ahn23.row]]\nsays = "a"\ntheories = ["falls/fats"]',
            "unknown theory of Ahn23 in papers.toml 'falls/fats'; did you mean 'falls/fast'?",
        ),
    ],
    ids=["source", "claim", "field", "nothing said", "theory"],
)
def test_a_row_that_names_what_is_not_there_is_refused(make_papers, tmp_path, text, message):
    path = tmp_path / "papers.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        make_papers.read(path, toy(), ["falls/fast"])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
