"""Positive random features: without bias, of the variance that is told, and a context as sums that add."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.models.contexts.random_features import ContextSums, PositiveFeatures

RNG = np.random.default_rng(2)
DIM, TOKENS, OWN, QUERIES = 3, 6, 3, 2


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def drawn(*shape, size=0.5):
    return size * RNG.normal(size=shape)


def head():
    """Queries, keys and values of a context and of what follows it, and the whole attention by its formula."""
    queries, keys, own = drawn(QUERIES, DIM), drawn(TOKENS, DIM), drawn(OWN, DIM)
    values, own_values = drawn(TOKENS, 4), drawn(OWN, 4)
    visible = np.array([[True, True, False], [True, True, True]])
    weights = np.concatenate([np.exp(queries @ keys.T), np.where(visible, np.exp(queries @ own.T), 0)], axis=1)
    exact = weights @ np.concatenate([values, own_values]) / weights.sum(axis=1, keepdims=True)
    parts = (queries, (keys, values), (own, own_values, visible))
    return (*jax.tree.map(jnp.asarray, parts), exact)


@jax.jit
def products_of(directions, queries, keys):
    """The product of all features, and the relative variance that is told of one."""
    features, one = PositiveFeatures(directions), PositiveFeatures(directions[:1])
    return (features(queries) @ features(keys).T)[0, 0], one.relative_variance(queries, keys)[0, 0]


def test_features_have_the_mean_and_the_variance_of_the_formula():
    """Products of one feature each: their mean is the exponential, within four standard errors that are small."""
    query, key, count = drawn(DIM, size=0.3), drawn(DIM, size=0.3), 20_000
    directions = RNG.normal(size=(count, DIM))
    features = (np.exp(directions @ x - np.sum(x**2) / 2) for x in (query, key))
    products = np.prod(list(features), axis=0)
    mean, relative = products_of(*map(jnp.asarray, (directions, query[None], key[None])))
    np.testing.assert_allclose(mean, products.mean(), rtol=1e-12)
    exact, error = np.exp(query @ key), products.std() / count**0.5
    assert error < 0.01 * exact
    assert abs(products.mean() - exact) < 4 * error
    told, squares = float(relative) * exact**2, (products - exact) ** 2
    spread = squares.std() / count**0.5
    assert spread < 0.05 * told
    assert abs(squares.mean() - told) < 4 * spread


def test_the_error_of_attention_falls_as_one_over_the_root_of_the_number_of_features():
    queries, context, own, exact = head()
    counts, repeats = np.array([64, 512, 4096]), 40
    attend = jax.jit(lambda w: ContextSums.from_tokens(PositiveFeatures(w), *context).attend(queries, *own))
    squared = [
        [float(jnp.mean((attend(jnp.asarray(drawn(count, DIM, size=1.0))) - exact) ** 2)) for _ in range(repeats)]
        for count in counts
    ]
    logs = np.log(np.mean(squared, axis=1)) / 2
    errors = np.std(squared, axis=1) / np.mean(squared, axis=1) / repeats**0.5 / 2
    slope = (logs[-1] - logs[0]) / np.log(counts[-1] / counts[0])
    of_slope = np.hypot(errors[0], errors[-1]) / np.log(counts[-1] / counts[0])
    assert of_slope < 0.05
    assert abs(slope + 0.5) < 4 * of_slope


@jax.jit
def sums(directions, queries, keys, values, own, visible):
    """The sums of a context at once and in two parts, what is collected of it, and the features."""
    features = PositiveFeatures(directions)
    whole = ContextSums.from_tokens(features, keys, values)
    parts = ContextSums.from_tokens(features, keys[:2], values[:2]).extended(keys[2:], values[2:])
    return whole, parts, whole.attend(queries, own, jnp.zeros((OWN, 4)), visible), features(queries) @ features(keys).T


def test_sums_are_weights_whose_number_does_not_depend_on_the_context_and_which_add():
    queries, (keys, values), (own, _, visible), _ = head()
    whole, parts, attention, weights = sums(jnp.asarray(drawn(8, DIM)), queries, keys, values, own, visible)
    for name in ("value_sum", "normaliser"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-13)
    assert whole.value_sum.size + whole.normaliser.size == 8 * 5
    # With an exponential of the features it is attention: positive weights that sum to one.
    rest = np.where(visible, np.exp(np.asarray(queries) @ np.asarray(own).T), 0).sum(axis=1)
    weights = np.asarray(weights)
    np.testing.assert_allclose(
        attention, weights @ np.asarray(values) / (weights.sum(axis=1) + rest)[:, None], rtol=1e-12
    )


def test_a_number_of_features_that_is_none_is_refused():
    with pytest.raises(InputError, match="features: expected an integer of at least 1, got 0"):
        PositiveFeatures.init(0, dim=3, key=jax.random.key(0))
