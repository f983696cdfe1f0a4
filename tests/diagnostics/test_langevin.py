"""Gaussian targets, whose moments are known; and one step of each method against the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.diagnostics import convergence
from icllab.diagnostics.langevin import sample
from icllab.diagnostics.posteriors import Posterior, State, hamiltonian, langevin, steepest
from icllab.theory import quadratic_posterior

H = np.array([3.0, 1.0, 0.2])
NBETA, GAMMA = 7.0, 0.5


def quadratic(w):
    return jnp.sum(jnp.asarray(H, w.dtype) * w**2) / 2 + 1.5


def target(dtype="float64"):
    return Posterior(quadratic, jnp.zeros(3, dtype), jnp.asarray(NBETA, dtype), jnp.asarray(GAMMA, dtype))


@pytest.mark.parametrize("method", ["hmc", pytest.param("mala", marks=pytest.mark.slow), "sgld"])
def test_the_moments_of_a_gaussian(method):
    """Loss and distance within four Monte Carlo errors, each below 3 per cent; of Langevin dynamics with their bias."""
    with jax.enable_x64(True):
        posterior, key = target(), jax.random.key(3)
        epsilon = 0.04
        found = sample(
            posterior,
            jnp.ones((8, 3)),
            method=method,
            step_size=jnp.asarray(epsilon if method == "sgld" else 0.1),
            warm_up=300,
            draws=3000 if method == "hmc" else 20_000,
            key=key,
        )
        step = epsilon if method == "sgld" else 0.0
        wanted = quadratic_posterior.learning_coefficient(H, nbeta=NBETA, localization=GAMMA, step_size=step)
        mean, error = convergence.mean_and_mcse(NBETA * (np.asarray(found.loss) - 1.5))
        assert error < 0.03 * wanted
        assert abs(mean - wanted) < 4 * error
        curvature = NBETA * H + GAMMA
        wanted = np.sum(1 / curvature / (1 - step * curvature / 4))
        mean, error = convergence.mean_and_mcse(np.asarray(found.distance))
        assert error < 0.03 * wanted
        assert abs(mean - wanted) < 4 * error
        if method == "sgld":
            assert float(found.step_size) == epsilon
        else:  # of the harmonic mean over chains, so that the mean is above what was asked for
            assert 0.5 < float(jnp.mean(found.acceptance)) < 0.95
        assert found.loss.shape == found.distance.shape
        assert found.last.shape == (8, 3)


def test_one_leapfrog_step_is_one_of_langevin_dynamics_with_a_test():
    """The same proposal, and the same chance of taking it, from the densities of the two moves."""
    with jax.enable_x64(True):
        posterior = target()
        evaluate = jax.vmap(posterior.loss_and_slope)
        w, noise = jax.random.normal(jax.random.key(0), (2, 50, 3))
        states, size = State(w, *evaluate(w)), jnp.asarray(0.3)
        always = jnp.zeros(50)
        leap, one = hamiltonian(posterior, evaluate, states, noise, size, 1, always)
        step, other = langevin(posterior, evaluate, states, noise, size**2)
        np.testing.assert_allclose(leap.w, step.w, atol=1e-13)
        np.testing.assert_allclose(one, other, atol=1e-12)
        assert 0.01 < float(jnp.mean(one)) < 0.99


def test_what_runs_away_is_not_taken():
    posterior = Posterior(lambda w: jnp.exp(jnp.sum(w**2)), jnp.zeros(2), jnp.asarray(1.0), jnp.asarray(1.0))
    evaluate = jax.vmap(posterior.loss_and_slope)
    w = jnp.full((1, 2), 3.0)
    states = State(w, *evaluate(w))
    found, chance = hamiltonian(posterior, evaluate, states, w, jnp.asarray(1e6), 3, jnp.zeros(1))
    np.testing.assert_array_equal(found.w, w)
    assert float(chance[0]) == 0


def test_the_largest_curvature():
    with jax.enable_x64(True):
        found = float(steepest(target(), key=jax.random.key(1)))
    assert found == pytest.approx(NBETA * 3 + GAMMA, rel=1e-6)
    assert found <= NBETA * 3 + GAMMA + 1e-9
