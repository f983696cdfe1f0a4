"""The gallery has a card for each claim, and shows what the claim and its record say and nothing else."""

import html
import importlib.util
import json
import re
from pathlib import Path

import pytest

from icllab.lab import records, registry
from icllab.lab.claim import SIZES
from icllab.lab.records import Card
from icllab.page import cards as page_cards

DOCS = Path(__file__).parents[3] / "docs"
_spec = importlib.util.spec_from_file_location("make_gallery", DOCS / "make_gallery.py")
make_gallery = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_gallery)


def card(record=None, **other):
    said = {"sentence": "Things fall.", "conditions": "", "sources": (), "sizes": ("smoke", "small"), "controls": {}}
    return Card(claim="descent/toy", **said | other, record=record or {})


def page(*found, figures=DOCS / "nowhere"):
    return make_gallery.page(found, figures)


@pytest.fixture(scope="module")
def sections():
    """Claim -> its section of the page that is written."""
    text = make_gallery.page([records.card(claim) for claim in registry.claims()], DOCS / "figures")
    found = re.split(r"^### `(.*)`$", text, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def test_every_claim_has_a_card_with_a_name_of_its_own(sections):
    assert list(sections) == list(registry.claims())
    assert len({make_gallery.slug(claim) for claim in sections}) == len(sections)


@pytest.mark.parametrize("claim", registry.claims())
def test_a_card_shows_what_claim_and_record_say(sections, claim):
    text, experiment, record = sections[claim], registry.load(claim), records.card(claim).record
    assert f'<p class="sentence">{html.escape(experiment.sentence)}</p>' in text
    assert html.escape(experiment.conditions) in text
    for name, control in experiment.controls.items():
        assert f"<li><code>{name}</code>: {html.escape(control.meaning)}. " in text
    size = "small" if "small" in experiment.sizes else "medium"
    assert f"<code>icl run {claim} --size {size}</code>" in text
    assert text.count("<img ") == (DOCS / "figures" / f"{claim.split('/')[1]}.png").is_file()
    shown = re.search(r"<p class=\"status\"><span class=\"verdict (\w+)\">", text)
    verdicts = [record[size]["verdict"] for size in SIZES if size in record]
    assert shown[1] == (["none"] + [verdict for verdict in verdicts if verdict])[-1]
    assert text.count("<details") == len(record)
    for size, found in record.items():
        held = sum(row["outcome"] == "holds" for row in found["findings"] if row["about"] == "claim")
        count = sum(row["about"] == "claim" for row in found["findings"])
        place = "recorded" if found["verdict"] else "stated without data"
        assert f"at size {size}, {place}: {held} of {count} findings hold" in text
        several = found["commit"].startswith("[")
        commits = json.loads(found["commit"]) if several else [found["commit"]]
        told = f"commit{'s' * several} {', '.join(one[:12] for one in commits)}"
        assert f"{told}, {found['created'][:10]}" in text


def test_the_cards_are_those_of_the_page():
    """The documentation and the page make them by one function, from the same record."""
    claim = "asymptotics/double_descent"
    card = records.card(claim)
    made = page_cards.card_html(
        card, page_cards.from_record(card), None, command=make_gallery.command(card), expand=False
    )
    (inside,) = re.findall(r"\{raw\} html\n(.*)\n```", page(card))
    assert re.sub(r'<a href="papers.html#[^"]*"( title="[^"]*")>([^<]*)</a>', r"<span\1>\2</span>", inside) == made


def test_sources_lead_to_the_list_of_papers(sections):
    assert 'href="papers.html#lu-et-al-2025-lu24"' in sections["asymptotics/double_descent"]


def test_a_card_that_has_backticks_is_kept_whole():
    text = page(card(sentence="Things ```` fall."))
    assert re.search(r"(?m)^`{7}\{raw\} html$", text)


def test_escaped_text_reads_the_same_when_it_is_rendered():
    markdown_it = pytest.importorskip("markdown_it")
    said = "a_b_ *c* <i>d</i> [e](f) `g` ![h](i) & &amp; \\ | ~~j~~ http://k"
    rendered = markdown_it.MarkdownIt("commonmark").renderInline(make_gallery.escaped(said))
    plain = rendered.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    assert plain == said


def test_the_head_counts_verdicts_by_the_largest_size():
    small, medium = ({"verdict": verdict, "stale": False} for verdict in ("undecided", "holds"))
    found = [card({"small": small}), card({"small": small, "medium": medium}), card({"medium": medium})]
    assert make_gallery.standing(found).splitlines()[2:] == ["| small | 0 | 0 | 1 |", "| medium | 2 | 0 | 0 |"]


def test_a_claim_without_medium_has_a_price_and_no_other(sections):
    for claim, text in sections.items():
        priced = re.search(r"at `medium`, which would take ([\d.]+) core-hours, within a factor of 5", text)
        assert (priced is None) == bool(
            {"medium", "full"} & {size for size, entry in records.card(claim).record.items() if entry["verdict"]}
        )
        if priced:
            assert float(priced[1]) > 0
