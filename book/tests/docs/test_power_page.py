"""The page *Power* shows the recorded fractions of verdicts, and counts those that are false at an end."""

import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("make_power", Path(__file__).parents[3] / "docs" / "make_power.py")
make_power = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_power)

RECORD = {
    "caption": "Is there a law?",
    "statistic": "icllab.lab.checks.above",
    "family": "A planted family.",
    "axis": r"strength $\epsilon$",
    "strengths": [0.0, 0.5, 1.0],
    "false": {"0.0": ["no"], "1.0": ["law", "perhaps"]},
    "replicates": 100,
    "verdicts": {"law": [90, 50, 3], "no": [4, 20, 96], "perhaps": [6, 30, 1]},
}


def test_false_verdicts_are_counted_at_their_own_strength():
    assert make_power.false_verdicts(RECORD) == {"0.0": (4, ["no"]), "1.0": (4, ["law", "perhaps"])}
    text = make_power.page({"a_law": RECORD})
    assert "## A law" in text
    assert "4 of 100 say *no* at 0; 4 of 100 say *law* or *perhaps* at 1." in text


def test_the_figure_has_every_verdict_with_its_binomial_error():
    (axes,) = make_power.figure(RECORD).axes
    assert axes.get_xlabel() == RECORD["axis"]
    for verdict, (points, _, (bars,)) in zip(RECORD["verdicts"], axes.containers, strict=True):
        fractions = [count / 100 for count in RECORD["verdicts"][verdict]]
        assert points.get_ydata() == pytest.approx(fractions)
        halves = [(segment[1][1] - segment[0][1]) / 2 for segment in bars.get_segments()]
        assert halves == pytest.approx([(p * (1 - p) / 100) ** 0.5 for p in fractions])
