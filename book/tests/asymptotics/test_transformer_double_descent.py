"""What is particular to this claim: its check on synthetic data, where it finds a peak, and its sets of prompts."""

import numpy as np
import pytest
import xarray as xr
from judging import judged, theory_under

import icllab as icl
from iclbook.claims.asymptotics._statistics import peak
from iclbook.claims.asymptotics.transformer_double_descent import claim
from icllab.lab import registry
from icllab.lab.checks import Outcome

DIMS, RATIOS = np.array([4, 6, 8, 12]), np.array(claim.RATIOS)


def made_up(power=2.0, height=0.5, noise=0.08, seeds=12, training=1e-9, low=0.3, at=1.3):
    """Errors with a peak at n = at d^power (d = 7 apart), training errors that leave ``training`` there."""
    rng = np.random.default_rng(0)
    centre = np.log(at) + (power - 2) * np.log(DIMS / 7)
    away = np.log(RATIOS)[None] - centre[:, None]
    logarithms = low + height * np.exp(-(away**2) / 1.2)
    samples = logarithms[..., None] + noise * rng.normal(size=(*logarithms.shape, seeds))
    fitted = np.where(away < 0, training, 0.2)[..., None] * np.exp(0.3 * rng.normal(size=samples.shape))
    dims = ("dim", "epochs", "prompt_ratio", "seed")
    return claim.theory(
        xr.Dataset(
            {"icl_error": (dims, np.exp(samples)[:, None]), "training_error": (dims, fitted[:, None])},
            coords={"dim": DIMS, "epochs": [16000], "prompt_ratio": RATIOS, "seed": np.arange(seeds)},
        )
    )


outcomes, failing, outcome = judged(claim.check)


@pytest.mark.parametrize("power", [1.4, 2.8])
def test_it_fails_where_the_peak_grows_like_another_power(power):
    assert failing(made_up(power)) == ["slope"]


def test_it_fails_where_the_peak_grows_like_the_dimension():
    """On so narrow a grid only neighbouring dimensions have their peaks inside."""
    dataset = made_up(1.0, noise=0.03).sel(dim=[6, 8])
    assert outcomes(dataset)["slope"] is Outcome.FAILS
    like_d = theory_under(claim, "like_d")(dataset)
    assert {f.id: f.outcome for f in claim.check(like_d)}["slope"] is not Outcome.FAILS


def test_a_slope_that_agrees_with_two_is_told_from_one():
    """At 1.4 ± 0.2 it is near enough to both."""
    assert outcomes(made_up(noise=0.2, seeds=6))["slope"] is Outcome.UNDECIDED


def test_a_dip_is_no_peak():
    """The largest errors are at the ends of the grid, where more of it might show a peak."""
    assert outcome(made_up(height=-0.5, low=0.9)) is Outcome.UNDECIDED


def test_it_fails_where_few_prompts_are_not_fitted():
    found = failing(made_up(training=0.3))
    assert set(found) == {f"{name}[dim={dim}]" for name in ("memorised", "not_all") for dim in DIMS}


def measured(getkey, **changes):
    experiment = registry.load("asymptotics/transformer_double_descent").with_fixed({"prompts": [64], "batch": [4]})
    grid = experiment.grid("smoke", {"dim": [2], "epochs": [100], "prompt_ratio": [0.5, 2.0]}, seeds=2)
    return experiment.measure(experiment.point(next(grid.cells()), grid.traced), key=getkey(), **changes)


@pytest.mark.slow
def test_each_number_of_prompts_is_trained_and_judged_on_its_own(getkey):
    found = measured(getkey)
    assert {dims for dims, _ in found.values()} == {("seed", "prompt_ratio")}
    error, training = found["icl_error"][1], found["training_error"][1]
    assert error.shape == training.shape == (2, 2)
    assert (error[:, 0] != error[:, 1]).all()
    assert (training[:, 0] != training[:, 1]).all()
    assert (training > 0).all()


@pytest.mark.slow
def test_in_the_control_all_are_trained_on_the_same_set(getkey):
    error = measured(getkey, everything=True)["icl_error"][1]
    np.testing.assert_array_equal(error[:, 0], error[:, 1])


def test_the_constant_of_the_peak_is_that_of_the_page():
    """n/d^2 at the peak of the recorded data does not depend on d, is 1.2, and above linear attention's 1."""
    errors = icl.recorded("asymptotics/transformer_double_descent", "small")["icl_error"].isel(epochs=-1)
    curves = errors.transpose("dim", "prompt_ratio", "seed").values
    place, error = np.array([peak(errors.prompt_ratio.values, curve) for curve in curves]).T
    weights = error**-2
    logarithm, uncertainty = np.average(place, weights=weights), weights.sum() ** -0.5
    assert uncertainty < 0.03
    assert np.sum(weights * (place - logarithm) ** 2) < 9.2  # chi squared of 2 degrees of freedom: p = 0.01
    assert logarithm > 3 * uncertainty
    np.testing.assert_allclose(np.exp(logarithm), 1.22, atol=0.01)
