"""Times and widths of curves that are known, and runs that never leave their plateau."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from icllab.core.axes import AXES, QUANTITIES, derived
from icllab.core.errors import InputError
from icllab.diagnostics import kaplan_meier, per_length, transitions
from icllab.diagnostics.curves.transition_times import _Curve, checkpoint_losses
from icllab.tasks import LinearRegression

STEPS = np.arange(0, 3001, 50)


def logistic(centre, slope, low=0.25, high=1.0, steps=STEPS):
    return low + (high - low) / (1 + np.exp(-(steps - centre) / slope))


def curves(rows, steps=STEPS, over="member"):
    return xr.DataArray(np.asarray(rows), dims=(over, "step"), coords={"step": steps})


def test_time_and_width_of_a_known_curve():
    """The 10 to 90 % width of a logistic is 2 ln 9 times its slope; to second order in the distance of the records."""
    result = transitions(curves([logistic(1510, 100), logistic(2000, 60)]), plateau=0.25, end=1.0)
    np.testing.assert_allclose(result["transition_time"], [1510, 2000], atol=1)
    np.testing.assert_allclose(result["transition_width"], 2 * np.log(9) * np.array([100, 60]), rtol=0.03)
    np.testing.assert_allclose(result["relative_width"], result["transition_width"] / result["transition_time"])
    np.testing.assert_array_equal(result["time_resolution"], 50)
    np.testing.assert_allclose(result["plateau_level"], 0.25, atol=0.02)
    assert result["crossed"].all()


def test_the_resolution_is_the_distance_of_the_records_around_each_time():
    at = np.array([0, 10, 30, 70, 150, 310, 630])
    rows = [np.where(at >= place, 1.0, 0.0) for place in (30, 150, 630)]
    result = transitions(curves(rows, at), plateau=0.0, end=1.0)
    np.testing.assert_array_equal(result["time_resolution"], [20, 80, 320])
    np.testing.assert_allclose(result["relative_width"], 0.8 * np.array([20 / 20, 80 / 110, 320 / 470]), rtol=1e-12)


def test_a_line_is_timed_exactly_in_the_step_and_a_logarithm_in_the_logarithm():
    line = curves([STEPS / 3000])
    result = transitions(line, plateau=0.0, end=1.0, level=0.41)
    np.testing.assert_allclose(result["transition_time"], 1230, rtol=1e-12)
    np.testing.assert_allclose(result["transition_width"], 2400, rtol=1e-12)
    at = np.array([1, 10, 100, 1000])
    curve = curves([np.log10(at) / 3], at)
    result = transitions(curve, plateau=0.0, end=1.0, scale="log")
    np.testing.assert_allclose(result["transition_time"], 10**1.5, rtol=1e-12)
    np.testing.assert_allclose(result["transition_width"], 10**2.7 - 10**0.3, rtol=1e-12)


def test_falling_curves_are_the_same():
    rising = transitions(curves([logistic(1510, 100)]), plateau=0.25, end=1.0)
    falling = transitions(curves([-3 * logistic(1510, 100)]), plateau=-0.75, end=-3.0)
    np.testing.assert_allclose(falling["transition_time"], rising["transition_time"], rtol=1e-12)
    np.testing.assert_allclose(falling["transition_width"], rising["transition_width"], rtol=1e-12)


def test_runs_without_a_transition_are_censored_at_their_end_not_dropped():
    flat = np.full(len(STEPS), 0.25)
    short = np.where(STEPS <= 1000, 0.25, np.nan)
    result = transitions(curves([logistic(1500, 50), flat, short]), plateau=0.25, end=1.0)
    np.testing.assert_array_equal(result["crossed"], [True, False, False])
    np.testing.assert_array_equal(np.isnan(result["transition_time"]), [False, True, True])
    np.testing.assert_allclose(result["observed_time"], [1500, 3000, 1000], atol=1)
    np.testing.assert_allclose(result["survival"], [1, 0.5, 0.5])
    lone = kaplan_meier(result["observed_time"].values, result["crossed"].values)
    np.testing.assert_array_equal(result["survival_interval"], lone["survival_interval"])
    np.testing.assert_array_equal(result["plateau_level"][1:], 0.25)


def test_levels_that_are_not_named_are_measured():
    rows = np.array([logistic(c, 40) for c in (1200, 1500, 1800)])
    start = 0.06 + (rows - 0.06) * (1 - np.exp(-STEPS / 100))  # from 1/16 to the plateau at 1/4
    result = transitions(curves(start))
    np.testing.assert_allclose([result.attrs["plateau"], result.attrs["end"]], [0.25, 1.0], atol=5e-3)
    np.testing.assert_allclose(result["transition_time"], [1200, 1500, 1800], atol=2)
    low, high = result["plateau_interval"].values
    assert low < result["plateau_mean"] < high


@pytest.mark.parametrize(("records", "last"), [(61, 6), (20, 2), (9, 1)])
def test_the_end_is_the_mean_of_the_last_tenth_of_the_records(records, last):
    rows = np.random.default_rng(records).normal(size=(3, records))
    result = transitions(curves(rows, STEPS[:records]))
    np.testing.assert_allclose(result["end_level"], rows[:, -last:].mean(axis=1), rtol=1e-12)


def test_noise_is_no_transition():
    noise = np.random.default_rng(0).normal(0.25, 0.01, (4, len(STEPS)))
    assert not transitions(curves(noise))["crossed"].any()
    result = transitions(curves([*noise[:3], logistic(1500, 40) + noise[3] - 0.25]))
    np.testing.assert_array_equal(result["crossed"], [False, False, False, True])
    np.testing.assert_allclose(result["transition_time"][3], 1500, atol=10)


@pytest.mark.parametrize("deviation", [1.0, 3.0])
def test_the_noise_of_a_curve_is_its_standard_deviation(deviation):
    """The estimate from the median of n differences has a relative error of about 1.2 / sqrt(n)."""
    values = np.random.default_rng(0).normal(size=20_000) * deviation
    curve = _Curve.from_records("noise", np.arange(20_000), values + np.linspace(0, 40 * deviation, 20_000))
    assert curve.noise == pytest.approx(deviation, rel=0.03)


def test_noise_before_the_transition_does_not_widen_it():
    """The width begins at the last crossing of its lower edge."""
    curve = logistic(2000, 30)
    curve[5] = 0.45
    result = transitions(curves([curve, logistic(2000, 30)]), plateau=0.25, end=1.0)["transition_width"]
    np.testing.assert_allclose(result[0], result[1], rtol=1e-12)


def test_a_run_is_a_curve():
    """Gradient descent of w^2 from 4: the loss is 16 r^(2t)."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import optax

    import icllab as icl

    class Answer(eqx.Module):
        w: jax.Array

        def __call__(self, prompt):
            return self.w * jnp.ones_like(prompt.y)

    run = icl.fit(
        Answer(jnp.float32(4.0)),
        _zero_task(),
        steps=40,
        key=jax.random.key(0),
        batch=1,
        optimizer=optax.sgd(0.05),
        record="every",
    )
    result = transitions(run, plateau=16.0, end=0.0, level=1 - 1 / 16, edges=(0.1, 0.99))
    np.testing.assert_allclose(result["transition_time"], np.log(1 / 16) / (2 * np.log(0.9)), rtol=5e-3)
    assert result["crossed"].all()


