"""What is found out before and beside the chains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.diagnostics import learning_coefficient, local_estimates
from icllab.diagnostics.local_estimates import Sampling, decided


def settings(**other):
    given = {"method": "auto", "batch": 8, "localization": None, "step_size": None, "chains": 4, "warm_up": None}
    given |= {"draws": None, "dispersion": 0.3, "mode": "auto", "control": False, "sensitivity": False}
    return Sampling(**(given | other))


def squares(w, samples):
    return jnp.mean((samples @ w) ** 2) / 2


def test_the_sampler_is_decided_by_cost_and_says_so(getkey):
    data = jax.random.normal(getkey(), (20, 3))
    found = decided(settings(), squares, jnp.ones(3), data, getkey())
    assert (found.method, found.mode) == ("hmc", "vmap")
    assert found.reason.startswith("the whole loss and its gradient take ")
    assert found.mode_reason.startswith("a gradient takes ")
    assert found.steps == (500, 1000)
    asked = decided(settings(method="sgld", mode="map", warm_up=7), squares, jnp.ones(3), data, getkey())
    assert (asked.reason, asked.mode_reason) == ("asked for", "asked for")
    assert asked.steps == (7, 14)


@pytest.mark.slow
def test_the_hessians_share_by_random_probes(monkeypatch):
    """Of a diagonal Hessian, vectors of signs make it exact: the same as written out."""
    h = np.geomspace(1e-4, 1, 12)
    how = {"nbeta": 1000.0, "localization": 1.0, "warm_up": 20, "draws": 20, "key": jax.random.key(0)}
    with jax.enable_x64(True):

        def share():
            return float(
                learning_coefficient(lambda w: jnp.sum(jnp.asarray(h) * w**2) / 2, jnp.zeros(12), **how)[
                    "hessian_share"
                ]
            )

        exact = share()
        monkeypatch.setattr(local_estimates, "MOST_EIGENVALUES", 5)
        assert share() == pytest.approx(exact, rel=1e-9)
        assert 0.1 < exact < 10


@pytest.mark.slow
def test_annealing_is_reached(getkey):
    """lambda of a quadratic in two dimensions is 1; annealing has no chains, and no curve of its own temperatures."""
    with jax.enable_x64(True):

        def asked(**how):
            at = jnp.zeros(2)
            return learning_coefficient(
                lambda w: jnp.stack([w[0] ** 2, w[1] ** 2]) / 2, at, localization=1.0, method="smc", key=getkey(), **how
            )

        found = asked(nbeta=1e5)
        assert found.attrs["method"] == "smc"
        assert found["mcse"] < 0.03
        assert abs(found["estimate"] - 1) < 4 * found["mcse"] + 0.01
        assert "chain_estimate" not in found
        with pytest.raises(InputError, match="nbeta: expected one number with method 'smc'"):
            asked(n=None)
