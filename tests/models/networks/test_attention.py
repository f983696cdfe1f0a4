"""Attention is the sum it is written as, for every weighting, similarity and normalisation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.models import Attention, Interleaved, Joined
from icllab.models.networks.attention import masked_softmax, rotated

WIDTH, HEADS, DIM = 6, 2, 3
JOINED = Joined(answers="every", causal=True, query_is_key=False)
LAYOUTS = {
    "interleaved": Interleaved(),
    "joined": JOINED,
    "with itself": Joined(answers="every", causal=True, query_is_key=True),
    "last": Joined(answers="last", causal=False, query_is_key=False),
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def bump(q, k):
    return jnp.exp(-jnp.sum((q - k) ** 2)) + q[0]


def by_loops(attention, x, layout, weigh, similarity):
    """The sum over heads and keys, one number at a time."""
    out = np.zeros_like(x)
    q, k, v = (np.einsum("iw,whd->hid", x, np.asarray(w)) for w in (attention.query, attention.key, attention.value))
    for h in range(HEADS):
        for i in range(len(x)):
            keys = np.flatnonzero(layout.visible[i])
            if len(keys):
                weights = weigh(np.array([similarity(q[h, i], k[h, j]) for j in keys]))
                weights = weights / max(layout.examples[i], 1) if attention.normalisation == "examples" else weights
                out[i] += weights @ v[h, keys] @ np.asarray(attention.output[h])
    return out


WEIGHTINGS = {
    "linear": lambda s: s,
    "relu": lambda s: np.maximum(s, 0),
    "exponential": np.exp,
    "softmax": lambda s: np.exp(s) / np.exp(s).sum(),
    jnp.sin: np.sin,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_it_is_the_sum_it_is_written_as(layout, weighting, getkey):
    normalisation = "none" if weighting == "softmax" else "examples"
    attention = Attention(WIDTH, HEADS, weighting=weighting, normalisation=normalisation, scale=0.7, key=getkey())
    layout = LAYOUTS[layout].layout(4)
    x = np.asarray(jax.random.normal(getkey(), (len(layout.visible), WIDTH)))
    wanted = by_loops(attention, x, layout, WEIGHTINGS[weighting], lambda q, k: 0.7 * q @ k)
    run = jax.jit(lambda x: (attention(x, layout), attention(x, layout, rows=layout.read)))
    every, read = run(x)
    np.testing.assert_allclose(every, wanted, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(read, wanted[layout.read], rtol=1e-12, atol=1e-13)


def test_any_function_of_query_and_key(getkey):
    attention = Attention(WIDTH, HEADS, similarity=bump, weighting="linear", dim=5, key=getkey())
    layout = JOINED.layout(3)
    x = np.asarray(jax.random.normal(getkey(), (len(layout.visible), WIDTH)))
    wanted = by_loops(attention, x, layout, lambda s: s, lambda q, k: float(bump(q, k)))
    np.testing.assert_allclose(attention(jnp.asarray(x), layout), wanted, rtol=1e-12, atol=1e-13)


def test_the_scale_is_one_over_the_root_of_the_heads_dimension_unless_given(getkey):
    assert Attention(8, 2, key=getkey()).scale == 0.5
    assert Attention(8, 2, dim=9, key=getkey()).scale == 1 / 3


def test_a_softmax_over_what_is_seen_is_exactly_zero_elsewhere(getkey):
    scores = 1e3 * jax.random.normal(getkey(), (5, 7))
    seen = jax.random.bernoulli(getkey(), 0.5, (5, 7)).at[:, 0].set(True)
    pattern = masked_softmax(scores, seen)
    assert not pattern[~seen].any()
    np.testing.assert_allclose(pattern.sum(axis=1), 1, rtol=1e-14)
    gradient = jax.grad(lambda s: jnp.sum(masked_softmax(s, seen) ** 2))(scores)
    assert not gradient[~seen].any()
    assert np.isfinite(gradient).all()


def test_the_derivative_of_the_softmax_is_that_of_its_formula(getkey):
    scores, seen = jax.random.normal(getkey(), (5, 7)), jnp.tril(jnp.ones((5, 7), bool), 1)

    def formula(s):
        weights = jnp.where(seen, jnp.exp(s), 0)
        return weights / weights.sum(axis=1, keepdims=True)

    def ours(s):
        return masked_softmax(s, seen)

    np.testing.assert_allclose(ours(scores), formula(scores), rtol=1e-13)
    for derivative in (jax.jacfwd, jax.jacrev, lambda f: jax.jacfwd(jax.jacrev(f))):
        np.testing.assert_allclose(derivative(ours)(scores), derivative(formula)(scores), atol=1e-14)


@pytest.mark.parametrize("weighting", ["exponential", "softmax"])
def test_what_is_not_seen_may_overflow(weighting, getkey):
    """A later token with a huge score makes neither values nor gradients that are not finite."""
    attention = Attention(WIDTH, HEADS, weighting=weighting, key=getkey())
    layout = Interleaved().layout(2)
    x = jnp.ones((3, WIDTH)).at[2].set(1e4)
    loss = lambda x: jnp.sum(attention(x, layout)[0] ** 2)  # noqa: E731
    gradient = jax.grad(loss)(x)
    assert np.isfinite(gradient).all()
    assert not gradient[1:].any()


def test_a_token_that_sees_nothing_collects_nothing(getkey):
    for weighting in ("softmax", "exponential"):
        attention = Attention(WIDTH, HEADS, weighting=weighting, key=getkey())
        layout = JOINED.layout(1)
        assert not attention(jnp.ones((1, WIDTH)), layout).any()
        layout = JOINED.layout(3)
        assert not attention(jnp.ones((5, WIDTH)), layout)[2].any()


def test_rotation_makes_products_depend_on_the_difference_of_places(getkey):
    q, k = jax.random.normal(getkey(), (2, 1, 2, 6))
    product = lambda a, b: jnp.sum(rotated(q, np.array([a])) * rotated(k, np.array([b])))  # noqa: E731
    np.testing.assert_allclose(product(3, 1), product(12, 10), rtol=1e-12)
    np.testing.assert_allclose(product(0, 0), jnp.sum(q * k), rtol=1e-12)
    assert abs(float(product(3, 1) - product(1, 3))) > 1e-3
    # The first pair of coordinates turns by one radian a place.
    turned = rotated(jnp.zeros((1, 1, 6)).at[0, 0, 0].set(1.0), np.array([1]))[0, 0]
    np.testing.assert_allclose(turned, [np.cos(1), 0, 0, np.sin(1), 0, 0], atol=1e-15)


def test_the_law_of_the_weights(getkey):
    attention = Attention(100, 4, output_std=0.3, key=getkey())
    # 10 000 weights each: the standard error of a variance is 1.4 percent of it.
    for weight in (attention.query, attention.key, attention.value):
        assert abs(float(jnp.var(weight)) * 100 - 1) < 4 * 0.0142
    assert abs(float(jnp.var(attention.output)) / 0.09 - 1) < 4 * 0.0142


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"heads": 4}, "heads: expected a divisor of the width 6, got 4; or give the head's dimension, dim="),
        ({"weighting": "softmx"}, "weighting: expected linear, relu, exponential, softmax or a function, got 'softmx'"),
        ({"normalisation": "length"}, "unknown normalisation 'length'; known: examples, none"),
        ({"rotary": True}, "dim: expected an even head dimension for rotary positions, got 3"),
    ],
)
def test_bad_fields_are_refused(fields, message, getkey):
    with pytest.raises(InputError, match=message):
        Attention(WIDTH, **({"heads": HEADS} | fields), key=getkey())
