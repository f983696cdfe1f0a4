"""Scores: a right estimator is covered, one that errs in silence is found out, and no answer reaches an estimator."""

import math

import jax
import numpy as np
import pytest

from icllab import posteriors
from icllab.core.errors import InputError, ResultWarning
from icllab.posteriors.scores import Row, score, summaries, without_answers

NAMES = ["quadratic", "stiff", "flat_direction"]


def right(error):
    """An estimator that knows the answers and errs by its stated error."""
    truths = {}

    def estimate(posterior, *, key):
        answer = truths[tuple(posterior.at[:2])]
        return {"level": (answer + error * float(jax.random.normal(key)), error)}

    for number in range(40):
        for name in NAMES:
            known = posteriors.problem(name, key=jax.random.key(number))
            truths[tuple(known.at[:2])] = known.answers["level"].value
    return estimate


def row(**changes):
    numbers = {"value": 1.0, "error": 0.1, "answer": 1.0, "answer_error": 0.0, "warnings": (), "seconds": 1.0}
    named = {"problem": "quadratic", "difficulty": "regular", "key": None, "quantity": "level"}
    return Row(**(named | numbers | changes))


def test_intervals_of_a_right_estimator_hold_the_answer_as_often_as_they_say():
    rows = list(score(right(0.2), problems=NAMES, keys=range(40)))
    (summary,) = summaries(rows)
    assert (summary.count, summary.missing, summary.wrong, summary.unwarned) == (120, 0, 0, 0)
    for level, (share, error) in summary.coverage.items():
        assert abs(share - level) < 4 * error
        assert 0.02 < error < 0.06


def test_no_two_runs_share_random_numbers():
    """Otherwise errors are the same on all problems, and a share of intervals has a larger error than it says."""
    seen = []

    def estimate(posterior, *, key):
        seen.append(tuple(np.asarray(jax.random.key_data(key)).tolist()))
        return {"level": (1.0, 1.0)}

    list(score(estimate, problems=NAMES, keys=[None, 7, 8]))
    list(score(estimate, problems=NAMES, keys=[None, 7, 8], seed=1))
    assert len(set(seen)) == 18


def test_wrong_is_more_than_three_errors_and_more_than_a_tenth_off():
    assert not row(value=1.09, error=0.01).wrong  # nine errors, and less than a tenth
    assert not row(value=1.29, error=0.1).wrong  # three tenths, and less than three errors
    assert row(value=1.31, error=0.1).wrong
    assert row(value=1.31, error=0.1).unwarned
    assert not row(value=1.31, error=0.1, warnings=("chains disagree",)).unwarned
    assert row(value=1.31, error=0.1, warnings=("chains disagree",)).wrong
    assert not row(value=math.nan).wrong
    assert row(value=1.2, error=math.nan).wrong
    assert row(value=0.5, difficulty="refused", answer=math.nan).unwarned
    # The answer's own error counts.
    assert not row(value=1.31, error=0.01, answer_error=0.2).wrong


def test_an_estimator_without_errors_has_no_coverage():
    (summary,) = summaries(list(score(lambda p, *, key: {"level": (5.0, None)}, problems=["quadratic"])))
    assert summary.coverage == {}
    assert summary.bias < 0.01


def test_errors_and_warnings_of_an_estimator_are_its_warnings():
    def refusing(posterior, *, key):
        raise InputError("not this one")

    def warning(posterior, *, key):
        import warnings

        warnings.warn("too few draws", ResultWarning, stacklevel=2)
        warnings.warn("a name will go", DeprecationWarning, stacklevel=2)  # says nothing of the estimate
        return {"level": (9.0, 0.1)}

    (refused,) = score(refusing, problems=["on_a_slope"])
    assert (refused.warnings, refused.quantity, refused.wrong) == (("not this one",), "", False)
    (warned,) = score(warning, problems=["quadratic"])
    assert warned.warnings == ("too few draws",)
    assert warned.wrong
    assert not warned.unwarned
    with pytest.raises(InputError, match="a mapping from quantities"):
        list(score(lambda p, *, key: 3.0, problems=["quadratic"]))


def test_no_answer_reaches_an_estimator():
    seen = []
    list(score(lambda p, *, key: seen.append(p) or {}, problems=["quadratic", "regression"]))
    for posterior in seen:
        assert posterior.answers == {}
        assert posterior.draft.answers() == {}
        assert posterior.name == posterior.difficulty == ""
    bare = without_answers(posteriors.problem("regression"))
    assert np.isfinite(bare.numpy_loss(bare.at)).all()
    assert bare.local_loss().samples == 40
