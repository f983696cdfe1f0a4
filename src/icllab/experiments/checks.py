"""What a check returns: numbers with their errors, and a three-valued outcome.

``undecided`` is an honest answer: the data at this size cannot tell. It never means "nearly holds":
a finding whose standard error is within its bound either holds or fails.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import xarray as xr


class Outcome(StrEnum):
    """Of a finding, or of a whole claim; with the exit status of the command line."""

    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDED = "undecided"

    @property
    def exit_status(self) -> int:
        """0, 1 or 3."""
        return {"holds": 0, "fails": 1, "undecided": 3}[self.value]


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """One failure fails the whole; without one, a single undecided leaves it undecided."""
    outcomes = set(outcomes)
    for outcome in (Outcome.FAILS, Outcome.UNDECIDED):
        if outcome in outcomes:
            return outcome
    return Outcome.HOLDS if outcomes else Outcome.UNDECIDED


@dataclass(frozen=True)
class Finding:
    """One line of a check; ``tolerance`` is what ``|measured - predicted|`` may be, in the same unit.

    For an exact statement (a count, an order) the standard error is 0.
    """

    what: str
    predicted: float
    measured: float
    standard_error: float
    tolerance: float
    outcome: Outcome
    advice: str = ""


@dataclass(frozen=True)
class Verdict:
    """A claim's findings and the worst of their outcomes."""

    claim: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def outcome(self) -> Outcome:
        """``fails`` before ``undecided`` before ``holds``; without findings, ``undecided``."""
        return worst(f.outcome for f in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "claim": self.claim,
            "verdict": self.outcome.value,
            "findings": [asdict(f) | {"outcome": f.outcome.value} for f in self.findings],
            "notes": list(self.notes),
        }


def agreement(
    what: str,
    predicted: float,
    measured: float,
    standard_error: float,
    *,
    largest_error: float,
    sigmas: float = 3.0,
) -> Finding:
    """Does a measurement agree with a prediction within ``sigmas`` standard errors?

    ``largest_error`` bounds the standard error: a larger (or unknown) one leaves the finding undecided,
    unless the disagreement is plain even so.
    """
    tolerance = sigmas * standard_error
    if not (math.isfinite(measured) and math.isfinite(standard_error)):
        outcome, advice = Outcome.UNDECIDED, "no finite measurement with an error"
    elif math.isnan(predicted):
        outcome, advice = Outcome.UNDECIDED, "no prediction"
    elif abs(measured - predicted) > tolerance:
        outcome, advice = Outcome.FAILS, ""
    elif standard_error > largest_error:
        outcome, advice = Outcome.UNDECIDED, f"the standard error exceeds {largest_error:.3g}; more seeds would tell"
    else:
        outcome, advice = Outcome.HOLDS, ""
    return Finding(what, float(predicted), float(measured), float(standard_error), float(tolerance), outcome, advice)


def exactly(what: str, predicted: float, measured: float, *, otherwise: Outcome = Outcome.FAILS) -> Finding:
    """A statement without statistical error: a count, a position on a grid."""
    outcome = Outcome.HOLDS if measured == predicted else otherwise
    return Finding(what, float(predicted), float(measured), 0.0, 0.0, outcome)


def exceeds(what: str, measured: float, standard_error: float, *, bound: float = 0.0, sigmas: float = 3.0) -> Finding:
    """Is a measurement larger than ``bound``, by more than ``sigmas`` standard errors?

    It fails when it is as clearly smaller; in between, the data cannot tell.
    """
    tolerance = sigmas * standard_error
    if measured - bound > tolerance:
        outcome, advice = Outcome.HOLDS, ""
    elif bound - measured > tolerance:
        outcome, advice = Outcome.FAILS, ""
    else:
        outcome, advice = Outcome.UNDECIDED, f"within {sigmas:g} standard errors of {bound:g}; more seeds would tell"
    return Finding(what, float(bound), float(measured), float(standard_error), float(tolerance), outcome, advice)


def within(
    what: str, predicted: float, measured: float, standard_error: float, *, margin: float, sigmas: float = 3.0
) -> Finding:
    """Is a measurement nearer to ``predicted`` than ``margin``, by ``sigmas`` standard errors?

    It fails when it is as clearly farther; in between, the data cannot tell.
    """
    away, reach = abs(measured - predicted), sigmas * standard_error
    outcome, advice = Outcome.UNDECIDED, f"within {sigmas:g} standard errors of the margin; more data would tell"
    if away - reach > margin:
        outcome, advice = Outcome.FAILS, ""
    elif away + reach <= margin:
        outcome, advice = Outcome.HOLDS, ""
    return Finding(what, float(predicted), float(measured), float(standard_error), float(margin), outcome, advice)


def apart(
    dataset: xr.Dataset, name: str, one: str, other: str, *, dims: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """One phase less another, over ``dims``, and its standard error; that of what has no ``_error`` is zero."""

    def of(name: str, phase: str) -> np.ndarray:
        return dataset[name].sel(phase=phase).transpose(*dims).values

    value = of(name, one) - of(name, other)
    errors = f"{name}_error"
    if errors not in dataset:
        return value, np.zeros_like(value)
    return value, np.sqrt(of(errors, one) ** 2 + of(errors, other) ** 2)
