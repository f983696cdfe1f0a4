"""The rule of the verdict on numbers made up so that each of its branches is taken."""

import numpy as np
import pytest

from icllab.diagnostics.identification.verdicts import (
    Evidence,
    VerdictRule,
    interval,
    judge_candidates,
    mutual_unexplained,
    resamplings,
    unexplained,
)

PROMPTS = 400
WEIGHTS = resamplings(PROMPTS, resamples=500, seed=[1])
RULE = VerdictRule()


def evidence(*factors, mutual=1.0, spread=0.5, scale=1.0, gradients=None, gradients_scale=1.0):
    """Squares with means in the given proportion to the scale's, and candidates that far from each other."""
    rng = np.random.default_rng(0)
    common = 1 + spread * rng.uniform(-1, 1, size=(PROMPTS, 1))
    single = 1 + spread * rng.uniform(-1, 1, size=(PROMPTS, len(factors)))
    empty = np.full((len(factors), len(factors)), np.nan)
    return Evidence(
        answers=np.array(factors) * single,
        answers_scale=scale * common[:, 0],
        gradients=np.full((PROMPTS, len(factors)), np.nan) if gradients is None else np.array(gradients) * single,
        gradients_scale=np.full(PROMPTS, np.nan) if gradients is None else gradients_scale * common[:, 0],
        mutual_answers=np.broadcast_to(mutual, (len(factors), len(factors))) * (1 - np.eye(len(factors))),
        mutual_gradients=empty if gradients is None else np.zeros_like(empty),
    )


def verdict(made_up, names="abc", **rule):
    names = tuple(names[: made_up.answers.shape[1]])
    return judge_candidates(unexplained(made_up, WEIGHTS), mutual_unexplained(made_up), names, RULE._replace(**rule))


@pytest.mark.parametrize(
    ("made_up", "message", "among"),
    [
        (evidence(0.001, 0.1), "a", [True, False]),
        (evidence(0.1, 0.001, 0.005), "b", [False, True, False]),
        (evidence(0.02, 0.1), "none of these", [False, False]),
        # Not resolved which is nearer.
        (evidence(0.004, 0.00405), "indistinguishable", [True, True]),
        # Resolved, but the two are nearer to each other than the network is to either.
        (evidence(0.004, 0.005, mutual=0.003), "indistinguishable", [True, True]),
        (evidence(0.004, 0.005, mutual=0.006), "a", [True, False]),
        # Equal to all purposes, whatever is resolved.
        (evidence(0.0, 9e-7, mutual=9e-7), "indistinguishable", [True, True]),
        (evidence(0.0, 2e-6, mutual=2e-6), "a", [True, False]),
        # A candidate that is refused is never meant, however near to the best.
        (evidence(0.009, 0.02, mutual=0.001), "a", [True, False]),
        # The interval holds the tolerance itself: more prompts would say.
        (evidence(0.01, 0.1), "undecided", [False, False]),
        # One accepted, the other not refused, and near: it may be meant as well.
        (evidence(0.0094, 0.01, mutual=0.001), "indistinguishable", [True, True]),
        # Slopes count as much as answers do.
        (evidence(0.001, 0.002, gradients=(0.03, 0.003)), "b", [False, True]),
        (evidence(0.001, gradients=(0.03,)), "none of these", [False]),
        # A scale of nothing: no candidate explains nothing, but equal gradients are equal.
        (evidence(0.0, scale=0.0), "none of these", [False]),
        (evidence(0.001, gradients=(0.0,), gradients_scale=0.0), "a", [True]),
        (evidence(0.001, gradients=(0.1,), gradients_scale=0.0), "none of these", [False]),
    ],
)
def test_the_rule(made_up, message, among):
    result = verdict(made_up)
    assert result.verdict == message
    np.testing.assert_array_equal(result.among, among)


def test_a_network_between_two_candidates_is_said_to_be():
    """|a - b|² = 4 |f - a|² = 4 |f - b|²: the network is the mean of two candidates, both of which are accepted."""
    between = verdict(evidence(0.002, 0.002, mutual=0.008))
    assert between.verdict == "indistinguishable"
    assert between.warning in ("the answers lie between those of a and b", "the answers lie between those of b and a")
    assert verdict(evidence(0.002, 0.002, mutual=0.003)).warning == ""


def test_fractions_and_their_intervals():
    """Means of ratios of means; the interval of a mean of N has the width of its standard error."""
    made_up = evidence(0.3, spread=0.5)
    result = unexplained(made_up, WEIGHTS)
    assert result.prediction_discrepancy[0, 0] == pytest.approx(
        made_up.answers.mean() / made_up.answers_scale.mean(), rel=1e-12
    )
    assert np.isnan(result.input_gradient_discrepancy).all()
    np.testing.assert_array_equal(result.fraction_unexplained, result.prediction_discrepancy)
    low, high = interval(result.fraction_unexplained, 0.95)[0]
    # Numerator and denominator have the relative standard error 0.5/sqrt(3 N) each, and are independent.
    exact = 2 * 1.96 * 0.3 * np.sqrt(2) * 0.5 / np.sqrt(3 * PROMPTS)
    assert high - low == pytest.approx(exact, rel=0.15)
    assert low < 0.3 < high


def test_resamplings_are_draws_with_replacement():
    assert np.all(WEIGHTS[0] == 1 / PROMPTS)
    np.testing.assert_allclose(WEIGHTS.sum(1), 1, rtol=1e-12)
    counts = WEIGHTS[1:] * PROMPTS
    # Poisson numbers but for the fixed sum: variance 1 - 1/N.
    assert counts.var() == pytest.approx(1 - 1 / PROMPTS, rel=4 * np.sqrt(2 / counts.size) + 0.005)
    np.testing.assert_array_equal(resamplings(PROMPTS, resamples=500, seed=[1]), WEIGHTS)


def test_differences_are_paired():
    """Two candidates whose squares differ by 1 % in every prompt are resolved, though each is known to 5 % only."""
    made_up = evidence(0.004, 0.004)
    pairs_of_values = made_up._replace(answers=np.stack([made_up.answers[:, 0], 1.01 * made_up.answers[:, 0]], axis=1))
    result = verdict(pairs_of_values)
    assert result.verdict == "a"
    low, high = result.gap_to_best_interval[1]
    assert 0 < low <= result.gap_to_best[1] <= high
    assert result.gap_to_best[1] == pytest.approx(
        0.01 * unexplained(pairs_of_values, WEIGHTS).fraction_unexplained[0, 0], rel=1e-9
    )


def test_what_is_no_number_is_refused():
    made_up = evidence(0.001, 0.001)
    made_up.answers[3, 1] = np.nan
    result = verdict(made_up)
    assert result.verdict == "a"
    assert unexplained(made_up, WEIGHTS).fraction_unexplained[0, 1] == np.inf
    made_up.answers_scale[3] = np.inf
    assert verdict(made_up).verdict == "none of these"
