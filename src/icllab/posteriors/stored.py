"""Stored answers of the problems that papers cite, with their digest, and the table of populations."""

import functools
import hashlib
import importlib.resources
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from icllab.core.files import parse_json
from icllab.posteriors.answers import Answer

DIGITS = 12  # of a stored number
SHOWN = 6  # of a digest's number: what differs by rounding alone has the same digest


def _read(name: str) -> Any:
    text = importlib.resources.files("icllab.posteriors").joinpath(name).read_text("utf-8")
    return parse_json(text, name)


@functools.cache
def stored_answers() -> dict[tuple[str, int], dict[str, Answer]]:
    """Answers by the name of a problem and the number of a setting, as the package has them."""
    table = _read("answers.json")["answers"]
    return {
        (name, setting): {answer: Answer(_value(v), float(e), basis) for answer, (v, e, basis) in answers.items()}
        for name, settings in table.items()
        for setting, answers in enumerate(settings)
    }


@functools.cache
def population_table() -> Mapping[str, list[dict[str, float]]]:
    """Levels and variances from populations and long chains, by the name of a problem."""
    return _read("populations.json")


@functools.cache
def trained_weights() -> Mapping[str, np.ndarray]:
    """Weights of trained networks, by the name of a problem, which ``bench/reference_populations.py`` trains."""
    return {name: np.asarray(weights, np.float64) for name, weights in _read("weights.json").items()}


def digest(answers: Mapping[tuple[str, int], Mapping[str, Answer]] | None = None) -> str:
    """SHA-256 of the names and values of answers, to six digits; None: of the stored ones."""
    answers = stored_answers() if answers is None else answers
    rows = [
        [*key, name, [f"{number:.{SHOWN - 1}e}" for number in np.ravel(answer.value)]]
        for key, row in sorted(answers.items())
        for name, answer in sorted(row.items())
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def written(answers: Mapping[str, list[Mapping[str, Answer]]], version: int) -> str:
    """The text of ``answers.json``."""
    table = {
        name: [
            {key: [_rounded(answer.value), float(f"{answer.error:.3g}"), answer.basis] for key, answer in row.items()}
            for row in settings
        ]
        for name, settings in answers.items()
    }
    lines = [f" {json.dumps(name)}: {json.dumps(settings)}" for name, settings in table.items()]
    return f'{{"version": {version}, "answers": {{\n' + ",\n".join(lines) + "\n}}\n"


def _rounded(value: Any) -> Any:
    rounded = [float(f"{number:.{DIGITS}g}") for number in np.ravel(value)]
    return rounded if np.ndim(value) else rounded[0]


def _value(value: Any) -> Any:
    return np.asarray(value, np.float64) if isinstance(value, list) else float(value)
