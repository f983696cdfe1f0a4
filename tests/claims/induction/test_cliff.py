"""What is particular to this claim: its check on made-up times, and formulas that are wrong in one place."""

import json

import numpy as np
import pytest
import xarray as xr

from icllab.claims.induction.cliff import claim
from icllab.experiments.checks import Outcome, worst
from icllab.theory import induction_landscape

N, COUNTS, STARTS, RATES, LEVELS = 4, (4, 16), (0.0, 0.003, 0.01), (0.2, 0.4, 0.8), (0.1, 0.5, 0.9)
TIME = np.arange(0.0, 81.0, 2.0)


@pytest.fixture(scope="module")
def exact():
    """What the landscape itself does, at errors proportional to the step size; the causal kind is the same here."""
    kinds, order = ("causal", "even"), ("alpha", "beta", "xi")
    times = np.full((2, 2, 3, 3, 3), np.nan)
    slopes, curves = np.zeros((2, 2, 3)), np.full((2, 2, 3, len(TIME), 3), np.nan)
    losses = np.full((2, 2, 3, len(TIME)), np.nan)
    for c, labels in enumerate(COUNTS):
        slopes[:, c, 2] = -(labels - N) / (labels * (2 * N + 1))
        for s, start in enumerate(STARTS):
            found = induction_landscape.flow((start,) * 3, pairs=N, labels=labels, time=500, levels=LEVELS)
            for r, rate in enumerate(RATES):
                times[:, c, s, r] = np.array(list(found.crossings.values())) + 0.1 * rate
            for i, name in enumerate(order):
                column = found.parameters[:, claim.STRENGTHS.index(name)]
                curves[:, c, s, :, i] = np.interp(TIME, found.time, column)
            losses[:, c, s] = np.interp(TIME, found.time, found.loss)
    dims = ("pairs", "attention", "label_count")
    dataset = xr.Dataset(
        {
            "origin_gradient": ((*dims, "strength"), slopes[None]),
            "crossing_time": ((*dims, "start", "rate", "loss_level"), times[None]),
            "strength_curve": ((*dims, "start", "time", "strength"), curves[None]),
            "label_loss": ((*dims, "start", "time"), losses[None]),
        },
        coords={
            "pairs": [N],
            "attention": list(kinds),
            "label_count": list(COUNTS),
            "start": list(STARTS),
            "rate": list(RATES),
            "loss_level": list(LEVELS),
            "time": TIME,
            "strength": list(order),
        },
        attrs={"configuration": json.dumps({"fixed": {"horizon": 130.0, "saddle_horizon": 500.0}})},
    )
    return claim.theory(dataset)


def outcome(dataset):
    return worst(finding.outcome for finding in claim.check(dataset))


def failing(dataset):
    return [finding.what for finding in claim.check(dataset) if finding.outcome is Outcome.FAILS]


def test_it_holds_where_all_is_as_claimed(exact):
    assert outcome(exact) is Outcome.HOLDS


def test_times_at_other_places_fail(exact):
    late = exact.assign(crossing_time=1.03 * exact["crossing_time"])
    assert len(failing(late)) == 10
    assert all("even" in what for what in failing(late))


def test_a_slope_at_the_saddle_fails(exact):
    there = xr.where((exact.strength == "xi") & (exact.label_count == N), -0.01, exact["origin_gradient"])
    assert len(failing(exact.assign(origin_gradient=there))) == 2


def test_a_fall_from_the_saddle_itself_fails(exact):
    still = (exact.start == 0.0) & (exact.label_count == N)
    times = xr.where(still, 900.0, exact["crossing_time"]).transpose(*exact["crossing_time"].dims)
    assert failing(exact.assign(crossing_time=times)) == [
        "falls from the saddle itself, causal, N=4, L=4",
        "falls from the saddle itself, even, N=4, L=4",
    ]


def test_a_reader_that_grows_last_fails(exact):
    """The strengths change places."""
    turned = exact.assign(
        strength_curve=exact["strength_curve"].isel(strength=[2, 1, 0]).assign_coords(strength=exact.strength)
    )
    assert any("time of half of" in what for what in failing(turned))


def test_it_is_undecided_without_both_numbers_of_labels(exact):
    assert outcome(exact.sel(label_count=[16])) is Outcome.UNDECIDED


@pytest.mark.parametrize(("world", "said"), [("leak_corrected", "time at"), ("no_context", "slope along xi")])
def test_wrong_formulas_fail_in_their_place(exact, world, said):
    assert {what[: len(said)] for what in failing(claim.experiment.worlds[world].theory(exact))} == {said}


def test_the_limit_of_small_steps():
    rates = np.array([0.8, 0.2, 0.4])
    value, error = claim.limit(rates, 40 + 0.5 * rates + 0.1 * rates**2)
    np.testing.assert_allclose(value, 40, rtol=1e-12)
    np.testing.assert_allclose(error, 0.1 * 0.2 * 0.4, rtol=1e-6)
    assert np.isnan(claim.limit(rates[:2], rates[:2])).all()


def test_half_of_a_strength():
    curve = xr.DataArray(TIME**2, dims="time", coords={"time": TIME})
    np.testing.assert_allclose(claim.half_time(curve, 40.0), 40 / np.sqrt(2), rtol=2e-3)