def _zero_task():
    """Labels that are all zero."""
    import jax.numpy as jnp

    from icllab.core.prompt import RegressionPrompt
    from icllab.core.protocols import AbstractTask

    class Zeros(AbstractTask):
        deterministic = True

        def sample(self, *, key):
            return RegressionPrompt(x=jnp.zeros((2, 1)), y=jnp.zeros(2))

        def loss(self, prediction, prompt):
            return (prediction - prompt.y) ** 2

    return Zeros()


def test_names_are_in_the_table_of_axes():
    result = transitions(curves([logistic(1510, 100)]))
    assert set(map(str, result.dims)) <= set(AXES)
    assert all(derived(str(name), QUANTITIES) for name in result.data_vars)
    seeds = transitions(curves([logistic(1510, 100)], over="seed"))
    assert seeds["transition_time"].dims == ("seed",)


@pytest.mark.parametrize(
    ("subject", "fields", "message"),
    [
        (np.zeros(3), {}, "curve: expected a run, a Dataset or a DataArray, got 'ndarray'"),
        (xr.DataArray(np.zeros(3), dims="time"), {}, "curve: expected values over step"),
        (
            xr.DataArray(np.zeros((2, 2, 2)), dims=("seed", "dim", "step")),
            {},
            "curve: expected values over step and one",
        ),
        (
            xr.Dataset({"a": ("step", [1.0]), "b": ("step", [1.0])}),
            {},
            r"curve: expected one variable, got \['a', 'b'\]",
        ),
        (
            xr.Dataset({"a": ("step", [1.0]), "b": ("step", [1.0])}),
            {"variable": "c"},
            "transitions: variable= is now the curve itself",
        ),
        (curves([np.full(len(STEPS), np.nan)]), {}, "curve: expected at least one recorded value"),
        (curves([STEPS]), {"level": 0.95}, "edges: expected two numbers from 0 to 1 around the level 0.95"),
        (curves([STEPS]), {"scale": "sqrt"}, "unknown scale 'sqrt'"),
        (curves([STEPS]), {"plateau": 1.0, "end": 1.0}, "end: expected another level than the plateau, 1"),
    ],
)
def test_what_is_no_curve_is_refused(subject, fields, message):
    with pytest.raises(InputError, match=message):
        transitions(subject, **fields)


