"""Covariances of weights of two heads, planted in a quadratic loss."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.questions import ask

from icllab.core.errors import InputError
from icllab.diagnostics import HMC, posterior_draws, weight_covariance

NBETA, GAMMA = 200.0, 1.0
PARTS = {"first": lambda w: w["heads"][0], "second": lambda w: w["heads"][1]}


def planted():
    """A precision with an interaction of the heads, and the covariance of the posterior."""
    factor = np.random.default_rng(0).normal(size=(4, 4))
    hessian = factor @ factor.T / 4 + np.eye(4) / 2
    return hessian, np.linalg.inv(NBETA * hessian + GAMMA * np.eye(4))


@pytest.fixture(scope="module")
def draws():
    hessian, _ = planted()
    with jax.enable_x64(True):
        matrix = jnp.asarray(hessian)
        loss = lambda w: jnp.ravel(w["heads"]) @ matrix @ jnp.ravel(w["heads"]) / 2  # noqa: E731
        options = {"nbeta": NBETA, "localization": GAMMA, "key": jax.random.key(0), "sampler": HMC(draws=1500)}
        return ask(posterior_draws, loss, {"heads": jnp.zeros((2, 2))}, **options)


def test_spectra_are_those_of_the_planted_covariance(draws):
    with jax.enable_x64(True):
        covariance = weight_covariance(draws, PARTS)
    _, wanted = planted()
    within = [np.linalg.eigvalsh(wanted[place, place])[::-1] for place in (slice(0, 2), slice(2, 4))]
    between = np.linalg.svd(wanted[:2, 2:], compute_uv=False)
    for name, values in (("eigenvalue", within), ("singular_value", [between])):
        error = covariance[f"{name}_error"].values
        assert (error < 0.1 * np.max(values)).all()
        assert (np.abs(covariance[name].values - values) < 4 * error + 0.01 * np.max(values)).all()
    assert between[0] > 5 * covariance["singular_value_error"][0, 0]
    assert list(covariance["part"].values) == ["first"] * 2 + ["second"] * 2
    assert list(covariance["pair"].values) == ["first, second"]
    assert (covariance["ess"] > 1000).all()
    assert covariance.attrs["warnings"] == []


def test_the_covariance_is_over_all_draws_less_one(draws):
    """Of few draws, with a part that has fewer weights than the other, and parameters of observables."""
    values = np.random.default_rng(1).normal(size=(4, 9, 3))
    observed = {"one": jnp.asarray(values[:, :, 0]), "two": jnp.asarray(values[:, :, 1:])}
    with jax.enable_x64(True):
        few = dataclasses.replace(draws, chains=draws.chains._replace(parameters=observed))
        covariance = weight_covariance(few)
    columns = values.astype(np.float32).astype(float) if observed["one"].dtype == np.float32 else values
    flat = columns.reshape(36, 3)
    wanted = (flat - flat.mean(0)).T @ (flat - flat.mean(0)) / 35
    np.testing.assert_allclose(covariance["covariance"], wanted, rtol=1e-10)
    assert np.isnan(covariance["eigenvalue"].values[0, 1])
    without = [np.cov(np.delete(columns, i, axis=0)[:, :, 0].ravel()) for i in range(4)]
    assert float(covariance["eigenvalue_error"][0, 0]) == pytest.approx(np.sqrt(3) * np.std(without), rel=1e-10)


def test_what_are_no_draws_or_parts_is_refused(draws):
    with pytest.raises(InputError, match="draws: expected draws with observables, got 'none'"):
        weight_covariance(draws)
    with pytest.raises(InputError, match="parts: expected at least one function of parameters, by name"):
        weight_covariance(draws, {})
