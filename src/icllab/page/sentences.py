"""Findings as sentences: the measurement with its error, the values of its axes, and the prediction."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from icllab.core.axes import AXES, Quantity
from icllab.core.spelling import number, with_error
from icllab.figures.markup import Html, formula, joined, table, tag

ABBREVIATIONS = {
    "CLA": "context-label accuracy: fraction of answers that are labels of the context",
    "CV": "cross-validation",
    "dMMSE": "discrete minimum mean squared error: the posterior mean over the tasks of the training pool",
    "GD": "gradient descent",
    "GD++": "gradient descent that also transforms the inputs at every step",
    "HMC": "Hamiltonian Monte Carlo",
    "ICL": "in-context learning; its error is that on fresh tasks",
    "IDG": "in-distribution generalisation; its error is that on the pretraining tasks",
    "ILA": "attention from a label to its item, in layer 1",
    "MLP": "multilayer perceptron",
    "ReLU": "rectified linear unit, max(x, 0)",
    "SE": "standard error",
    "SGD": "stochastic gradient descent",
    "SGLD": "stochastic gradient Langevin dynamics",
    "TILA": "attention from the query to the right label, in layer 2",
    "TLA": "attention from the query to all labels, in layer 2",
}
_ABBREVIATION = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, ABBREVIATIONS))})(?=(?:\d+|s)?(?![\w+]))")
_COORDINATE = re.compile(r"(?:^|,)([^\s,=]+)=")
_COMPARISON = re.compile(r"(?P<phrase>.*) (?P<relation>=|>|<|within \S+ of) (?P<number>\S+)", re.DOTALL)
_PREDICTIONS = {"=": "predicted", ">": "predicted above", "<": "predicted below"}


def sentence(row: Mapping[str, Any], symbols: Mapping[str, Quantity] = AXES) -> Html:
    """A finding of ``record.json`` or ``verdict.json`` as a sentence, whatever its fields are.

    Args:
        row: The finding.
        symbols: Name -> symbol, meaning and unit of the coordinates.
    """
    phrase, coordinates = _parts(str(row.get("what", "")), str(row.get("id", "")))
    prediction, measurement, error, tolerance = (
        _float(row.get(name)) for name in ("predicted", "measured", "standard_error", "tolerance")
    )
    place: list[str] = []
    for i, (name, value) in enumerate(coordinates.items()):
        place += [", at " if i == 0 else " and " if i == len(coordinates) - 1 else ", "]
        place.append(_coordinate(name, value, symbols.get(name)))
    if not is_finding(row):
        return joined("Condition: ", abbreviated(phrase), *place, ": ", tag("b", "met" if measurement else "not met"))
    comparison, kind = _COMPARISON.fullmatch(phrase), "predicted"
    if comparison:
        phrase, target = comparison["phrase"], comparison["number"]
        kind = _PREDICTIONS.get(comparison["relation"]) or f"predicted {comparison['relation']}"
    else:
        target = number(prediction)
    allowance = ""
    if kind == "predicted" and tolerance == 0:
        kind = "predicted exactly"
    elif tolerance > 0 and "within" not in kind:
        allowance = f" (errors allow {tolerance:.2g})"
    measured = tag("b", with_error(measurement, error))
    parts = [abbreviated(phrase), *place, ": ", measured, f", {kind} {target}", tag("span", allowance, class_="note")]
    advice = str(row.get("advice") or "")
    return joined(*parts, *([tag("span", f". Undecided: {advice}", class_="note")] if advice else []))


def is_finding(row: Mapping[str, Any]) -> bool:
    """True if a row is about the claim; other rows are conditions, which version 0.2 called data or extent."""
    return row.get("about", "claim") == "claim"


def _parts(what: str, id: str) -> tuple[str, dict[str, str]]:
    """The words of a finding without its coordinates, and those by name, as its identifier has them."""
    fields = _COORDINATE.split(id.partition("[")[2].removesuffix("]"))
    coordinates = dict(zip(fields[1::2], fields[2::2], strict=True))
    tail = "".join(f", {name}={value}" for name, value in coordinates.items())
    if what.endswith(tail):
        return what.removesuffix(tail), coordinates
    return what, {name: value for name, value in coordinates.items() if value not in what}


def _coordinate(name: str, value: str, row: Quantity | None) -> Html:
    words = name.replace("_", " ")
    label = tag("abbr", words, title=row.meaning) if row else words
    if not re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", value):
        return joined(label, f" \u2018{value}\u2019")
    if row and re.sub(r"\W", "", row.symbol) == name:  # the name spells the symbol
        power = re.sub(
            r"^(?:1|(\S+))e\+?(-?)0*(\d+)$",
            lambda m: (m[1] + r"\times " if m[1] else "") + f"10^{{{m[2]}{m[3]}}}",
            value,
        )
        return formula(f"{row.symbol} = {power}")
    return joined(label, f" {value}", f" {row.unit}" if row and row.unit else "")


def abbreviated(text: str) -> Html:
    """The text with its abbreviations explained."""
    parts = _ABBREVIATION.split(text)
    return joined(*(tag("abbr", part, title=ABBREVIATIONS[part]) if i % 2 else part for i, part in enumerate(parts)))


def glossary(symbols: Iterable[Quantity], text: str) -> Html:
    """A table of symbols with their units, and of the abbreviations of a text."""
    rows: list[list[str]] = [
        [formula(row.symbol), row.name.replace("_", " "), row.meaning, row.unit or "none"] for row in symbols
    ]
    rows += [["", name, ABBREVIATIONS[name], ""] for name in dict.fromkeys(_ABBREVIATION.findall(text))]
    content = tag("div", table({"symbol": "", "name": "", "meaning": "", "unit": ""}, rows), class_="scroll")
    return tag("details", tag("summary", "Symbols, units and abbreviations"), content, class_="glossary")


def _float(value: Any) -> float:
    """A number of a file; NaN for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
