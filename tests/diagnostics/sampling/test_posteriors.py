"""A tempered posterior: its curvature, and a trajectory that runs away."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.sampling.gaussian import GAMMA, NBETA, target

from icllab.diagnostics.sampling.posteriors import ChainState, Posterior, hamiltonian, steepest


def test_what_runs_away_is_not_taken():
    posterior = Posterior(lambda w: jnp.exp(jnp.sum(w**2)), jnp.zeros(2), jnp.asarray(1.0), jnp.asarray(1.0))
    evaluate = jax.vmap(posterior.loss_and_slope)
    w = jnp.full((1, 2), 3.0)
    states = ChainState(w, *evaluate(w))
    found, chance = hamiltonian(posterior, evaluate, states, w, jnp.asarray(1e6), 3, jnp.zeros(1))
    np.testing.assert_array_equal(found.w, w)
    assert float(chance[0]) == 0


def test_the_largest_curvature():
    with jax.enable_x64(True):
        found = float(steepest(target(), key=jax.random.key(1)))
    assert found == pytest.approx(NBETA * 3 + GAMMA, rel=1e-6)
    assert found <= NBETA * 3 + GAMMA + 1e-9
