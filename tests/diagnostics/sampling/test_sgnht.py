"""The thermostat: its step, its stationary moments in closed form, and what it does with the noise of batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.questions import ask
from diagnostics.sampling import gaussian
from diagnostics.sampling.gaussian import GAMMA, NBETA, H

from icllab.core.errors import InputError
from icllab.diagnostics import SGLD, SGNHT, coefficient_at_temperature
from icllab.diagnostics.sampling import convergence

CURVATURES = np.linspace(0.5, 3, 20)


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


def test_a_step_is_that_of_the_source():
    w, momentum, noise = (jnp.asarray(row) for row in ([0.3, -0.2, 0.1], [0.02, 0.0, -0.1], [0.5, -1.0, 2.0]))
    target, size, sampler = gaussian.target(), jnp.asarray(0.01), SGNHT(diffusion=0.05)
    memory = (momentum, jnp.asarray(0.2))
    after, (velocity, friction) = sampler.advance(target, w, memory, target.evaluated(w)[1], size, noise)
    start = sampler.memory(jnp.zeros(4000), size, jax.random.key(0))
    wanted = 0.8 * np.asarray(momentum) - 0.01 * (NBETA * H + GAMMA) * np.asarray(w)
    wanted = wanted + np.sqrt(2 * 0.05 * 0.01) * np.asarray(noise)
    np.testing.assert_allclose(velocity, wanted, rtol=1e-12)
    np.testing.assert_allclose(after, np.asarray(w) + wanted, rtol=1e-12)
    assert float(friction) == pytest.approx(0.2 + np.mean(wanted**2) - 0.01, rel=1e-12)
    assert float(jnp.mean(start[0] ** 2)) == pytest.approx(0.01, rel=0.1)
    assert float(start[1]) == 0.05


@pytest.mark.parametrize("diffusion", [0.01, 0.1])
def test_the_moments_of_a_gaussian_have_the_bias_of_the_friction(diffusion):
    r"""P = R (1 - a/2) / (eps h), R proportional to 1/(2 - a - eps h/2) with the mean eps: from the recursion."""
    nbeta, gamma = 50.0, 1.0
    sampler = SGNHT(warm_up=1500, draws=3000, thinning=3, diffusion=diffusion)
    loss = lambda w: jnp.sum(jnp.asarray(CURVATURES) * w**2) / 2  # noqa: E731
    draws = ask(sampler.sample, loss, jnp.zeros(20), nbeta=nbeta, localization=gamma, key=jax.random.key(0))
    parameters, warnings = np.asarray(draws.parameters), draws.warnings()
    curvature = nbeta * CURVATURES + gamma
    kinetic = 1 / (2 - diffusion - draws.first_step * curvature / 2)
    squares = (1 - diffusion / 2) * kinetic / kinetic.mean() / curvature
    wanted, exact = (nbeta * np.sum(CURVATURES * square) / 2 for square in (squares, 1 / curvature))
    mean, error = convergence.mean_and_mcse(nbeta * draws.losses)
    assert error < 0.01 * exact
    assert abs(mean - wanted) < 4 * error
    if diffusion == 0.1:
        assert abs(mean - exact) > 6 * error
    for i in (0, 19):
        mean, error = convergence.mean_and_mcse(parameters[:, :, i])
        assert abs(mean) < 4 * error
    assert warnings == []


@pytest.mark.slow
def test_the_thermostat_takes_up_the_noise_of_batches():
    """Noise of one variance in all directions: the coefficient is right where that of Langevin dynamics is not."""
    rng = np.random.default_rng(0)
    nbeta, gamma, count = 3000.0, 1.0, 20
    data = rng.normal(size=(800, count))
    data = jnp.asarray(data - data.mean(0))
    values = {}
    slow = SGNHT(batch=200, warm_up=100_000, draws=20_000, step_size=2e-6)  # the friction goes from 0.01 to 0.055
    for sampler in (slow, SGLD(batch=20, warm_up=3000, draws=4000)):
        estimate = ask(
            coefficient_at_temperature,
            lambda w, batch: jnp.mean(jnp.sum((w[None] - batch) ** 2, axis=1)) / 2,
            jnp.zeros(count),
            data=data,
            nbeta=nbeta,
            localization=gamma,
            sampler=sampler,
            key=jax.random.key(0),
        )
        values[sampler.name] = (float(estimate["estimate"]), float(estimate["mcse"]), estimate)
    exact = count * nbeta / (nbeta + gamma) / 2
    value, error, estimate = values["SGNHT"]
    assert error < 0.02 * exact
    assert abs(value - exact * (1 - 0.055 / 2)) < 4 * error
    assert "noise_bias" not in estimate
    assert values["SGLD"][0] > 1.5 * exact


def test_a_thermostat_has_no_noise_level():
    with pytest.raises(TypeError, match="noise_level"):
        SGNHT(noise_level=2.0)
    with pytest.raises(InputError, match="diffusion: expected a finite number > 0, got 0"):
        SGNHT(diffusion=0)
