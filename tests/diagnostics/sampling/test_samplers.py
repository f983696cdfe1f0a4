"""What all samplers have in common, and one of its own that an estimate is made with."""

from dataclasses import FrozenInstanceError, dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.questions import ask
from diagnostics.sampling.gaussian import H, quadratic

from icllab import diagnostics
from icllab.diagnostics import HMC, MALA, NUTS, SGLD, SGNHT, SMC, RMSpropSGLD, coefficient_at_temperature
from icllab.diagnostics.sampling.chains import Chains
from icllab.diagnostics.sampling.samplers import ChainSampler, Sampler
from icllab.theory import quadratic_posterior

# A field of another sampler, which would have no effect here.
NEEDLESS = {
    HMC: "batch",
    MALA: "leapfrogs",
    SGLD: "leapfrogs",
    NUTS: "mode",
    SMC: "chains",
    SGNHT: "noise_level",
    RMSpropSGLD: "diffusion",
}


@pytest.mark.parametrize("kind", NEEDLESS)
def test_a_sampler_is_a_value(kind):
    """It is equal to what its own text makes, cannot be changed, and has no fields that it would not look at."""
    sampler = kind()
    assert eval(repr(sampler), vars(diagnostics)) == sampler == kind()
    assert hash(sampler) == hash(kind())
    assert sampler.name == kind.__name__
    assert isinstance(sampler, Sampler)
    with pytest.raises(FrozenInstanceError):
        sampler.leapfrogs = 3
    with pytest.raises(TypeError, match=rf"unknown argument of .*: '{NEEDLESS[kind]}'"):
        kind(**{NEEDLESS[kind]: 3})


@dataclass(frozen=True, kw_only=True)
class Exact(ChainSampler):
    """Independent draws of the Gaussian about zero that the posterior of the quadratic is."""

    chains: int = 4
    warm_up: int = 1
    draws: int | None = 2000
    step_size: float | None = None
    dispersion: float = 0.0
    mode: str = "map"

    def draw(self, target, starts, *, step_size, warm_up, mode, key):
        precision = target.nbeta * jnp.asarray(H) + target.localization
        noise = jax.random.normal(key, (len(starts), self.steps[1], len(H)))
        w = noise / jnp.sqrt(precision)[None, None]
        terms = jax.vmap(jax.vmap(target.loss))(w) - target.loss(target.at)
        distance = jnp.sum(w**2, axis=2)
        return Chains(terms[..., None], distance, jnp.ones(len(starts)), jnp.asarray(step_size), w[:, -1])


def test_a_sampler_of_one_s_own():
    """Draws that are independent have the exact value within four errors, below 2 per cent, and nothing to warn of."""
    with jax.enable_x64(True):
        how = {"checks": (), "nbeta": 700.0, "localization": 0.5, "key": jax.random.key(0)}
        found = ask(coefficient_at_temperature, quadratic, jnp.zeros(3), sampler=Exact(), **how)
    wanted = quadratic_posterior.gaussian_coefficient(H, nbeta=700.0, localization=0.5)
    assert found["mcse"] < 0.02 * wanted
    assert abs(found["estimate"] - wanted) < 4 * found["mcse"]
    assert found.attrs["warnings"] == []
    assert (found.attrs["sampler"], found.attrs["settings"]) == ("Exact", repr(Exact()))
    assert found["ess"] > 5000
    # One over the largest curvature, by power iteration.
    assert float(found["step_size"]) == pytest.approx(1 / (700.0 * H.max() + 0.5), rel=1e-4)
    assert "halved_gap" not in found
    np.testing.assert_array_equal(found["loss_trace"].shape, (4, 2000))
