"""The no-U-turn sampler of blackjax: of a Gaussian, and without the library."""

import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.sampling import gaussian

from icllab.core.errors import EnvironmentFault
from icllab.diagnostics import NUTS

HOW = {"step_size": 0.1**2, "mode": "map"}


def drawn(**how):
    sampler = NUTS(**how)
    return sampler.draw(gaussian.target(), jnp.ones((8, 3)), warm_up=sampler.warm_up, key=jax.random.key(3), **HOW)


@pytest.mark.slow
def test_the_moments_of_a_gaussian():
    pytest.importorskip("blackjax")
    with jax.enable_x64(True):
        gaussian.require_moments(drawn(warm_up=300, draws=1000))


def test_without_blackjax(monkeypatch):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    with pytest.raises(EnvironmentFault, match=r"nuts: expected blackjax, got none; .*pip install -e \S*\[singular\]"):
        NUTS().draw(gaussian.target("float32"), jnp.ones((8, 3)), warm_up=10, key=jax.random.key(3), **HOW)


def test_its_chains_run_one_after_the_other():
    assert NUTS().mode == "map"
    assert NUTS().steps == (500, 1000)
    with pytest.raises(TypeError, match=r"unknown argument of .*: 'mode'"):
        NUTS(mode="vmap")


def test_it_samples_the_posterior(monkeypatch):
    """A library that stands still tells the density it has been given: less nbeta L and half of gamma |w|^2."""

    class State(NamedTuple):
        position: Any

    class Window:
        def __init__(self, algorithm, density, initial_step_size):
            self.found = {"step_size": initial_step_size}

        def run(self, key, start, num_steps):
            return (State(start), self.found), None

    def nuts(density, step_size):
        def step(key, state):
            return state, SimpleNamespace(acceptance_rate=density(state.position))

        return SimpleNamespace(step=step)

    monkeypatch.setitem(sys.modules, "blackjax", SimpleNamespace(window_adaptation=Window, nuts=nuts))
    with jax.enable_x64(True):
        starts = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))
        found = NUTS(warm_up=1, draws=8).draw(gaussian.target(), starts, warm_up=1, key=jax.random.key(0), **HOW)
    square = np.asarray(starts) ** 2
    loss = square @ gaussian.H / 2
    wanted = -gaussian.NBETA * (loss + 1.5) - gaussian.GAMMA * square.sum(1) / 2
    np.testing.assert_allclose(found.acceptance, wanted, rtol=1e-12)
    np.testing.assert_allclose(found.terms[:, :, 0], np.tile(loss[:, None], 8), rtol=1e-12)
