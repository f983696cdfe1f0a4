"""Every kind of prompt: positions, length, and what a causal predictor may not see."""

import jax
import jax.numpy as jnp
import numpy as np

from icllab.core.prompt import RegressionPrompt, TokenPrompt


def test_regression_prompt():
    a = RegressionPrompt(x=jnp.zeros((4, 2)), y=jnp.zeros(4))
    b = RegressionPrompt(x=jnp.ones((4, 2)), y=jnp.ones(4))
    assert (a.positions, a.length, a.dim) == (4, 3, 2)
    mixed = a.replaced_after(1, b)
    np.testing.assert_array_equal(mixed.x[:, 0], [0, 0, 1, 1])  # the query at position 1 is seen
    np.testing.assert_array_equal(mixed.y, [0, 1, 1, 1])  # its own target is not


def test_token_prompt():
    a, b = TokenPrompt(jnp.zeros(4, jnp.int32)), TokenPrompt(jnp.ones(4, jnp.int32))
    assert (a.positions, a.length) == (3, 2)
    np.testing.assert_array_equal(a.replaced_after(1, b).tokens, [0, 0, 1, 1])


def test_a_batch_of_prompts_keeps_its_position_axis_last_but_one():
    batch = jax.vmap(lambda s: RegressionPrompt(x=s * jnp.ones((4, 2)), y=s * jnp.ones(4)))(jnp.arange(3.0))
    assert (batch.positions, batch.dim) == (4, 2)
