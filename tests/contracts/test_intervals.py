"""Every stated interval holds what it is an interval of as often as it says, counted on made-up data."""

import numpy as np
import pytest
import xarray as xr
from contracts.calibration import FEWER, REPEATS, assert_coverage, autoregressive, censored
from scipy.stats import t as student

from icllab.diagnostics.curves.breakpoints import change_points
from icllab.diagnostics.curves.survival import kaplan_meier
from icllab.diagnostics.curves.transition_times import transitions
from icllab.diagnostics.identification.verdicts import (
    Evidence,
    VerdictRule,
    interval,
    judge_candidates,
    resamplings,
    unexplained,
)
from icllab.diagnostics.sampling.convergence import effective_draws


def test_intervals_of_event_times_hold_as_often_as_they_say():
    rng, median, at = np.random.default_rng(1), np.log(2), 0.9
    holds = []
    for _ in range(REPEATS):
        table = kaplan_meier(*censored(rng), confidence=0.9)
        low, high = table["median_time_interval"].values
        bounds = table["survival_interval"].sel(time=at, method="ffill").values
        holds.append([low <= median <= high, bounds[0] <= np.exp(-at) <= bounds[1]])
    assert_coverage(np.mean(holds, axis=0), 0.9)


@pytest.mark.parametrize("members", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_the_interval_of_a_plateau_holds_as_often_as_it_says(members):
    """Members on plateaus of their own, of which one more is not recorded back to it: an interval of their mean."""
    rng, step = np.random.default_rng(2), np.arange(0, 101, 10.0)
    holds = []
    for _ in range(FEWER):
        levels = 1 + 0.1 * rng.normal(size=members)
        curves = np.where(step < 70, np.append(levels, 1.0)[:, None], 0.0)
        curves[-1, :5] = np.nan
        table = transitions(xr.DataArray(curves, dims=("seed", "step"), coords={"step": step}), plateau=1.0, end=0.0)
        low, high = table["plateau_interval"].values
        holds.append(low <= 1.0 <= high)
        found = table["plateau_level"].values
        assert np.isnan(found[-1])
        exact = student.interval(0.95, members - 1, found[:-1].mean(), found[:-1].std(ddof=1) / members**0.5)
        np.testing.assert_allclose([low, high], exact, rtol=1e-9)
    assert_coverage(np.mean(holds), 0.95, FEWER)


@pytest.mark.parametrize("correlation", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_the_interval_of_a_change_point_holds_it_and_is_no_wider_than_it_must_be(correlation):
    """A drop of five standard deviations of the noise between two records is seen within a record or so.

    A break lies anywhere between its two records, so that the interval of one that cannot be missed holds it always.
    """
    rng, steps = np.random.default_rng(3), np.geomspace(10.0, 1e4, 40)
    holds, widths = [], []
    for seed in range(40):
        place = np.exp(rng.uniform(np.log(100.0), np.log(1000.0)))
        noise = autoregressive(rng, (len(steps),), correlation)
        curve = 1 - 0.05 * np.log(steps) - 0.25 * (steps >= place) + 0.05 * noise
        records = xr.DataArray(curve, dims="step", coords={"step": steps})
        table = change_points(records, key=seed, resamples=100, max_breaks=1, progress=False)
        for (low, high), reported in zip(table["change_interval"].values, table["reported"].values, strict=True):
            if reported:
                holds.append(low <= place <= high)
                widths.append(np.log(high / low) / np.log(steps[1] / steps[0]))
    assert len(holds) > 20
    assert np.mean(holds) > 0.95 - 4 * np.sqrt(0.95 * 0.05 / len(holds))
    assert 1 - 1e-9 <= np.mean(widths) < 2


PROMPTS, CANDIDATES = 200, np.array([0.1, 0.15])


def test_intervals_of_identification_hold_as_often_as_they_say():
    """Fractions unexplained, and how much more the second candidate leaves, of made-up squares; the larger of two."""
    rng, weights = np.random.default_rng(4), resamplings(PROMPTS, resamples=400, seed=[0])
    holds = []
    for _ in range(REPEATS):
        shared = rng.normal(size=(PROMPTS, 1)) ** 2  # prompts that are hard for both
        parts, scale = CANDIDATES * (shared + rng.normal(size=(PROMPTS, 2)) ** 2) / 2, rng.normal(size=PROMPTS) ** 2
        missing, mutual = np.full(PROMPTS, np.nan), np.zeros((2, 2))
        gradients = np.stack([missing, missing], axis=1)
        fractions = unexplained(Evidence(parts, scale, gradients, missing, mutual, mutual), weights)
        found = interval(fractions.fraction_unexplained, 0.95)
        gap = judge_candidates(fractions, mutual + 1, "ab", VerdictRule(tolerance=0.5, resamples=400))
        best = int(gap.best)
        ends = (gap.gap_to_best_interval[1 - best], CANDIDATES[1 - best] - CANDIDATES[best])
        pairs = [(found[0], CANDIDATES[0]), (found[1], CANDIDATES[1]), ends]
        holds.append([low <= truth <= high for (low, high), truth in pairs])
    assert_coverage(np.mean(holds, axis=0), 0.95)


def test_correlation_times_of_chains_are_those_of_their_autoregression():
    r"""N draws of neighbours that correlate by :math:`\rho` know as much as :math:`N(1-\rho)/(1+\rho)`."""
    rng = np.random.default_rng(5)
    for share in (-0.4, 0.0, 0.6, 0.9):
        draws = autoregressive(rng, (40, 4, 1000), share)
        times = [chains.size / effective_draws(chains) for chains in draws]
        assert np.mean(times) == pytest.approx((1 + share) / (1 - share), rel=0.15)
