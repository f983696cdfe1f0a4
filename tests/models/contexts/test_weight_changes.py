"""The best change of weights for all queries: least squares, of least norm, with or without a bias."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.models.contexts.weight_changes import SplitDense, WeightChange, best_change
from icllab.models.networks.dense import Dense

RNG = np.random.default_rng(1)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def drawn(*shape):
    return jnp.asarray(RNG.normal(size=shape))


def test_a_change_that_is_affine_is_found_and_one_that_is_linear_misses_its_offset():
    inputs, truth = drawn(20, 4) + 1, WeightChange(drawn(4, 3), drawn(3))
    wanted = truth(inputs)
    found = best_change(inputs, wanted, affine=True)
    np.testing.assert_allclose(found.weight, truth.weight, rtol=1e-10)
    np.testing.assert_allclose(found.bias, truth.bias, rtol=1e-10)
    assert float(found.residual(inputs, wanted)) < 1e-24
    linear = best_change(inputs, wanted, affine=False)
    np.testing.assert_array_equal(linear.bias, np.zeros(3))
    assert float(linear.residual(inputs, wanted)) > 1e-3


def test_what_is_left_is_orthogonal_to_the_inputs_and_a_fraction_of_what_was_wanted():
    inputs, wanted = drawn(20, 4), drawn(20, 3)
    linear, affine = (best_change(inputs, wanted, affine=affine) for affine in (False, True))
    np.testing.assert_allclose(inputs.T @ (wanted - linear(inputs)), 0, atol=1e-12)
    np.testing.assert_allclose(jnp.mean(wanted - affine(inputs), axis=0), 0, atol=1e-13)
    left = [float(jnp.sum((wanted - change(inputs)) ** 2) / jnp.sum(wanted**2)) for change in (linear, affine)]
    np.testing.assert_allclose([linear.residual(inputs, wanted), affine.residual(inputs, wanted)], left, rtol=1e-12)
    assert left[1] < left[0] < 1
    np.testing.assert_allclose(WeightChange(0 * linear.weight, 0 * linear.bias).residual(inputs, wanted), 1)


def test_of_one_row_it_has_rank_one_and_the_least_norm():
    inputs, wanted = drawn(1, 4), drawn(1, 3)
    found = best_change(inputs, wanted, affine=False)
    least = jnp.outer(inputs[0], wanted[0]) / jnp.sum(inputs**2)
    np.testing.assert_allclose(found.weight, least, rtol=1e-12)
    values = found.singular_values
    assert values[1] < 1e-15 * values[0]


def test_a_split_layer_is_the_same_map_and_its_rows_change_it_along_the_directions():
    layer, directions, x = Dense(5, 3, key=jax.random.key(0)), drawn(5, 2), drawn(7, 5)
    split = SplitDense.from_dense(layer, directions)
    np.testing.assert_allclose(split(x), layer(x), rtol=1e-5)
    moved = eqx.tree_at(lambda dense: dense.rows, split, split.rows + drawn(2, 3))
    gain = moved(x) - split(x)
    assert np.linalg.matrix_rank(gain, tol=1e-6) == 2
    across = x - x @ directions @ jnp.linalg.pinv(directions)  # what the directions do not have is not felt
    np.testing.assert_allclose(moved(across), split(across), atol=1e-6)
