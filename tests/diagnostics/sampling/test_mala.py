"""Langevin dynamics with a test: of a Gaussian, and one step of it from the densities of its two moves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.sampling import gaussian

from icllab.diagnostics import MALA
from icllab.diagnostics.sampling.chains import over_chains
from icllab.diagnostics.sampling.posteriors import ChainState, hamiltonian, langevin


@pytest.mark.slow
def test_the_moments_of_a_gaussian():
    with jax.enable_x64(True):
        sampler = MALA(warm_up=300, draws=20_000)
        step = {"step_size": 0.1**2, "warm_up": 300, "mode": "vmap"}
        found = sampler.draw(gaussian.target(), jnp.ones((8, 3)), key=jax.random.key(3), **step)
        gaussian.require_moments(found)
        # of the harmonic mean over chains, so that the mean is above what was asked for
        assert 0.5 < float(jnp.mean(found.acceptance)) < 0.95


def test_one_leapfrog_step_is_one_of_langevin_dynamics_with_a_test():
    """The same proposal, and the same chance of taking it, from the densities of the two moves."""
    with jax.enable_x64(True):
        posterior = gaussian.target()
        evaluate = over_chains(posterior.loss_and_slope, "vmap")
        w, noise = jax.random.normal(jax.random.key(0), (2, 50, 3))
        states, size = ChainState(w, *evaluate(w)), jnp.asarray(0.3)
        always = jnp.zeros(50)
        leap, one = hamiltonian(posterior, evaluate, states, noise, size, 1, always)
        step, other = langevin(posterior, evaluate, states, noise, size**2)
        np.testing.assert_allclose(leap.w, step.w, atol=1e-13)
        np.testing.assert_allclose(one, other, atol=1e-12)
        assert 0.01 < float(jnp.mean(one)) < 0.99


def test_steps_that_are_asked_for_are_taken():
    assert MALA().steps == (2000, 4000)
    assert MALA(warm_up=7).steps == (7, 14)
    assert MALA(warm_up=7, draws=8).steps == (7, 8)
    with pytest.raises(TypeError, match=r"unknown argument of .*: 'leapfrogs'"):
        MALA(leapfrogs=3)
