"""Three outcomes: what is measured well enough holds or fails, and only what is not is undecided."""

import itertools
import json
import math

import numpy as np
import pytest
import xarray as xr

from icllab.experiments.checks import Finding, Outcome, Verdict, agreement, apart, exactly, exceeds, within, worst

HOLDS, FAILS, UNDECIDED = Outcome.HOLDS, Outcome.FAILS, Outcome.UNDECIDED


def test_the_worst_of_outcomes_is_the_least_in_their_order():
    order = {FAILS: 0, UNDECIDED: 1, HOLDS: 2}
    for some in itertools.product(Outcome, repeat=3):
        assert worst(some) is min(some, key=order.__getitem__)
    assert worst([]) is UNDECIDED
    assert [o.exit_status for o in (HOLDS, FAILS, UNDECIDED)] == [0, 1, 3]


@pytest.mark.parametrize(
    ("predicted", "measured", "error", "outcome"),
    [
        (1.0, 1.0, 0.01, HOLDS),
        (1.0, 1.029, 0.01, HOLDS),
        (1.0, 1.031, 0.01, FAILS),
        (1.0, 0.969, 0.01, FAILS),
        (1.0, 1.0, 0.2, UNDECIDED),  # a standard error beyond its bound
        (1.0, 1.7, 0.2, FAILS),  # plain even so
        (1.0, math.nan, 0.01, UNDECIDED),
        (1.0, 1.0, math.nan, UNDECIDED),
        (1.0, 1.0, math.inf, UNDECIDED),
        (math.inf, 1.0, 0.01, FAILS),
        (math.nan, 1.0, 0.01, UNDECIDED),  # no prediction can agree with nothing
        (1.0, 1.0, 0.0, HOLDS),
        (1.0, 1.0 + 1e-15, 0.0, FAILS),
    ],
)
def test_agreement(predicted, measured, error, outcome):
    finding = agreement("x", predicted, measured, error, largest_error=0.1)
    assert finding.outcome is outcome
    assert bool(finding.advice) == (outcome is UNDECIDED)
    assert finding.tolerance == pytest.approx(3 * error, nan_ok=True)


def test_agreement_errs_as_often_as_a_normal_law_says():
    """At two standard errors a true prediction fails in 4.55 % of many trials, within three standard errors."""
    trials, z = 4000, np.random.default_rng(1).normal(size=4000)
    failed = sum(agreement("x", 0.0, m, 1.0, largest_error=1.0, sigmas=2.0).outcome is FAILS for m in z)
    p = 1 - math.erf(2 / math.sqrt(2))
    assert abs(failed / trials - p) < 3 * math.sqrt(p * (1 - p) / trials)


@pytest.mark.parametrize(
    ("measured", "outcome"), [(0.31, HOLDS), (0.3, UNDECIDED), (-0.3, UNDECIDED), (-0.31, FAILS), (math.nan, UNDECIDED)]
)
def test_exceeds(measured, outcome):
    finding = exceeds("x", measured, 0.1)
    assert finding.outcome is outcome
    assert bool(finding.advice) == (outcome is UNDECIDED)


def test_exactly():
    assert exactly("x", 2, 2).outcome is HOLDS
    assert exactly("x", 2, 3).outcome is FAILS
    assert exactly("x", 2, 3, otherwise=UNDECIDED).outcome is UNDECIDED
    assert exactly("x", 2, math.nan).outcome is FAILS
    assert (exactly("x", 2, 3).standard_error, exactly("x", 2, 3).tolerance) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("measured", "error", "outcome"),
    [
        (2.5, 0.0, HOLDS),  # the margin itself is within it
        (1.8, 0.1, HOLDS),
        (2.3, 0.1, UNDECIDED),  # near enough, but not by three standard errors
        (2.7, 0.1, UNDECIDED),
        (2.9, 0.1, FAILS),
        (1.1, 0.1, FAILS),
        (2.0, 1.0, UNDECIDED),  # agreement with a large error is no nearness
        (math.nan, 0.1, UNDECIDED),
        (2.0, math.nan, UNDECIDED),
    ],
)
def test_within(measured, error, outcome):
    finding = within("x", 2.0, measured, error, margin=0.5)
    assert finding.outcome is outcome
    assert bool(finding.advice) == (outcome is UNDECIDED)
    assert (finding.predicted, finding.tolerance) == (2.0, 0.5)
    assert within("x", 2.0, 2.3, 0.1, margin=0.5, sigmas=1.0).outcome is HOLDS


def test_one_phase_less_another_and_its_error():
    phases = xr.DataArray([[1.0, 2.0], [5.0, 4.0], [7.0, 7.0]], coords={"phase": list("abc")}, dims=("phase", "n"))
    dataset = xr.Dataset({"energy": phases, "energy_error": 3.0 * (phases > 4) + 4.0 * (phases < 4), "line": phases})
    value, error = apart(dataset.expand_dims(seed=[0]), "energy", "b", "a", dims=("n", "seed"))
    np.testing.assert_array_equal(value, [[4.0], [2.0]])
    np.testing.assert_array_equal(error, [[5.0], [4.0]])
    value, error = apart(dataset, "line", "a", "b", dims=("n",))
    np.testing.assert_array_equal(value, [-4.0, -2.0])
    np.testing.assert_array_equal(error, [0.0, 0.0])


def test_a_verdict_is_its_worst_finding_and_plain_values():
    findings = (exactly("a", 1, 1), agreement("b", 1.0, 2.0, 0.1, largest_error=1.0))
    verdict = Verdict("room/finding", findings, ("a note",))
    assert verdict.outcome is FAILS
    assert Verdict("room/finding", ()).outcome is UNDECIDED
    plain = json.loads(json.dumps(verdict.as_dict(), allow_nan=False))
    assert plain["verdict"] == "fails"
    assert plain["notes"] == ["a note"]
    assert [f["outcome"] for f in plain["findings"]] == ["holds", "fails"]
    assert Finding(**{**plain["findings"][1], "outcome": FAILS}) == findings[1]
