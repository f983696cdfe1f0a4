"""A card shows what a claim and its runs say, and nothing of it is markup."""

import re

import pytest

from icllab.core.axes import Axis
from icllab.figures.markup import Html, joined, table, tag
from icllab.lab.records import Card
from icllab.page import cards
from icllab.page.cards import Evidence

FINDING = {"id": "a", "what": "x < 1 | y", "predicted": 1.0, "measured": "inf", "standard_error": 0.5, "tolerance": 0.0}


def card(record=None, **other):
    said = {
        "sentence": "Things fall.",
        "conditions": "",
        "sources": (),
        "sizes": ("smoke", "small"),
        "controls": {},
    }
    return Card(claim="descent/toy", **said | other, record=record or {})


def entry(verdict, *, stale=False, controls=None):
    finding = FINDING | {"outcome": verdict}
    origin = {"commit": "0123456789abcdef", "created": "2026-01-02T03:04:05+00:00", "machine": "cpu: a", "seconds": 7.4}
    return {"verdict": verdict, "stale": stale, "findings": [finding], "controls": controls or {}, **origin}


def shown(one, *more, picture=None):
    return cards.card_html(one, [*cards.from_record(one), *more], picture)


@pytest.mark.parametrize("verdict", ["holds", "fails", "undecided"])
def test_the_badge_is_the_verdict_at_the_largest_size(verdict):
    text = shown(card({"smoke": entry("undecided"), "small": entry(verdict)}))
    meaning = "The verdict on a run whose data the book keeps. A run of size small takes minutes."
    badge = (
        f'<span class="verdict {verdict}">{verdict}</span> <span class="where" title="{meaning}">small, recorded</span>'
    )
    assert f'<p class="status">{badge}</p><p class="where">{meaning}</p>' in text
    assert "stale</span>" not in text


def test_results_here_come_before_the_record_and_controls_never():
    record = card({"medium": entry("holds")})
    assert "medium, recorded" in shown(record)
    here = Evidence(size="smoke", verdict="fails", local=True)
    assert re.search(
        r'fails</span> <span class="where" title="[^"]* on this machine[^"]*">smoke, run here', shown(record, here)
    )
    assert "medium, recorded" in shown(record, Evidence(size="full", verdict="fails", local=True, control="wrong"))
    assert "medium, recorded" in shown(record, Evidence(size="full", local=True))  # not judged


def test_a_stale_record_is_marked_and_none_is_said_to_be_none():
    text = shown(card({"small": entry("holds", stale=True)}))
    assert '<span class="verdict holds">holds</span> <span class="verdict stale">stale</span>' in text
    assert '<span class="verdict none">not yet run</span>' in shown(card())


def test_a_control_has_its_verdict_from_the_record_and_from_here():
    known = {"small": entry("holds", controls={"a": {"verdict": "fails"}, "b": {"verdict": "holds"}})}
    one = card(known, controls={"a": "first", "b": "second", "c": "third", "d": "fourth"})
    text = shown(one, Evidence(size="smoke", verdict="fails", local=True, control="d"))
    assert '<code>a</code>: first. <span class="verdict refuted">fails</span> small' in text
    assert '<code>b</code>: second. <span class="verdict holds">holds</span> small' in text
    assert '<code>c</code>: third. <span class="verdict none">not yet run</span>' in text
    assert '<code>d</code>: fourth. <span class="verdict refuted">fails</span> smoke, run here' in text


def test_numbers_have_their_errors_also_where_they_are_none():
    cells = re.findall(r"<td[^>]*>(.*?)</td>", shown(card({"small": entry("fails")})))
    assert cells == [
        '<span class="verdict fails">fails</span>',
        'x &lt; 1 | y: <b>inf ± 0.5</b>, predicted exactly 1<span class="note"></span>',
    ]


@pytest.mark.parametrize("value", [None, "x", [1], {}, 10**400, True])
def test_numbers_of_a_file_from_elsewhere_need_not_be_numbers(value):
    names = ("what", "id", "measured", "standard_error", "predicted", "tolerance", "outcome", "about", "advice")
    for name in names:
        assert "<td>" in cards.findings([FINDING | {"outcome": "holds", name: value}])


