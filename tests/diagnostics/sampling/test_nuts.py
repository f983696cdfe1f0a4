"""The no-U-turn sampler of blackjax: of a Gaussian, and without the library."""

import sys

import jax
import jax.numpy as jnp
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
    with pytest.raises(EnvironmentFault, match=r"nuts: expected blackjax, got none; pip install 'icl-lab\[singular\]'"):
        NUTS().draw(gaussian.target("float32"), jnp.ones((8, 3)), warm_up=10, key=jax.random.key(3), **HOW)


def test_its_chains_run_one_after_the_other():
    assert NUTS().mode == "map"
    assert NUTS().steps == (500, 1000)
    with pytest.raises(TypeError, match="unexpected keyword argument 'mode'"):
        NUTS(mode="vmap")