TASK = LinearRegression.convention("raventos", dim=2, length=3)


class Scaled(NamedTuple):
    """The mean label so far, the more of it the longer it was trained."""

    factor: float

    def __call__(self, prompt):
        return self.factor * jnp.pad(jnp.cumsum(prompt.y), (1, 0))[:-1]


def test_checkpoints_are_measured_on_the_same_prompts():
    networks = {step: Scaled(100.0 if step <= 500 else 0.0) for step in range(1000, 0, -100)}
    result = transitions(networks, TASK, key=jax.random.key(0))
    assert result["transition_time"].item() == 550
    pairs = transitions(list(networks.items()), TASK, key=jax.random.key(0))
    xr.testing.assert_identical(pairs, result)
    losses = checkpoint_losses(networks, TASK, key=jax.random.key(0))
    assert losses.step.values.tolist() == list(range(100, 1001, 100))
    assert losses[0, 0] == losses[-1, 0]  # before the first label, on the same prompts
    np.testing.assert_array_equal(losses[0], per_length(networks[100], TASK, key=jax.random.key(0)).loss)


def test_checkpoints_that_cannot_be_measured_are_refused():
    key, network = jax.random.key(0), Scaled(1.0)
    for checkpoints, message in (
        ({"step_1.pt": network}, "checkpoints: expected integers, the steps"),
        ({1: network, 2: network}, "checkpoints: expected a network for each step, got 'one network at several steps'"),
        (3, "checkpoints: expected a mapping of steps to networks, got 'int'"),
        ({}, "checkpoints: expected integers, the steps"),
    ):
        with pytest.raises(InputError, match=message):
            transitions(checkpoints, TASK, key=key)
    with pytest.raises(InputError, match=r"need a task and a key: transitions\(checkpoints, task, key=key\)"):
        transitions({1: network})


RECORDED = np.unique(np.round(np.geomspace(1, 4000, 120)))


def convex(rng):
    """A power law, or one to five exponentials."""
    if rng.random() < 0.5:
        return 0.3 + 3 * (RECORDED + 1) ** -rng.uniform(0.2, 1.5)
    rates = np.exp(-rng.uniform(np.log(20), np.log(1500), rng.integers(1, 6)))
    return (rng.uniform(0.2, 1, (len(rates), 1)) * np.exp(-rates[:, None] * RECORDED)).sum(0)


def smooth(rng):
    """One to five falls of which 10 to 90 per cent take a factor of ten in time or more."""
    parts = []
    for tau in np.exp(rng.uniform(np.log(20), np.log(1500), rng.integers(1, 6))):
        wide = np.exp(-((RECORDED / tau) ** rng.uniform(0.5, 1.34)))
        parts.append(rng.uniform(0.2, 1) * (wide if rng.random() < 0.5 else 1 / (1 + (RECORDED / tau) ** 1.9)))
    return np.sum(parts, axis=0)


