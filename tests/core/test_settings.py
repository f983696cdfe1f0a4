"""The generator is pinned whatever JAX's settings say, and the precision of products has one name."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.settings import matmul_precision, pinned_generator, rounded_products

SETTINGS = {
    "jax_threefry_partitionable": [False],
    "jax_default_prng_impl": ["rbg", "unsafe_rbg"],
    "jax_random_seed_offset": np.random.default_rng(0).integers(1, 1000, 3).tolist(),
    "jax_high_dynamic_range_gumbel": [True],
}
CHANGES = [(name, value) for name, values in SETTINGS.items() for value in values]
PRECISIONS = ["default", "high", "highest", "bfloat16", "tensorfloat32", "float32", "BF16_BF16_F32", None]


@contextlib.contextmanager
def setting(name, value):
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


def draws():
    key = jax.random.key(3)
    return np.concatenate([jax.random.normal(key, (5,)), jax.random.gumbel(key, (5,))])


@pytest.mark.parametrize(("name", "value"), CHANGES)
def test_no_setting_moves_what_a_pinned_key_draws(name, value):
    usual = draws()
    with setting(name, value):
        assert not np.array_equal(draws(), usual)
        with pinned_generator():
            np.testing.assert_array_equal(draws(), usual)
        assert getattr(jax.config, name) == value
        with pytest.raises(RuntimeError, match="inside"), pinned_generator():
            raise RuntimeError("inside")
        assert getattr(jax.config, name) == value


def test_a_setting_of_the_calling_thread_is_pinned_too():
    usual = draws()
    with jax.threefry_partitionable(False), pinned_generator():
        np.testing.assert_array_equal(draws(), usual)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precisions_of_one_meaning_have_one_name(precision):
    """The name asks JAX for the same product; the names are those that JAX resolves its aliases to."""

    def product():
        x = jax.ShapeDtypeStruct((2, 2), jnp.float32)
        (equation,) = jax.make_jaxpr(lambda a, b: jax.lax.dot(a, b))(x, x).eqns
        precision = equation.params["precision"]
        return {None: (jax.lax.Precision.DEFAULT,) * 2}.get(precision, precision)

    with jax.default_matmul_precision(precision):
        name, computed = matmul_precision(), product()
    with jax.default_matmul_precision("F16_F16_F32"), rounded_products(name):
        assert matmul_precision() == name
        assert product() == computed
    if isinstance(computed, tuple):
        assert computed[0].name.lower() == name
