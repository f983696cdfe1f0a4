"""Hamiltonian Monte Carlo of a Gaussian, and what it is tuned by."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.sampling import gaussian

from icllab.core.errors import InputError
from icllab.diagnostics import HMC
from icllab.diagnostics.sampling import convergence


def drawn(key=3, **how):
    sampler = HMC(**how)
    step = {"step_size": 0.1**2, "warm_up": sampler.warm_up, "mode": "vmap"}
    return sampler.draw(gaussian.target(), jnp.ones((8, 3)), key=jax.random.key(key), **step)


def test_the_moments_of_a_gaussian():
    with jax.enable_x64(True):
        found = drawn(warm_up=300, draws=3000)
        gaussian.require_moments(found)
        # of the harmonic mean over chains, so that the mean is above what was asked for
        assert 0.5 < float(jnp.mean(found.acceptance)) < 0.95


def test_the_length_of_a_trajectory_is_what_is_asked_for():
    """Of one leapfrog step the draws are a random walk; of twelve they are nearly independent."""
    with jax.enable_x64(True):
        traces = [np.asarray(drawn(warm_up=200, draws=500, leapfrogs=count).distance) for count in (1, 12)]
        effective = [convergence.effective_draws(trace) for trace in traces]
    assert effective[1] > 3 * effective[0]


def test_defaults_and_bad_questions():
    assert HMC().steps == (500, 1000)
    assert HMC(warm_up=7).steps == (7, 14)
    assert HMC() == HMC()
    assert HMC(chains=4) != HMC()
    for how, said in (
        ({"leapfrogs": 0}, "leapfrogs: expected an integer of at least 1, got 0"),
        ({"step_size": 0.0}, "step_size: expected a finite number > 0, got 0.0"),
        ({"warm_up": 0}, "warm_up: expected an integer of at least 1, got 0"),
        ({"warm_up": -5}, "warm_up: expected an integer of at least 1, got -5"),
        ({"draws": 0}, "draws: expected an integer of at least 8, got 0"),
        ({"dispersion": float("nan")}, "dispersion: expected a finite number >= 0, got nan"),
        ({"chains": 3}, "chains: expected at least 4, two for each kind of start, got 3"),
        ({"mode": "both"}, "mode: expected 'auto', 'map' or 'vmap', got 'both'"),
    ):
        with pytest.raises(InputError) as error:
            HMC(**how)
        assert str(error.value) == said
    with pytest.raises(TypeError, match=r"unknown argument of .*: 'batch'"):
        HMC(batch=256)
