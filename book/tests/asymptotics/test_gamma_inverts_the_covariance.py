"""What is particular to this claim: how a matrix is taken apart, and its check on synthetic data."""

import json

import numpy as np
import pytest
import xarray as xr
from judging import theory_under

from iclbook.claims.asymptotics.gamma_inverts_the_covariance import claim
from iclbook.claims.asymptotics.gamma_inverts_the_covariance.measure import best_ridge, decompose, interpolate
from icllab.lab.checks import Outcome
from icllab.theory import linear_attention

DIMS, SETTINGS = np.array([20, 40, 80]), list(claim.SETTINGS)


def blank(seeds):
    axes = {"dim": DIMS, "setting": SETTINGS, "eigenvalue": list(claim.COMMON["eigenvalue"]), "seed": np.arange(seeds)}
    shape = (DIMS.size, len(SETTINGS), len(claim.COMMON["eigenvalue"]), seeds)
    dataset = xr.Dataset({"gamma_diagonal": (tuple(axes), np.full(shape, 0.5))}, coords=axes)
    return claim.theory(dataset.assign_attrs(configuration=json.dumps({"fixed": {}})))


def made_up(noise=0.1, seeds=100, converged=1.0, **shifts):
    """A Dataset that follows the predictions times a shift by name, with 1/d corrections."""
    rng, dataset = np.random.default_rng(0), blank(seeds)
    sources = {
        "fitted_ridge": "fitted_ridge_theory",
        "off_diagonal": "noise_theory",
        "diagonal_misfit": "noise_theory",
        "last_column": "last_column_theory",
    }
    finite = (1 + 3 / DIMS + 10 / DIMS**2)[:, None, None]
    for name, source in sources.items():
        clean = shifts.get(name, 1.0) * dataset[source].transpose("dim", "setting").values[..., None] * finite
        draws = clean * np.exp(noise * rng.normal(size=(DIMS.size, len(SETTINGS), seeds)))
        dataset[name] = (("dim", "setting", "seed"), draws)
    dataset["converged"] = (("dim", "setting", "seed"), np.full((DIMS.size, len(SETTINGS), seeds), converged))
    return dataset


@pytest.mark.parametrize("name", ["fitted_ridge", "off_diagonal", "diagonal_misfit", "last_column"])
def test_it_fails_where_one_of_them_is_not(name):
    findings = claim.check(made_up(**{name: 1.4}))
    failing = [f.id for f in findings if f.outcome is Outcome.FAILS]
    assert failing == [f"{name}[setting={setting}]" for setting in SETTINGS]


def test_few_seeds_tell_the_ridge_and_the_noise_off_the_diagonal_alone():
    found = {finding.id.split("[")[0]: finding.about for finding in claim.check(made_up(seeds=99))}
    assert found == {"fitted_ridge": "claim", "off_diagonal": "claim", "seeds": "data", "solved": "data"}


def test_the_predicted_ridge_is_the_isotropic_one_and_the_wrong_one_lacks_the_effective_part():
    dataset = blank(1)
    wrong = theory_under(claim, "context_noise_alone")(dataset)
    for name in ("few contexts", "with ridge"):
        law = claim.SETTINGS[name]
        q = (1 + law["rho"]) / law["alpha"]
        right = q + linear_attention.effective_ridge(**law)
        np.testing.assert_allclose(dataset.fitted_ridge_theory.sel(setting=name), right, rtol=1e-13)
        np.testing.assert_allclose(wrong.fitted_ridge_theory.sel(setting=name), q, rtol=1e-13)
    same = "correlated inputs"  # endless tasks, no ridge, tau > 1: the effective ridge is zero
    np.testing.assert_array_equal(
        wrong.fitted_ridge_theory.sel(setting=same), dataset.fitted_ridge_theory.sel(setting=same)
    )
    alone = theory_under(claim, "label_noise_alone")(dataset)
    np.testing.assert_array_equal(alone.fitted_ridge_theory, dataset.fitted_ridge_theory)
    assert np.all(alone.noise_theory < 0.6 * dataset.noise_theory)


@pytest.mark.parametrize("ridge", [0.02, 0.3, 5.0])
def test_the_best_ridge_of_a_clean_diagonal_is_its_own(ridge):
    eigenvalues = np.geomspace(0.1, 3, 12)
    found = best_ridge(eigenvalues, eigenvalues / (eigenvalues + ridge))
    np.testing.assert_allclose(found, ridge, rtol=1e-4)


def test_values_between_eigenvalues():
    eigenvalues = np.array([0.1, 1.0, 10.0])
    got = interpolate(eigenvalues, np.log(eigenvalues), (0.05, 0.1, 0.3, 5.0, 20.0))
    np.testing.assert_allclose(got, np.log([np.nan, 0.1, 0.3, 5.0, np.nan]), rtol=1e-13)


@pytest.mark.parametrize("power", [0.5, -0.5])
def test_a_matrix_that_is_the_formula_is_nothing_but_its_ridge(power):
    """The square part Sigma^(-1/2) R (R + nu)^(-1) Sigma^(-1/2), of a rotated R: no noise, unless whitened wrongly."""
    rng, dim, ridge = np.random.default_rng(0), 6, 0.3
    spectrum, second = np.geomspace(0.5, 2.0, dim), np.cov(rng.normal(size=(dim, 40)))
    root = np.diag(np.sqrt(spectrum))
    seen = root @ second @ root
    square = np.linalg.inv(root) @ seen @ np.linalg.inv(seen + ridge * np.eye(dim)) @ np.linalg.inv(root)
    gamma = np.concatenate([square, np.full((dim, 1), 0.2)], axis=1)
    found = decompose(gamma, spectrum, second, (1.0,), power=power)
    np.testing.assert_allclose(found["last_column"], 0.04 * np.sum(spectrum ** (2 * power)), rtol=1e-12)
    if power == 0.5:
        assert found["fitted_ridge"] == pytest.approx(ridge, rel=1e-4)
        assert found["off_diagonal"] == pytest.approx(0, abs=1e-12)
        assert found["diagonal_misfit"] < 1e-9
    else:
        assert found["off_diagonal"] > 1e-3
        assert abs(found["fitted_ridge"] / ridge - 1) > 0.1
