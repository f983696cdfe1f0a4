"""What is particular to this claim: its check on synthetic data, and every predictor on a few draws."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.asymptotics._tables import FITTED, diabetes
from iclbook.claims.asymptotics.real_table import claim
from iclbook.claims.asymptotics.real_table import measure as measuring
from iclbook.claims.asymptotics.real_table.measure import measure
from icllab.core.prompt import RegressionPrompt
from icllab.lab.checks import Outcome

LENGTHS = np.array([5, 10, 11, 12, 40])
LENGTHS_THERE = xr.DataArray(LENGTHS, {"length": LENGTHS}, "length")
PREDICTORS = [*FITTED, "least squares", "ridge"]
RIDGE = np.array([1.0, 0.8, 0.7, 0.7, 0.6])


def made_up(peak_at=11, at_the_peak=1000.0, explained=0.4, lead=0.1, noise=0.3, draws=400):
    """Errors like the table's: least squares with a peak of choice, ridge falling, neighbours ``lead`` above ridge."""
    rng = np.random.default_rng(0)
    ridge = RIDGE * (1 - explained) / RIDGE[-1]
    least = np.where(peak_at == LENGTHS, at_the_peak, [2.0, 4.0, 4.0, 4.0, 0.5]) * ridge / RIDGE
    means = np.stack([ridge + lead] * 3 + [least, ridge])
    scatter = rng.gamma(1 / noise, noise, size=(len(PREDICTORS), LENGTHS.size, draws))
    dataset = xr.Dataset(
        {"table_error": (("dim", "predictor", "length", "seed"), (means[..., None] * scatter)[None])},
        coords={"dim": [10], "predictor": PREDICTORS, "length": LENGTHS, "seed": np.arange(draws)},
    )
    return claim.theory(dataset)


outcomes, _, outcome = judged(claim.check)


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS


@pytest.mark.parametrize("peak_at", [10, 12])
def test_it_fails_where_the_peak_is_elsewhere(peak_at):
    assert outcomes(made_up(peak_at=peak_at))["peak[dim=10]"] is Outcome.FAILS


def test_it_fails_where_ridge_is_as_bad_as_least_squares():
    failing = made_up()
    errors = failing["table_error"].copy()
    errors.loc[{"predictor": "ridge", "length": 11}] = errors.sel(predictor="least squares", length=11)
    assert outcomes(failing.assign(table_error=errors))["ridge[dim=10]"] is Outcome.FAILS


def test_it_fails_where_ridge_explains_nothing():
    assert outcomes(made_up(explained=-0.1))["ridge_explains"] is Outcome.FAILS


def test_it_fails_where_another_predictor_is_better():
    """With few examples or with many."""
    for part, lengths in (("few", [5, 10, 11]), ("many", [12, 40])):
        worlds = made_up(), made_up(lead=-0.3)
        errors = xr.where(LENGTHS_THERE.isin(lengths), *(world["table_error"] for world in worlds[::-1]))
        found = outcomes(worlds[0].assign(table_error=errors))
        assert found[f"ridge_leads_{part}[predictor=5 neighbours]"] is Outcome.FAILS
        assert list(found.values()).count(Outcome.FAILS) == len(FITTED)


def test_an_answer_that_is_exactly_right_has_a_logarithm():
    """Targets are whole numbers, and a mean of some of them can be one too."""
    dataset = made_up()
    errors = dataset["table_error"].copy()
    errors.loc[{"seed": 0}] = 0.0
    assert all(np.isfinite(f.measured) for f in claim.check(dataset.assign(table_error=errors)))


def test_the_peak_is_at_the_rank_of_the_centred_table_plus_one():
    """l centred examples have rank l - 1; all the table's columns are independent of each other and of 1."""
    data = diabetes().data
    for dim in (5, 10):
        x = data[:, :dim]
        assert np.linalg.matrix_rank((x - x.mean(0)) / x.std(0)) == dim
        dataset = claim.theory(xr.Dataset(coords={"dim": [dim]}))
        assert int(dataset.peak_theory[0]) == dim + 1


def test_every_predictor_on_a_few_draws(getkey):
    """Finite, positive, and no two alike: the same draws answered in as many ways."""
    experiment, key = claim.claim, getkey()
    grid = experiment.grid("small", {"dim": [5], "length": [5, 12]}, seeds=3)
    with jax.enable_x64(True):
        point = experiment.point(next(grid.cells()), grid.traced)
        measured = measure(point, key=key)
        point.seed, point.predictor = (2,), claim.COMPILED
        alone = measure(point, key=key)["table_error"][1]
    dims, errors = measured["table_error"]
    assert dims == ("predictor", "length", "seed")
    assert errors.shape == (len(claim.ALL), 2, 3)
    assert np.isfinite(errors).all()
    assert (errors > 0).all()
    assert len({tuple(row.ravel()) for row in errors}) == len(claim.ALL)
    np.testing.assert_array_equal(alone, errors[:3, :, 2:])  # a draw does not depend on those beside it


@pytest.mark.parametrize("explained", [None, 0.25])
def test_ridge_is_the_posterior_mean_of_the_fraction_that_is_explained(monkeypatch, explained):
    """Labels of variance one, h of it from weights: E[y' | y] by their covariance, x x'h/d and 1 - h of noise."""
    shown = {}

    def drawn(table, predictors, *_):
        shown.update(predictors)
        return None, {"ridge": np.zeros((2, 8))}

    monkeypatch.setattr(measuring, "_evaluate", drawn)
    point = SimpleNamespace(dim=5, length=(7,), predictor=("ridge",), seed=(0, 1), explained=0.4)
    with jax.enable_x64(True):
        measure(point, key=jax.random.key(0), explained=explained)
        rng, h = np.random.default_rng(0), explained or 0.4
        x, y = rng.normal(size=(8, 5)), rng.normal(size=8)
        found = shown["ridge"](RegressionPrompt(jnp.asarray(x), jnp.asarray(y)))[-1]
    covariance = h / 5 * x @ x.T
    known = covariance[:7, :7] + (1 - h) * np.eye(7)
    np.testing.assert_allclose(found, covariance[7, :7] @ np.linalg.solve(known, y[:7]), rtol=1e-10)
