"""The dual form answers as the attention, and its updates are the gradient steps it says they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.constructions import dual_form
from icllab.core.prompt import RegressionPrompt
from icllab.models import LinearAttention

DIM, LENGTH = 3, 5


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    ("causal", "query_is_key", "normalised"), [(False, False, True), (False, True, False), (True, False, True)]
)
def test_the_updated_maps_answer_as_the_attention(causal, query_is_key, normalised, getkey):
    p, q = 0.3 * jax.random.normal(getkey(), (2, 3, DIM + 1, DIM + 1))
    prompt = RegressionPrompt(
        x=jax.random.normal(getkey(), (LENGTH + 1, DIM)), y=jax.random.normal(getkey(), (LENGTH + 1,))
    )
    model = LinearAttention(
        p, q, sign=-1, answers="last", causal=causal, query_is_key=query_is_key, normalised=normalised
    )
    dual = dual_form(model, prompt)
    np.testing.assert_allclose(dual.answer(-1), model(prompt)[0], rtol=1e-12)
    objective = jax.grad(lambda w, v, k: -jnp.sum(v * (k @ w.T)))
    for layer in range(3):
        step = -objective(jnp.eye(DIM + 1), dual.values[layer], dual.keys[layer])
        np.testing.assert_allclose(dual.updates[layer], step, rtol=1e-12, atol=1e-14)
