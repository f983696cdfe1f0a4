"""Coefficients of one block of weights, and of one context, where both are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.questions import ask

from icllab.core.errors import InputError
from icllab.diagnostics import HMC, coefficient_at_temperature

HOW = {"nbeta": 1e4, "localization": 1.0, "checks": (), "sampler": HMC(chains=8, warm_up=300, draws=600)}


def at():
    """A head with a regular block of three, and one whose two weights meet in a product."""
    return {"regular": jnp.zeros(3), "product": jnp.zeros(2), "name": "both"}


def first(w):
    return jnp.sum(w["regular"] ** 2) / 2


def both(w):
    return first(w) + (w["product"][0] * w["product"][1]) ** 2 / 2


def test_the_coefficient_of_a_block_is_its_own():
    """3/2 of the regular one; of the product 1/2 less 1/(log nbeta + 1.50), by the integral of a Bessel function."""
    key = jax.random.key(0)
    with jax.enable_x64(True):
        regular = ask(coefficient_at_temperature, both, at(), weights=lambda w: w["regular"], key=key, **HOW)
        product = ask(coefficient_at_temperature, both, at(), weights=lambda w: w["product"], key=key, **HOW)
        of_context = ask(coefficient_at_temperature, first, at(), key=key, **HOW)
    assert (regular.attrs["parameters"], product.attrs["parameters"]) == (3, 2)
    for found in (regular, of_context):
        assert float(found["mcse"]) < 0.04
        assert abs(float(found["estimate"]) - 1.5) < 3 * float(found["mcse"])
    wanted = 0.5 - 1 / (np.log(8e4) - np.euler_gamma)
    assert float(product["mcse"]) < 0.02
    assert abs(float(product["estimate"]) - wanted) < 4 * float(product["mcse"])


def test_weights_that_are_not_there_or_not_felt_are_refused():
    key = jax.random.key(0)
    with pytest.raises(InputError, match="weights: expected weights that the loss depends on"):
        ask(coefficient_at_temperature, first, at(), weights=lambda w: w["product"], key=key, **HOW)
    with pytest.raises(InputError, match="weights: expected parts with floating-point arrays"):
        ask(coefficient_at_temperature, both, at(), weights=lambda w: w["name"], key=key, **HOW)
    with pytest.raises(InputError, match="weights: expected parts of the tree"):
        ask(coefficient_at_temperature, both, at(), weights=lambda w: w["head"], key=key, **HOW)
