"""What is particular to this claim: its check on made-up times, wrong formulas, and its loss beside the landscape's."""

import json

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged, theory_under

from iclbook.claims.induction.cliff import claim, measure
from icllab.lab.checks import Outcome
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
            "label_count": list(COUNTS),
            "attention": list(kinds),
            "start": list(STARTS),
            "rate": list(RATES),
            "loss_level": list(LEVELS),
            "time": TIME,
            "strength": list(order),
        },
        attrs={"configuration": json.dumps({"fixed": {"horizon": 130.0, "saddle_horizon": 500.0}})},
    )
    return claim.theory(dataset.transpose("pairs", "label_count", "attention", ...))


_, failing, outcome = judged(claim.check)


def test_it_holds_where_all_is_as_claimed(exact):
    assert outcome(exact) is Outcome.HOLDS


def test_times_at_other_places_fail(exact):
    late = exact.assign(crossing_time=1.03 * exact["crossing_time"])
    assert len(failing(late)) == 10
    assert all("attention=even" in found for found in failing(late))


def test_a_slope_at_the_saddle_fails(exact):
    there = xr.where((exact.strength == "xi") & (exact.label_count == N), -0.01, exact["origin_gradient"])
    assert len(failing(exact.assign(origin_gradient=there))) == 2


def test_a_fall_from_the_saddle_itself_fails(exact):
    still = (exact.start == 0.0) & (exact.label_count == N)
    times = xr.where(still, 900.0, exact["crossing_time"]).transpose(*exact["crossing_time"].dims)
    assert failing(exact.assign(crossing_time=times)) == [
        "at_rest[pairs=4,label_count=4,attention=causal]",
        "at_rest[pairs=4,label_count=4,attention=even]",
    ]


def test_a_reader_that_grows_last_fails(exact):
    """The strengths change places."""
    turned = exact.assign(
        strength_curve=exact["strength_curve"].isel(strength=[2, 1, 0]).assign_coords(strength=exact.strength)
    )
    assert any(found.startswith("readout_first[") for found in failing(turned))


def test_starts_that_stay_at_the_saddle_fail(exact):
    beside = (exact.start > 0.0) & (exact.label_count == N)
    times = xr.where(beside, np.nan, exact["crossing_time"]).transpose(*exact["crossing_time"].dims)
    assert [found.partition("[")[0] for found in failing(exact.assign(crossing_time=times))] == ["escapes"] * 2


@pytest.mark.parametrize(("change", "wanted"), [(0.2, {"escape", "delay"}), (1.1, {"escape"})])
def test_another_time_at_the_saddle_fails(exact, change, wanted):
    times = xr.where(exact.label_count == N, change * exact["crossing_time"], exact["crossing_time"])
    found = failing(exact.assign(crossing_time=times.transpose(*exact["crossing_time"].dims)))
    assert {one.partition("[")[0] for one in found} == wanted


def test_a_drop_as_long_as_the_plateau_fails(exact):
    foot = (exact.loss_level == claim.FOOT) & (exact.label_count > N) & (exact.attention == "causal")
    times = xr.where(foot, 2 * exact["crossing_time"], exact["crossing_time"])
    found = failing(exact.assign(crossing_time=times.transpose(*exact["crossing_time"].dims)))
    assert found == ["drop[pairs=4,label_count=16,attention=causal]"]


def test_it_is_undecided_without_both_numbers_of_labels(exact):
    assert outcome(exact.sel(label_count=[16])) is Outcome.UNDECIDED


@pytest.mark.parametrize(("control", "said"), [("leak_corrected", {"time"}), ("no_context", {"slope"})])
def test_wrong_formulas_fail_in_their_place(exact, control, said):
    theory = theory_under(claim, control)
    assert theory is not None
    found = failing(theory(exact))
    assert {one.partition("[")[0] for one in found} == said
    assert control != "no_context" or all("strength=xi" in one for one in found)


def test_the_limit_of_small_steps():
    rates = np.array([1.6, 0.8, 0.2, 0.4])  # the largest is left out
    times = xr.DataArray(40 + 0.5 * rates + 0.1 * rates**2, dims="rate", coords={"rate": rates})
    times[0] = 0.0
    found = claim.at_rate_zero(times)
    np.testing.assert_allclose(found.value, 40, rtol=1e-12)
    np.testing.assert_allclose(found.error, 0.1 * 0.2 * 0.4, rtol=1e-6)
    few = claim.at_rate_zero(times[2:])
    assert np.isnan([few.value, few.error]).all()


def test_half_of_a_strength():
    curve = xr.DataArray(TIME**2, dims="time", coords={"time": TIME})
    np.testing.assert_allclose(claim.half_time(curve, xr.DataArray(40.0)), 40 / np.sqrt(2), rtol=2e-3)
    assert np.isnan(claim.half_time(curve, xr.DataArray(np.nan)))
    np.testing.assert_allclose(claim.half_time(0 * curve + 8, xr.DataArray(40.0)), 0.0)  # there from the start


def test_the_loss_is_the_landscapes_where_attention_is_even_and_its_own_where_it_is_causal():
    with jax.enable_x64(True):
        w = np.array([1.0, 3.0, 6.0])
        for labels in (4.0, 16.0):
            landscape = induction_landscape.loss(*w, pairs=4, labels=int(labels))
            np.testing.assert_allclose(measure.loss(w, False, labels, pairs=4), landscape, rtol=1e-12)
            np.testing.assert_allclose(measure.loss(w, True, labels, pairs=4), by_hand(w, 4, labels), rtol=1e-12)


def by_hand(strengths, pairs, labels):
    """Causal attention, a token after the other."""
    (beta, alpha, xi), losses = strengths, []
    for query in range(pairs):
        content = [i // 2 if i % 2 == 0 else None for i in range(2 * pairs)] + [query]
        stored = []
        for i in range(2 * pairs + 1):
            weights = np.exp([beta * (j == i - 1) for j in range(i + 1)])
            stored.append(weights @ [content[j] == query for j in range(i + 1)] / weights.sum())
        attention = np.exp(alpha * np.array(stored))
        logits = xi * (attention / attention.sum())[1::2]
        losses.append(np.log(np.exp(logits).sum() + labels - pairs) - logits[query])
    return np.mean(losses)
