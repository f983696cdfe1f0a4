"""The gallery has a card for each claim, and shows what the claim and its record say and nothing else."""

import importlib.util
import re
from pathlib import Path

import pytest

from icllab.experiments import cards, records, registry
from icllab.experiments.cards import Card
from icllab.experiments.experiment import SIZES

DOCS = Path(__file__).parents[2] / "docs"
_spec = importlib.util.spec_from_file_location("make_gallery", DOCS / "make_gallery.py")
make_gallery = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_gallery)

FINDING = {"id": "a", "what": "x < 1 | y", "predicted": 1.0, "measured": "inf", "standard_error": 0.5, "tolerance": 0.0}


def card(record=None, **other):
    said = {"sentence": "Things fall.", "conditions": "", "sources": (), "sizes": ("smoke", "small"), "controls": {}}
    return Card(claim="descent/toy", **said | other, record=record or {})


def entry(verdict, *, stale=False, controls=None):
    finding = FINDING | {"outcome": verdict}
    origin = {"commit": "0123456789abcdef", "created": "2026-01-02T03:04:05+00:00", "machine": "cpu: a", "seconds": 7.4}
    return {"verdict": verdict, "stale": stale, "findings": [finding], "controls": controls or {}, **origin}


def page(*found, figures=DOCS / "nowhere"):
    return make_gallery.page(found, figures)


@pytest.fixture(scope="module")
def sections():
    """Claim -> its section of the page that is written."""
    text = make_gallery.page([cards.card(claim) for claim in registry.claims()], DOCS / "figures")
    found = re.split(r"^### `(.*)`$", text, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def test_every_claim_has_a_card_with_a_name_of_its_own(sections):
    assert list(sections) == list(registry.claims())
    assert len({make_gallery.slug(claim) for claim in sections}) == len(sections)


@pytest.mark.parametrize("claim", registry.claims())
def test_a_card_shows_what_claim_and_record_say(sections, claim):
    text, experiment, record = sections[claim], registry.load(claim), records.read(claim)
    assert f"**{make_gallery.escaped(experiment.claim)}**" in text
    assert make_gallery.escaped(experiment.conditions) in text
    for name, control in experiment.controls.items():
        assert f"- `{name}`: {make_gallery.escaped(control.meaning)}." in text
    assert f"$ icl run {claim} --size small" in text
    assert text.count("{image}") == (DOCS / "figures" / f"{claim.split('/')[1]}.png").is_file()
    (shown,) = re.findall(r"\{container\} claim\n<span class=\"verdict (\w+)\">", text)
    assert shown == (["none"] + [record[size]["verdict"] for size in SIZES if size in record])[-1]
    assert text.count("<details>") == len(record)
    for size, found in record.items():
        assert f"<summary>{len(found['findings'])} finding" in text
        assert f"*Record at size {size}:* commit `{found['commit'][:12]}`" in text


@pytest.mark.parametrize("verdict", ["holds", "fails", "undecided"])
def test_the_badge_is_the_verdict_at_the_largest_size(verdict):
    text = page(card({"smoke": entry("undecided"), "small": entry(verdict)}))
    assert f'claim\n<span class="verdict {verdict}">{verdict}</span> at size small\n' in text
    assert "stale</span>" not in text


def test_a_stale_record_is_marked_and_none_is_said_to_be_none():
    text = page(card({"small": entry("holds", stale=True)}))
    assert '<span class="verdict holds">holds</span> <span class="verdict stale">stale</span> at size small' in text
    assert 'claim\n<span class="verdict none">not recorded</span>\n' in page(card())


def test_a_control_has_its_verdict_from_the_record():
    known = {"small": entry("holds", controls={"a": {"verdict": "fails"}, "b": {"verdict": "holds"}})}
    text = page(card(known, controls={"a": "first", "b": "second", "c": "third"}))
    assert '- `a`: first. <span class="verdict refuted">fails</span> at size small' in text
    assert '- `b`: second. <span class="verdict holds">holds</span> at size small' in text
    assert '- `c`: third. <span class="verdict none">not recorded</span>' in text


def test_numbers_have_their_errors_also_where_they_are_none():
    text = page(card({"small": entry("fails")}))
    assert '| x \\< 1 \\| y | 1 | inf ± 0.5 | exact | <span class="verdict fails">fails</span> |' in text


def test_all_that_a_claim_says_is_escaped():
    said = "a_b* <i>c</i> [d](e) `f` $g$ {h} #i\n| j ~k~ &amp; ^l @m \\n"
    text = page(card(sentence=said, conditions=said, controls={"c": said}))
    assert text.count(make_gallery.escaped(said)) == 3


def test_escaped_text_reads_the_same_when_it_is_rendered():
    markdown_it = pytest.importorskip("markdown_it")
    said = "a_b_ *c* <i>d</i> [e](f) `g` ![h](i) & &amp; \\ | ~~j~~ http://k"
    rendered = markdown_it.MarkdownIt("commonmark").renderInline(make_gallery.escaped(said))
    plain = rendered.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    assert plain == said
