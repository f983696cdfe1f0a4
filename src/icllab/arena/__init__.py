"""Theories against each other: each is fitted to one part of the measurements of a phenomenon, and scored on the rest.

A phenomenon is a grid of measured numbers, in ``arena/NAME`` of a book; the key of the phenomenon draws which cells are
held out. A theory is a file with ``fit(train) -> numbers`` and ``predict(numbers, conditions) -> Prediction``. Its
fitted numbers and its predictions in all cells are registered before the held-out part is measured. It is scored by
the mean log density of the held-out values, beside theories that know nothing of the subject.
"""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.arena.phenomenon import Phenomenon
    from icllab.arena.prediction import Prediction, fit_log_linear, log_likelihood, predict_log_linear
    from icllab.arena.scores import Score, score_theories

__all__ = [
    "Phenomenon",
    "Prediction",
    "Score",
    "fit_log_linear",
    "log_likelihood",
    "predict_log_linear",
    "score_theories",
]
__getattr__, __dir__ = attach(__name__)
