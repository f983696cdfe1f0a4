"""What is particular to this claim: its check on synthetic data, where it finds a peak, and its sets of prompts."""

import numpy as np
import pytest
import xarray as xr

from icllab.claims.asymptotics.transformer_double_descent import claim
from icllab.experiments import registry
from icllab.experiments.checks import Outcome, worst

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


def outcomes(dataset):
    return {finding.id: finding.outcome for finding in claim.check(dataset)}


def failing(dataset):
    return [name for name, found in outcomes(dataset).items() if found is Outcome.FAILS]


def outcome(dataset):
    return worst(outcomes(dataset).values())


def test_it_holds_where_all_is_as_claimed():
    assert set(outcomes(made_up()).values()) == {Outcome.HOLDS}


@pytest.mark.parametrize("power", [1.4, 2.8])
def test_it_fails_where_the_peak_grows_like_another_power(power):
    assert failing(made_up(power)) == ["slope"]


def test_it_fails_where_the_peak_grows_like_the_dimension():
    """On so narrow a grid only neighbouring dimensions have their peaks inside."""
    dataset = made_up(1.0, noise=0.03).sel(dim=[6, 8])
    found = outcomes(dataset)
    assert found["slope"] is Outcome.FAILS
    assert found["slope_not_one"] is not Outcome.HOLDS


def test_a_dip_is_no_peak():
    """The largest errors are at the ends of the grid, where more of it might show a peak."""
    assert outcome(made_up(height=-0.5, low=0.9)) is Outcome.UNDECIDED


def test_it_fails_where_few_prompts_are_not_fitted():
    found = failing(made_up(training=0.3))
    assert set(found) == {f"{name}[dim={dim}]" for name in ("memorised", "not_all") for dim in DIMS}


def test_it_is_undecided_where_the_data_cannot_tell():
    assert outcome(made_up(at=5.9)) is Outcome.UNDECIDED  # the peak is at the end of the grid
    assert outcome(made_up(noise=1.0)) is Outcome.UNDECIDED
    assert outcome(made_up(seeds=1)) is Outcome.UNDECIDED
    assert outcome(made_up().isel(dim=[0, 1])) is Outcome.UNDECIDED
    assert outcome(made_up(height=0.0)) is Outcome.UNDECIDED


def test_the_place_of_a_peak_is_that_of_a_parabola_and_of_none_at_an_end():
    x = np.log(RATIOS)
    columns = np.stack([1 - (x - place) ** 2 for place in (-0.5, 0.0, 0.7)] + [x, -x], axis=1)
    found, _ = claim.peaks(RATIOS, columns)
    np.testing.assert_allclose(found[:3], [-0.5, 0.0, 0.7], atol=(x[-1] - x[0]) / 1000)
    assert np.isnan(found[3:]).all()
    assert np.isnan(claim.peaks(RATIOS[:3], columns[:3])[0]).all()  # too few points


def test_the_bootstrap_error_of_the_place_is_that_of_repetitions():
    """Over 80 data sets of 12 seeds, the spread of the places and the mean of their stated errors."""
    rng = np.random.default_rng(1)
    clean = 0.5 * np.exp(-((np.log(RATIOS) - 0.2) ** 2) / 1.2)
    found = np.array(
        [claim.located(RATIOS, np.exp(clean[:, None] + 0.1 * rng.normal(size=(len(RATIOS), 12)))) for _ in range(80)]
    )
    spread = found[:, 0].std(ddof=1)  # known to 8 %
    stated = np.mean(found[:, 1])
    assert 0.75 < stated / spread < 1.25
    assert abs(found[:, 0].mean() - 0.2) < 0.1  # the polynomial of degree 4 is not the bell


def test_the_slope_is_exact_on_a_power_law_and_has_the_error_of_least_squares():
    dims, errors = np.array([4.0, 6.0, 9.0, 13.0]), np.array([0.1, 0.05, 0.2, 0.1])
    found, error = claim.slope(dims, 0.3 + 1.7 * np.log(dims), errors)
    np.testing.assert_allclose(found, 1.7, rtol=1e-12)
    design = np.stack([np.ones(4), np.log(dims)], axis=1)
    np.testing.assert_allclose(error, np.sqrt(np.linalg.inv((design.T / errors**2) @ design)[1, 1]), rtol=1e-12)
    places = np.append(0.3 + 1.7 * np.log(dims), np.nan)
    assert claim.slope(np.append(dims, 20.0), places, np.append(errors, np.nan)) == (found, error)


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
