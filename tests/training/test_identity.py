"""The tree_digest that says whether two trees hold the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.training.checkpoints import tree_digest


def test_equal_trees_have_equal_digests_wherever_their_arrays_are():
    assert tree_digest({"a": jnp.arange(3.0)}) == tree_digest({"a": np.arange(3.0, dtype=jnp.zeros(()).dtype)})
    assert tree_digest(jax.random.key(1)) == tree_digest(jax.random.key(1))
    assert tree_digest({"a": 1, "b": "text"}) == tree_digest({})  # the program has the rest


@pytest.mark.parametrize(
    "other",
    [
        {"a": jnp.arange(3.0).at[1].add(1e-6)},
        {"a": jnp.arange(3)},
        {"a": jnp.arange(3.0)[None]},
        {"b": jnp.arange(3.0)},
        {"a": jnp.arange(3.0), "b": jnp.zeros(0)},
        {"a": -jnp.arange(3.0) * -1 + jnp.asarray([-0.0, 0.0, 0.0])},
    ],
    ids=["value", "type", "shape", "name", "more", "equal"],
)
def test_another_value_type_shape_or_name_is_another_digest(other, request):
    same = request.node.callspec.id == "equal"
    assert (tree_digest({"a": jnp.arange(3.0)}) == tree_digest(other)) == same


def test_keys_differ_by_seed_and_generator():
    keys = [jax.random.key(0), jax.random.key(1), jax.random.key(0, impl="rbg")]
    assert len({tree_digest(key) for key in keys}) == 3
