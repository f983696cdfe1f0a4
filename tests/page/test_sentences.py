"""Findings read as sentences: what was measured at which values, and what was predicted."""

# ruff: noqa: RUF001 (Greek letters and quotation marks are meant)

import html
import json
import re
from pathlib import Path

import pytest

import icllab
from icllab.core.axes import Axis, Quantity
from icllab.lab import registry
from icllab.page import sentences

ROW = {
    "predicted": 5.0,
    "measured": 12.34,
    "standard_error": 0.4,
    "tolerance": 1.2,
    "outcome": "holds",
    "about": "claim",
}
REACH = {"reach": Axis("reach", r"n\beta/\gamma", "reach of the posterior")}
RECORDS = {
    claim: json.loads((path.parent / "record.json").read_text("utf-8")) for claim, path in registry.claims().items()
}
ROWS = [
    row
    for record in RECORDS.values()
    for entry in record.values()
    for row in (entry.get("findings", ()) if isinstance(entry, dict) else ())
]


def read(row, **symbols):
    """The sentence as a reader sees it."""
    markup = sentences.sentence(row, sentences.AXES | symbols)
    return html.unescape(re.sub("<[^>]*>", "", markup))


def finding(what, id, **other):
    return ROW | {"what": what, "id": id} | other


def test_a_finding_is_a_sentence_with_its_coordinates_and_its_prediction():
    what = "largest susceptibility / at the ends > 5, reach=4, nbeta=50"
    row = finding(what, "peak[reach=4,nbeta=50]")
    said = "largest susceptibility / at the ends, at reach 4 and nβ = 50: 12.34 ± 0.40, predicted above 5"
    assert read(row, **REACH) == f"{said} (errors allow 1.2)"
    markup = sentences.sentence(row, sentences.AXES | REACH)
    assert '<abbr title="reach of the posterior">reach</abbr>' in markup
    assert r'data-tex="n\beta = 50"' in markup


@pytest.mark.parametrize(
    ("comparison", "other", "end"),
    [
        ("= 5", {}, "predicted 5 (errors allow 1.2)"),
        ("= 5", {"tolerance": 0.0}, "predicted exactly 5"),
        ("< 5", {"tolerance": 0.0}, "predicted below 5"),
        ("within 0.3 of 5", {"tolerance": 0.3}, "predicted within 0.3 of 5"),
        ("> inf", {}, "predicted above inf (errors allow 1.2)"),
        ("is what it is", {}, "predicted 5 (errors allow 1.2)"),
    ],
)
def test_each_comparison_has_its_words(comparison, other, end):
    assert read(finding(f"a > b of c {comparison}", "a", **other)).endswith(f": 12.34 ± 0.40, {end}")


def test_an_undecided_finding_says_what_would_decide_it():
    row = finding("rise > 5", "rise", outcome="undecided", advice="more seeds would tell")
    assert read(row).endswith("(errors allow 1.2). Undecided: more seeds would tell")


@pytest.mark.parametrize("about", ["data", "extent"])  # as version 0.2 called some conditions
@pytest.mark.parametrize(("measured", "word"), [(1.0, "met"), (0.0, "not met")])
def test_a_condition_is_met_or_not(about, measured, word):
    row = finding("more than > 5, dim=2", "many[dim=2]", about=about, measured=measured, standard_error=0.0)
    assert read(row) == f"Condition: more than > 5, at dim 2: {word}"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("layers 2,2,2 r=0", "model ‘layers 2,2,2 r=0’"),
        ("L = N, readout held", "model ‘L = N, readout held’"),
        ("-0.5", "model -0.5"),
        ("16,alpha/tau=2", "model 16 and alpha/tau 2"),
        ("4+", "model ‘4+’"),
    ],
)
def test_coordinates_may_have_commas_and_signs(value, said):
    assert read(finding(f"slope > 5, model={value.replace(',alpha', ', alpha')}", f"slope[model={value}]")).startswith(
        f"slope, at {said}: "
    )


def test_a_unit_follows_its_number_and_a_power_of_ten_is_spelled():
    row = finding("loss > 5, length=6, step=3000, nbeta=3e+05", "loss[length=6,step=3000,nbeta=3e+05]")
    assert read(row).startswith("loss, at length 6 examples, step 3000 updates and nβ = 3× 105: ")
    assert r'data-tex="n\beta = 3\times 10^{5}"' in sentences.sentence(row)
    assert r'data-tex="\tau = 10^{-8}"' in sentences.sentence(finding("a > 5, tau=1e-08", "a[tau=1e-08]"))


def test_words_that_are_not_those_of_the_identifier_are_kept_and_its_other_coordinates_added():
    assert read(finding("p of the test", "log_rank[dim=31]")).startswith("p of the test, at dim 31: ")
    assert read(finding("the jump comes later, no attention", "later[intervention=no attention]")).startswith(
        "the jump comes later, no attention: "
    )


def test_what_a_finding_says_is_text():
    said = "<script>alert(1)</script>"
    row = finding(f"{said} > 5, {said}", said, advice=said)
    symbols = [Quantity(said, said, said, said)]
    markup = sentences.sentence(row, {}) + sentences.glossary(symbols, said)
    assert "<script>" not in markup
    assert str(Path(icllab.__file__).parent) not in markup
