"""Answers: known numbers of a posterior, with the bound of their error and their basis."""

from typing import Any, NamedTuple

import numpy as np

from icllab.core.views import fields_html, fields_repr
from icllab.posteriors.integrals import Moments
from icllab.theory.learning_coefficients import LearningCoefficient


class Answer(NamedTuple):
    """A known number of a posterior.

    Attributes:
        value: Number, or an array over samples.
        error: Bound of its error.
        basis: Source or derivation.
    """

    value: Any
    error: float
    basis: str

    __repr__ = fields_repr
    _repr_html_ = fields_html


def coefficient_answers(coefficient: LearningCoefficient, basis: str) -> dict[str, Answer]:
    """Answers of a learning coefficient."""
    return {
        "coefficient": Answer(coefficient.value, 0.0, basis),
        "multiplicity": Answer(coefficient.multiplicity, 0.0, basis),
    }


def moment_answers(
    moments: Moments, basis: str, *, nbeta: float | None = None, tilt: np.ndarray | None = None
) -> dict[str, Answer]:
    """Answers of moments; with a ``tilt`` also the influence of samples and the susceptibility."""
    pairs = {"level": moments.level, "variance": moments.variance, "free_energy": moments.free_energy}
    answers = {name: Answer(value, error, basis) for name, (value, error) in pairs.items()}
    if tilt is not None and nbeta is not None and moments.covariance is not None:
        covariance, error = moments.covariance
        answers["influence"] = Answer(-covariance, error, basis)
        bound = nbeta * error * float(np.abs(tilt).sum())
        answers["susceptibility"] = Answer(-nbeta * float(tilt @ covariance), bound, basis)
    return answers
