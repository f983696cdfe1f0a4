"""Preconditioned Langevin dynamics: its step, its bias in closed form, and what is left of that with slow scales."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.questions import ask
from diagnostics.sampling import gaussian
from diagnostics.sampling.gaussian import GAMMA, NBETA, H, quadratic

from icllab.core.errors import InputError
from icllab.diagnostics import LocalPosterior, RMSpropSGLD, coefficient_at_temperature
from icllab.diagnostics.sampling import convergence

CURVATURE = NBETA * H + GAMMA


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


def test_a_step_is_that_of_the_source():
    w, square, noise = (jnp.asarray(row) for row in ([0.3, -0.2, 0.1], [0.04, 0.0, 1.0], [0.5, -1.0, 2.0]))
    sampler, target, size = RMSpropSGLD(decay=0.9, damping=0.2, noise_level=1.5), gaussian.target(), jnp.asarray(0.01)
    after, later = sampler.advance(target, w, square, target.evaluated(w)[1], size, noise)
    gradient = H * np.asarray(w)
    wanted = 0.9 * np.asarray(square) + 0.1 * gradient**2
    scale = 1 / (0.2 + np.sqrt(wanted))
    drift = 0.005 * scale * (NBETA * gradient + GAMMA * np.asarray(w))
    np.testing.assert_allclose(later, wanted, rtol=1e-12)
    np.testing.assert_allclose(after, w - drift + 1.5 * np.sqrt(0.01 * scale) * np.asarray(noise), rtol=1e-12)


def test_scales_that_follow_the_gradient_bias_the_posterior_as_told():
    """With decay near 0 the density is (lambda + h|w|) e^-U: no correction Gamma. A slow decay has no bias."""
    posterior = LocalPosterior.from_function(quadratic, jnp.zeros(3), nbeta=NBETA, localization=GAMMA)
    fast = RMSpropSGLD(decay=1e-3, warm_up=500, draws=5000, thinning=12).sample(posterior, key=jax.random.key(1))
    slow = RMSpropSGLD(decay=0.9999, warm_up=20_000, draws=5000, thinning=8)
    draws = slow.sample(posterior, key=jax.random.key(1))
    std, mean_size = CURVATURE**-0.5, np.sqrt(2 / np.pi)
    squares = std**2 * (0.1 + 2 * H * std * mean_size) / (0.1 + H * std * mean_size)
    biased = NBETA * np.sum(H * squares) / 2
    mean, error = convergence.mean_and_mcse(NBETA * fast.losses)
    exact = NBETA * np.sum(H / CURVATURE) / 2
    assert error < 0.04 * exact
    assert abs(mean - biased) < 4 * error + 0.01 * exact  # the finite step's
    assert biased > exact + 10 * error
    mean, error = convergence.mean_and_mcse(NBETA * draws.losses)
    assert error < 0.04 * exact
    assert abs(mean - exact) < 4 * error + 0.03 * exact
    for i in range(3):
        mean, error = convergence.mean_and_mcse(np.asarray(draws.parameters[:, :, i]))
        assert abs(mean) < 4 * error


@pytest.mark.slow
def test_an_estimate_on_batches_has_the_known_coefficient():
    """The noise of batches holds the scales nearly still: 3 shares of nbeta h / (nbeta h + gamma), within the bias."""
    rng = np.random.default_rng(0)
    x, noise = jnp.asarray(rng.normal(size=(600, 3))), jnp.asarray(rng.normal(size=600))
    at = jnp.linalg.lstsq(x, noise)[0]
    sampler = RMSpropSGLD(batch=150, warm_up=1000, draws=4000, thinning=2)
    estimate = ask(
        coefficient_at_temperature,
        lambda w, b: jnp.mean((b[0] @ w - b[1]) ** 2) / 2,
        at,
        data=(x, noise),
        nbeta=100.0,
        localization=1.0,
        sampler=sampler,
        key=jax.random.key(0),
    )
    h = np.linalg.eigvalsh(np.asarray(x).T @ np.asarray(x) / 600)
    exact = np.sum(100 * h / (100 * h + 1)) / 2
    assert float(estimate["mcse"]) < 0.05 * exact
    assert abs(float(estimate["estimate"]) - exact) < 4 * float(estimate["mcse"]) + 0.06 * exact
    assert float(estimate["step_size"]) == pytest.approx(0.1 * 0.1 / (100 * h[-1] + 1), rel=0.02)
    assert np.isnan(float(estimate["acceptance"]))
    assert float(estimate["noise_bias"]) > 0
    assert "halved_gap" in estimate


def test_fields_out_of_range_are_refused():
    with pytest.raises(InputError, match="decay: expected a number between 0 and 1, got 1"):
        RMSpropSGLD(decay=1.0)
    with pytest.raises(InputError, match="damping: expected a finite number > 0, got 0"):
        RMSpropSGLD(damping=0.0)