def test_the_symbols_of_a_claim_are_explained():
    one = card({"small": entry("holds")}, conditions="ICL at reach 4.")
    one.record["small"]["findings"][0] |= {"what": "rise > 1, reach=4", "id": "rise[reach=4]"}
    symbols = [Axis("reach", r"n\beta/\gamma", "reach of the posterior", "steps")]
    text = cards.card_html(one, cards.from_record(one), None, symbols=symbols)
    assert 'rise, at <abbr title="reach of the posterior">reach</abbr> 4 steps: ' in text
    assert "<td>reach</td><td>reach of the posterior</td><td>steps</td>" in text
    assert "<td>ICL</td><td>in-context learning" in text
    assert "rise, at reach 4: " in shown(one)  # a claim's own axis, without its symbols
    assert 'class="glossary"' not in shown(one)


def test_findings_of_the_run_that_the_badge_is_of_are_open():
    text = shown(card({"smoke": entry("holds"), "small": entry("fails")}))
    assert re.findall(r"<details( open)?><summary><span class=\"verdict (\w+)", text) == [
        ("", "holds"),
        (" open", "fails"),
    ]


def test_all_that_a_claim_says_is_text():
    said = "<b>\"x\" & 'y'</b> <script>"
    picture = cards.Picture("/a.png", said, said)
    one = card(sentence=said, conditions=said, controls={said: said})
    text = shown(one, Evidence(size="small", local=True, notes=[said], links=[(said, "/b")], fault=""), picture=picture)
    text += shown(one, Evidence(size="small", local=True, fault=said)) + cards.tile(one, [], picture, "/c")
    assert "<script>" not in text
    assert "<b>" not in text
    assert text.count("&lt;script&gt;") >= 12
    assert f'alt="{tag("p", said)[3:-4]}"' in text  # quotes do not end it


def test_markup_is_text_unless_it_was_made_here():
    assert tag("p", "<b>", tag("b", "&"), data_id=1, class_="a", hidden=True, open=False) == (
        '<p data-id="1" class="a" hidden>&lt;b&gt;<b>&amp;</b></p>'
    )
    assert isinstance(joined("<", tag("br")), Html)
    assert joined("<", tag("br")) == "&lt;<br>"
    assert not isinstance(tag("p") + "<b>", Html)  # what is put together by hand is text again
    assert '<th scope="col">&lt;a&gt;</th>' in table({"<a>": ""}, [["<b>"]])


def test_every_figure_of_the_library_belongs_to_a_claim_and_has_words():
    path = cards.recorded_figure("asymptotics/double_descent")
    assert path is not None
    assert path.read_bytes().startswith(b"\x89PNG")
    assert cards.recorded_figure("asymptotics/none") is None
    assert "Things fall." in cards.alternative_text(card())


def test_a_title_is_that_of_the_claim_or_its_name_in_words():
    assert "<h3><a" in cards.tile(card(title="All falls"), [], None, "/c")
    assert cards.title(card(title="All falls")) == "All falls"
    assert cards.title(Card("a/long_tail", "", "", (), (), {}, {})) == "Long tail"


def test_a_figure_of_the_book_has_a_caption_and_a_small_one_for_lists():
    claim = "asymptotics/double_descent"
    small = cards.recorded_figure(claim, small=True)
    assert small is not None
    assert small.parent.name == "cards"
    assert cards.recorded_caption(claim).startswith("Error on fresh tasks $")
    assert cards.recorded_caption("asymptotics/none") == ""
    picture = cards.Picture("/wide", "words", "At $a_1$.", "/small")
    assert '<img src="/small" alt="words"' in cards.tile(card(), [], picture, "/c")
    text = shown(card(), picture=picture)
    assert '<img src="/wide" alt="words"' in text
    assert '<figcaption>At <span class="math" data-tex="a_1">a<sub>1</sub></span>.</figcaption>' in text


def test_cells_of_several_commits_are_told_with_all_of_them():
    commits, machines = '["0123456789abcdef", "fedcba9876543210"]', '["cpu: a", "cpu: b"]'
    told = cards.origin(commits, "2026-01-02T03:04:05+00:00", machines, 7.4)
    assert told == ["commits 0123456789ab, fedcba987654", "2026-01-02", "cpu: a, cpu: b", "7 s"]
    assert cards.origin("", "", "cpu: a", 7.4) == ["cpu: a", "7 s"]
