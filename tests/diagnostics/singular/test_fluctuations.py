"""The singular fluctuation of Gaussians is known in closed form; of a product of weights, two routes agree."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.questions import ask

from icllab.core.errors import InputError
from icllab.diagnostics import HMC, SGLD, Quadrature, singular_fluctuation

COUNT, DIM, GAMMA = 40, 2, 0.5
CHAINS = HMC(chains=16, warm_up=300, draws=1500)


def gaussian_loss(w, y):
    return jnp.mean(jnp.sum((y - w[None]) ** 2, axis=1)) / 2


def gaussian(route, beta=1.0):
    y = np.random.default_rng(0).normal(size=(COUNT, DIM))
    with jax.enable_x64(True):
        centre = jnp.asarray(y.mean(0))
        how = {"data": jnp.asarray(y), "localization": GAMMA, "key": jax.random.key(0), "nbeta": COUNT * beta}
        return y, singular_fluctuation(ask(route.sample, gaussian_loss, centre, **how))


def closed_form(y, beta):
    """Fluctuation, training loss, criterion and coefficient of the mean of a Gaussian."""
    square = np.sum((y - y.mean(0)) ** 2, axis=1)
    s = 1 / (COUNT * beta + GAMMA)
    variance = s * square + DIM * s**2 / 2
    training = np.mean(DIM / 2 * np.log1p(s) + square / (2 * (1 + s)))
    fluctuation = beta / 2 * variance.sum()
    return fluctuation, training, training + 2 * fluctuation / COUNT, COUNT * beta * DIM * s / 2


NAMES = ("fluctuation", "training_loss", "waic", "estimate")


@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_a_gaussian_by_quadrature(beta):
    y, found = gaussian(Quadrature(points=129), beta)
    np.testing.assert_allclose([float(found[name]) for name in NAMES], closed_form(y, beta), rtol=1e-7)
    s = 1 / (COUNT * beta + GAMMA)
    variances = s * np.sum((y - y.mean(0)) ** 2, axis=1) + DIM * s**2 / 2
    np.testing.assert_allclose(found["sample_variance"], variances, rtol=1e-7)
    assert found.attrs["warnings"] == []


def test_a_gaussian_by_chains():
    """Within three standard errors, each below three per cent of half the dimension."""
    y, found = gaussian(CHAINS)
    for name, wanted in zip(NAMES, closed_form(y, 1.0), strict=True):
        assert float(found[f"{name}_error"]) < 0.03 * DIM / 2
        assert abs(float(found[name]) - wanted) < 3 * float(found[f"{name}_error"]), name
    assert found.attrs["warnings"] == []


def product_loss(w, samples):
    x, y = samples
    return jnp.mean((y - w[0] * w[1] * x) ** 2) / 2


def test_reduced_rank_regression_by_both_routes():
    """One input, one hidden unit, one output, truth zero: the coefficient is 1/2 with m = 2, the fluctuation below."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 100))
    y = y - x * (x @ y) / (x @ x)  # the truth is the minimum
    with jax.enable_x64(True):
        how = {"data": (jnp.asarray(x), jnp.asarray(y)), "localization": 1.0, "nbeta": 100.0, "key": jax.random.key(0)}
        exact = singular_fluctuation(ask(Quadrature(points=201).sample, product_loss, jnp.zeros(2), **how))
        found = singular_fluctuation(ask(CHAINS.sample, product_loss, jnp.zeros(2), **how))
    assert exact.attrs["warnings"] == []
    assert float(exact["fluctuation_error"]) < 1e-4
    for name in NAMES:
        error = float(found[f"{name}_error"])
        assert error < 0.05 * float(exact["fluctuation"])
        assert abs(float(found[name] - exact[name])) < 3 * error, name
    # With p = ab: Var l_i = (x_i y_i)^2 Var p + x_i^4 Var p^2 / 4, as the mean of p and p^3 is zero.
    t = 100 * np.mean(x**2)  # p has the weight exp(-t p^2 / 2), integrated over one of its factors
    a = np.exp(np.linspace(-40, 3, 20001))
    weight = a * np.exp(-(a**2) / 2) / np.sqrt(1 + t * a**2)
    of_p = a**2 / (1 + t * a**2)
    second, fourth = (np.sum(weight * m) / np.sum(weight) for m in (of_p, 3 * of_p**2))
    wanted = np.sum((x * y) ** 2 * second + x**4 / 4 * (fourth - second**2)) / 2
    np.testing.assert_allclose(float(exact["fluctuation"]), wanted, rtol=1e-6)
    np.testing.assert_allclose(float(exact["estimate"]), t * second / 2, rtol=1e-6)


def test_what_is_no_number_of_samples_or_no_mean_is_refused():
    how = {"localization": 1.0, "key": jax.random.key(0), "nbeta": 3.0}
    sample = functools.partial(ask, Quadrature(points=9).sample, gaussian_loss, jnp.zeros(1), **how)
    with pytest.raises(InputError, match="data: expected at least 2 samples"):
        singular_fluctuation(sample(data=jnp.zeros((1, 1))))
    total = lambda w, y: jnp.sum((y - w[None]) ** 2)  # noqa: E731
    with pytest.raises(InputError, match="the mean over samples"):
        ask(Quadrature(points=9).sample, total, jnp.zeros(1), data=jnp.arange(4.0)[:, None], **how)
    with pytest.raises(InputError, match="nbeta: expected"):
        sample(data=jnp.zeros((3, 1)), nbeta=0.0)
    sampler = SGLD(warm_up=8, draws=8)
    with pytest.raises(InputError, match="route: expected"):
        singular_fluctuation(ask(sampler.sample, gaussian_loss, jnp.zeros(1), data=jnp.zeros((3, 1)), **how))