def planted(rng, width):
    """A logistic fall of so many times its own time from a tenth to nine tenths."""
    time = rng.uniform(600, 2500)
    return 0.3 + 1 / (1 + np.exp(np.clip(4.394 * (RECORDED - time) / (width * time), -50, 50)))


def noisy(rng, curve, correlation, size):
    noise = rng.normal(size=len(curve))
    for i in range(1, len(curve)):
        noise[i] = correlation * noise[i - 1] + (1 - correlation**2) ** 0.5 * noise[i]
    return curve + size * np.ptp(curve) * noise


def found_abrupt(draw, correlation, size, count):
    rng = np.random.default_rng([int(10 * correlation), int(100 * size)])
    curves = (xr.DataArray(noisy(rng, draw(rng), correlation, size), {"step": RECORDED}, "step") for _ in range(count))
    return np.mean([bool(transitions(curve)["abrupt"][0]) for curve in curves])


MANY = [pytest.param(c, s, 300, marks=pytest.mark.slow) for c in (0.0, 0.7) for s in (0.01, 0.03)]


@pytest.mark.parametrize(("correlation", "size", "count"), [(0.7, 0.03, 20), *MANY])
def test_smooth_falls_have_times_but_are_not_abrupt_and_planted_jumps_are(correlation, size, count):
    """At most one null curve in twenty is called abrupt; of jumps of three widths nearly all are."""
    for null in (convex, smooth):
        assert found_abrupt(null, correlation, size, count) <= 0.05
    for width, power in ((0.1, 1.0), (0.5, 1.0), (1.0, 0.7 if correlation else 0.85)):
        assert found_abrupt(lambda rng, width=width: planted(rng, width), correlation, size, count) >= power


def test_concavity_is_a_half_for_a_jump_nothing_for_a_line_and_negative_for_an_exponential():
    t = np.arange(0.0, 2001.0)
    jump, line = np.where(t < 1000, 1.0, 0.0), np.maximum(1 - t / 1000, 0.0)
    # From T/5 to T = 1000 ln 2: the mean of exp(-t/1000) less that of its ends, over the fall.
    ends = np.log(2) * np.array([0.2, 1.0])
    fall = -np.diff(np.exp(-ends))[0]
    exponential = (fall / np.diff(ends)[0] - np.exp(-ends).mean()) / fall
    for curve, value, tolerance in ((jump, 0.5, 2e-3), (line, 0.0, 1e-12), (np.exp(-t / 1000), exponential, 2e-2)):
        result = transitions(xr.DataArray(curve, {"step": t}, "step"), plateau=1.0, end=0.0)
        assert float(result["concavity"][0]) == pytest.approx(value, abs=tolerance)
    assert exponential < -0.04
    assert result.attrs["warnings"] == "1 of 1 curves with a time do not wait before it: a smooth fall has one too"
    rising = transitions(xr.DataArray(1 - jump, {"step": t}, "step"), plateau=0.0, end=1.0)
    assert float(rising["concavity"][0]) == pytest.approx(0.5, abs=2e-3)
    assert rising.attrs["warnings"] == ""


def test_the_error_of_a_concavity_is_its_spread_over_independent_noise():
    rng, fall = np.random.default_rng(5), np.interp(STEPS, [1400, 1600], [1.0, 0.0])
    result = transitions(curves(fall + 0.03 * rng.normal(size=(300, len(STEPS)))), plateau=1.0, end=0.0)
    spread = float(result["concavity"].std(ddof=1))
    assert float(result["concavity_error"].mean()) == pytest.approx(spread, rel=0.25)


def test_what_comes_before_anything_is_recorded_is_not_called_abrupt():
    result = transitions(xr.DataArray([1.0, 0.4, 0.1, 0.0], {"step": [0, 10, 20, 30]}, "step"), plateau=1.0, end=0.0)
    assert np.isnan(result["concavity"][0])
    assert not result["abrupt"][0]
