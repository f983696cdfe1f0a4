"""Scores on the held-out part: log density, coverage, and paired differences from the null theories."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from icllab.arena import registry
from icllab.arena.prediction import Prediction, coverage, log_scores

LEVELS = (0.5, 0.9)  # probabilities of central intervals
CONFIDENCE = 0.95  # that a difference from a null theory is positive, one-sided


@dataclass(frozen=True)
class Score:
    """Scores of a theory on the held-out cells: means over cells with their standard errors.

    Attributes:
        theory: Its name.
        title: What it says.
        null: Whether it is one of the null theories.
        refused: Why it has no score; empty if it has one.
        late: Whether held-out values had been measured when it was registered.
        numbers: The registered fitted numbers.
        log_score: Mean log density in nats, of the logarithm of the value, and its error.
        by_cell: The same in each held-out cell.
        coverage: Probability of a central interval -> fraction of values within, and its error.
        differences: Null theory -> log score minus that of the null, and the error of the paired difference.
        beats: The null theories that it beats: the difference is positive with 95 % confidence.
    """

    theory: str
    title: str
    null: bool
    refused: str = ""
    late: bool = False
    numbers: Mapping[str, Any] = field(default_factory=dict)
    log_score: tuple[float, float] = (np.nan, np.nan)
    by_cell: tuple[float, ...] = ()
    coverage: Mapping[float, tuple[float, float]] = field(default_factory=dict)
    differences: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    beats: tuple[str, ...] = ()


def score_theories(table: str | Path, own: str | Path | None = None) -> list[Score]:
    """Scores of the theories of a table on its held-out part, the best first; those without a score come last.

    Args:
        table: Name of a table, or a folder with a ``phenomenon.py``.
        own: A folder with theories of the user's.

    Raises:
        CellsMissing: Not all cells are measured.
    """
    dataset = registry.record(table)
    registry.require_measured(table, dataset, "all cells")
    declared = registry.phenomenon(table)
    cells, (_, held_out) = len(declared.cells), declared.parts(dataset)
    value, censored = held_out["value"].values, held_out["censored"].values.astype(bool)
    registrations, rows, predictions = registry.registered(table, own), {}, {}
    for name, theory in registry.theories(table, own).items():
        rows[name] = {"title": theory.title, "null": theory.null}
        registration = registry.agreement(theory, registrations.get(name, []), declared, dataset)
        if isinstance(registration, str):
            rows[name] |= {"refused": registration}
            continue
        parts = registration.prediction.arrays(cells)
        predictions[name] = Prediction(*(part[declared.is_held_out, 0] for part in parts))
        rows[name] |= {"late": registration.late, "numbers": registration.numbers}
    return ranked(rows, predictions, value, censored)


def ranked(
    rows: Mapping[str, dict[str, Any]], predictions: Mapping[str, Prediction], value: np.ndarray, censored: np.ndarray
) -> list[Score]:
    """Scores of predictions for measured cells [cell, seed], the best first.

    ``rows`` has the other fields of each theory's score; a theory without a prediction comes last.
    """
    scores = {name: dict(row) for name, row in rows.items()}
    by_cell = {name: log_scores(prediction, value, censored).mean(1) for name, prediction in predictions.items()}
    nulls = {name: terms for name, terms in by_cell.items() if rows[name]["null"]}
    for name, terms in by_cell.items():
        within = {level: _mean(coverage(predictions[name], value, censored, level).mean(1)) for level in LEVELS}
        scores[name] |= {"log_score": _mean(terms), "by_cell": tuple(terms.tolist()), "coverage": within}
        scores[name] |= compared(terms, {null: row for null, row in nulls.items() if null != name})
    order = sorted(scores, key=lambda name: (name not in by_cell, -scores[name].get("log_score", (0.0,))[0]))
    return [Score(name, **scores[name]) for name in order]


def compared(terms: np.ndarray, nulls: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Paired differences between the log scores of a theory and of each null theory, and the null theories it beats."""
    differences = {null: _mean(terms - row) for null, row in nulls.items()}
    bound = student.ppf(CONFIDENCE, len(terms) - 1)
    return {"differences": differences, "beats": tuple(n for n, (gain, se) in differences.items() if gain > bound * se)}


def _mean(terms: np.ndarray) -> tuple[float, float]:
    return float(terms.mean()), float(terms.std(ddof=1) / np.sqrt(len(terms)))
