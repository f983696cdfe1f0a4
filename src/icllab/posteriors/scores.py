r"""The score of an estimator on problems of known answer: coverage of its intervals, bias, silent errors and seconds.

An estimator is a function ``estimate(posterior, *, key)`` of a posterior without its answers. It returns a mapping from
``coefficient``, ``level``, ``variance`` or ``free_energy`` to a pair (value, standard error), None for no error, and
perhaps ``warnings``, a list of sentences, and ``gradients``, a number.
"""

import math
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from icllab.core.errors import IclError, expected, kind_of
from icllab.posteriors.problems import DIFFICULTIES, Problem, names, problem

QUANTITIES = ("coefficient", "level", "variance", "free_energy")
ERRORS, SHARE = 3.0, 0.1  # beyond both of which an estimate is wrong
WITHIN = {0.5: 0.6744897501960817, 0.9: 1.6448536269514722}  # half the width of an interval, in standard errors
Estimator = Callable[..., Mapping[str, Any]]


@dataclass(frozen=True)
class Row:
    """One estimate of one number of one problem.

    Attributes:
        problem: Name of the problem.
        difficulty: Its difficulty.
        key: Number of the key, None for the member that papers cite.
        quantity: What was estimated; empty if there was no estimate.
        value: Estimate; NaN if there is none.
        error: Its stated standard error; NaN without one.
        answer: The known number; NaN if there is none.
        answer_error: Bound of its error.
        warnings: Sentences of the estimator, its Python warnings of the kind ``UserWarning``, and its exception.
        seconds: CPU seconds.
        gradients: Number of gradients; NaN if it was not stated.
    """

    problem: str
    difficulty: str
    key: int | None
    quantity: str
    value: float
    error: float
    answer: float
    answer_error: float
    warnings: tuple[str, ...]
    seconds: float
    gradients: float = math.nan

    @property
    def distance(self) -> float:
        """Distance from the answer in standard errors, those of both; infinite without an error."""
        error = math.hypot(self.error if math.isfinite(self.error) else 0.0, self.answer_error)
        gap = abs(self.value - self.answer)
        return gap / error if error > 0 else (math.inf if gap > 0 else 0.0)

    @property
    def wrong(self) -> bool:
        """True if the estimate is more than three errors and a tenth off, or if a refused problem has an estimate."""
        if self.difficulty == "refused":
            return math.isfinite(self.value)
        if not math.isfinite(self.value):
            return False
        return self.distance > ERRORS and abs(self.value - self.answer) > SHARE * abs(self.answer)

    @property
    def unwarned(self) -> bool:
        """True if the estimate is wrong and nothing says so: the worst that an estimator can do."""
        return self.wrong and not self.warnings


@dataclass(frozen=True)
class Summary:
    """Rows of one quantity and one difficulty.

    Attributes:
        quantity: What was estimated.
        difficulty: Difficulty of the problems.
        count: Number of estimates.
        missing: Number of runs without an estimate.
        coverage: Level -> share of intervals that hold the answer, with its error; empty without stated errors.
        bias: Median of the relative distance from the answer.
        wrong: Number of wrong estimates that were warned of.
        unwarned: Number of wrong estimates without a warning.
        seconds: Median CPU seconds of a run.
        gradients: Median number of gradients of a run.
    """

    quantity: str
    difficulty: str
    count: int
    missing: int
    coverage: dict[float, tuple[float, float]]
    bias: float
    wrong: int
    unwarned: int
    seconds: float
    gradients: float


def without_answers(posterior: Problem) -> Problem:
    """The problem as an estimator sees it: without its name and its answers."""
    draft = posterior.parts._replace(answers=dict)
    return replace(posterior, name="", difficulty="", answers={}, draft=draft)


def score(
    estimator: Estimator, *, problems: Sequence[str] | None = None, keys: Iterable[int | None] = (None,), seed: int = 0
) -> Iterator[Row]:
    """Run an estimator on problems, one after the other, and yield its rows.

    Args:
        estimator: Function ``estimate(posterior, *, key)``.
        problems: Names of problems; None: all.
        keys: Numbers of the keys that problems are drawn by; None is the member that papers cite.
        seed: Number of the estimator's own keys, of which each problem has another.

    Raises:
        InputError: There is no such problem, or the estimator returns something else.
    """
    for name in names() if problems is None else problems:
        # Errors on different problems are independent.
        of_problem = jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
        for number in keys:
            known = problem(name, key=None if number is None else jax.random.key(number))
            yield from _rows(estimator, known, number, jax.random.fold_in(of_problem, number or 0))


def _rows(estimator: Estimator, known: Problem, number: int | None, key: Any) -> list[Row]:
    clock, sentences, estimates = time.process_time(), [], {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            estimates = estimator(without_answers(known), key=key)
        except IclError as error:
            sentences = [str(error)]
    seconds = time.process_time() - clock
    if not isinstance(estimates, Mapping):
        raise expected("estimator", "a mapping from quantities to (value, error)", kind_of(estimates))
    sentences += [str(entry.message) for entry in caught if issubclass(entry.category, UserWarning)]
    sentences += [str(text) for text in estimates.get("warnings", [])]
    common: dict[str, Any] = {"problem": known.name, "difficulty": known.difficulty, "key": number}
    common |= {"warnings": tuple(sentences), "seconds": seconds}
    common |= {"gradients": float(estimates.get("gradients", math.nan))}
    rows = []
    for quantity in QUANTITIES:
        if quantity in estimates and (known.refused or quantity in known.answers):
            value, error = estimates[quantity]
            error = math.nan if error is None else float(error)
            answer = known.answers.get(quantity)
            truth, bound = (math.nan, 0.0) if answer is None else (float(answer.value), answer.error)
            rows.append(
                Row(quantity=quantity, value=float(value), error=error, answer=truth, answer_error=bound, **common)
            )
    nothing = {"quantity": "", "value": math.nan, "error": math.nan, "answer": math.nan, "answer_error": 0.0}
    return rows or [Row(**nothing, **common)]


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """Summarise rows by quantity and difficulty, in the order of difficulties."""
    quantities = [name for name in QUANTITIES if any(row.quantity == name for row in rows)]
    found = []
    for quantity in quantities:
        for difficulty in DIFFICULTIES:
            group = [row for row in rows if row.difficulty == difficulty and row.quantity in (quantity, "")]
            if group:
                found.append(_summary(quantity, difficulty, group))
    return found


def _summary(quantity: str, difficulty: str, group: Sequence[Row]) -> Summary:
    made = [row for row in group if math.isfinite(row.value)]
    stated = [row for row in made if math.isfinite(row.error) and math.isfinite(row.answer)]
    coverage = {}
    for level, half in WITHIN.items():
        if stated:
            inside, count = sum(row.distance <= half for row in stated), len(stated)
            middle = (inside + 0.5) / (count + 1)  # so that a share of all or none has an error too
            coverage[level] = inside / count, math.sqrt(middle * (1 - middle) / count)
    apart = [abs(row.value - row.answer) / abs(row.answer) for row in made if row.answer and math.isfinite(row.answer)]
    return Summary(
        quantity,
        difficulty,
        len(group),
        len(group) - len(made),
        coverage,
        float(np.median(apart)) if apart else math.nan,
        sum(row.wrong and not row.unwarned for row in group),
        sum(row.unwarned for row in group),
        float(np.median([row.seconds for row in group])),
        float(np.median([row.gradients for row in group])),
    )
