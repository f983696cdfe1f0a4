"""The landscape once more against the closed form, its flow against the solver's, and fits of a curve it made."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from icllab.diagnostics.curves import flow_fits
from icllab.theory import induction_landscape

TIMES = np.linspace(0, 2, 21)
RATES, START = np.array([20.0, 30.0, 40.0]), np.array([0.3, 0.2, 0.1])


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def test_the_loss_is_the_closed_form():
    w = np.random.default_rng(0).normal(size=(5, 4)) * [1, 2, 5, 1]
    result = jax.jit(jax.vmap(lambda w: flow_fits.landscape_loss(w, 4, 16)))(jnp.asarray(w))
    beta, alpha, xi, beta2 = w.T
    np.testing.assert_allclose(
        result, induction_landscape.loss(beta, alpha, xi, beta2=beta2, pairs=4, labels=16), rtol=1e-12
    )
    equal = jax.jit(lambda w: flow_fits.landscape_loss(w, 4, 4))(jnp.asarray(w[0, :3]))
    np.testing.assert_allclose(equal, induction_landscape.loss(*w[0, :3], pairs=4, labels=4), rtol=1e-12)


def test_the_flow_falls_as_the_closed_form_s_gradient_says():
    """Three records of unlike distance, against SciPy's solver; eight steps of the fourth order are good to 1e-7."""
    times = np.array([0.0, 0.05, 0.2])

    def velocity(_, w):
        return -RATES * np.asarray(induction_landscape.gradient(*w, pairs=4, labels=16))

    exact = solve_ivp(velocity, (0, 0.2), START, t_eval=times, rtol=1e-10, atol=1e-12)
    result = jax.jit(lambda: flow_fits.flow_losses(jnp.asarray(RATES), jnp.asarray(START), times, 4, 16))()
    target = induction_landscape.loss(*exact.y, pairs=4, labels=16)
    assert target[0] - target[-1] > 0.01
    np.testing.assert_allclose(result, target, atol=1e-7)


@pytest.mark.slow
def test_the_flow_is_the_solvers():
    result = flow_fits.flow_losses(jnp.asarray(RATES), jnp.asarray(START), TIMES, 4, 16)
    exact = induction_landscape.flow(START.tolist(), pairs=4, labels=16, time=2.0, rates=RATES.tolist())
    np.testing.assert_allclose(result, np.interp(TIMES, exact.time, exact.loss), atol=3e-3)


@pytest.mark.slow
def test_a_curve_of_the_flow_is_fitted_and_what_is_held_stays():
    curve = np.asarray(flow_fits.flow_losses(jnp.asarray(RATES), jnp.asarray(START), TIMES, 4, 16))
    rng = np.random.default_rng(0)
    starts = np.concatenate([np.log(RATES) + rng.normal(0, 0.5, (8, 3)), START + rng.normal(0, 0.3, (8, 3))], 1)
    free = np.ones_like(starts)
    starts[4:, 0], free[4:, 0] = np.log(60.0), 0.0
    result = flow_fits.fits(np.tile(curve, (8, 1)), TIMES, starts, free, pairs=4, labels=16)
    free_fit, fixed_fit = flow_fits.best(result[:4]), flow_fits.best(result[4:])
    assert free_fit.rmse < 1e-4
    np.testing.assert_allclose(fixed_fit.rates[0], 60.0, rtol=1e-12)
    assert free_fit.rmse < fixed_fit.rmse < 0.1
