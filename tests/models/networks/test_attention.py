"""Attention is the sum it is written as, for every weighting, similarity and normalisation."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.models import Attention, Interleaved, Joined, Rotary
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


@eqx.filter_jit
def built(key, **fields):
    """Attention with fields, as one program."""
    return Attention(WIDTH, HEADS, **fields, key=key)


def applied(attention, x, layout):
    return np.asarray(jax.jit(lambda x: attention(x, layout))(x))


def tokens(count):
    return np.random.default_rng(count).normal(size=(count, WIDTH))


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
    attention = built(getkey(), weighting=weighting, normalisation=normalisation, scale=0.7)
    layout = LAYOUTS[layout].layout(4)
    x = tokens(len(layout.visible))
    wanted = by_loops(attention, x, layout, WEIGHTINGS[weighting], lambda q, k: 0.7 * q @ k)
    every, read = jax.jit(lambda x: (attention(x, layout), attention(x, layout, rows=layout.read)))(x)
    np.testing.assert_allclose(every, wanted, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(read, wanted[layout.read], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("kv_heads", "window"), [(1, None), (2, 1), (2, 2), (4, 3)])
def test_neighbouring_heads_share_keys_and_a_window_ends(kv_heads, window, getkey):
    """Heads 0 and 1 have the first of two keys and values; a window of one is the token itself."""
    attention = eqx.filter_jit(Attention)(WIDTH, 4, dim=DIM, kv_heads=kv_heads, window=window, key=getkey())
    layout = Interleaved().layout(3)
    x = tokens(len(layout.visible))
    q, k, v = (np.einsum("iw,whd->hid", x, np.asarray(w)) for w in (attention.query, attention.key, attention.value))
    wanted = np.zeros_like(x)
    for h in range(4):
        shared = h * kv_heads // 4
        for i in range(len(x)):
            keys = [j for j in range(i + 1) if window is None or i - j < window]
            weights = WEIGHTINGS["softmax"](k[shared, keys] @ q[h, i] / DIM**0.5)
            wanted[i] += weights @ v[shared, keys] @ np.asarray(attention.output[h])
    np.testing.assert_allclose(applied(attention, x, layout), wanted, rtol=1e-12, atol=1e-13)


def test_any_function_of_query_and_key(getkey):
    attention = built(getkey(), similarity=bump, weighting="linear", dim=5)
    layout = JOINED.layout(3)
    x = tokens(len(layout.visible))
    wanted = by_loops(attention, x, layout, lambda s: s, lambda q, k: np.exp(-np.sum((q - k) ** 2)) + q[0])
    np.testing.assert_allclose(applied(attention, x, layout), wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("layout", ["interleaved", "joined"])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_a_window_shows_the_last_positions(layout, window, getkey):
    """The position itself is the first of them; a key that is `window` positions back is not seen."""
    attention = built(getkey(), window=window)
    layout = LAYOUTS[layout].layout(4)
    place = np.asarray(layout.place)
    near = place[:, None] - place[: layout.visible.shape[1]] < window
    near_layout = layout._replace(visible=layout.visible & near)
    x = tokens(len(layout.visible))
    expected = by_loops(attention, x, near_layout, WEIGHTINGS["softmax"], lambda q, k: DIM**-0.5 * q @ k)
    np.testing.assert_allclose(applied(attention, x, layout), expected, rtol=1e-12, atol=1e-13)


def test_the_scale_is_one_over_the_root_of_the_heads_dimension_unless_given(getkey):
    assert built(getkey()).scale == (WIDTH / HEADS) ** -0.5
    assert built(getkey(), dim=9).scale == 1 / 3


def test_a_softmax_over_what_is_seen_is_exactly_zero_elsewhere():
    rng = np.random.default_rng(0)
    scores, seen = 1e3 * rng.normal(size=(5, 7)), rng.random((5, 7)) < 0.5
    seen[:, 0] = True

    @jax.jit
    def with_gradient(scores):
        mask = jnp.asarray(seen)
        squares = jax.grad(lambda s: jnp.sum(masked_softmax(s, mask) ** 2))
        return masked_softmax(scores, mask), squares(scores)

    pattern, gradient = map(np.asarray, with_gradient(scores))
    assert not pattern[~seen].any()
    np.testing.assert_allclose(pattern.sum(axis=1), 1, rtol=1e-14)
    assert not gradient[~seen].any()
    assert np.isfinite(gradient).all()


def test_the_derivative_of_the_softmax_is_that_of_its_formula():
    scores, seen = np.random.default_rng(0).normal(size=(5, 7)), np.tril(np.ones((5, 7), bool), 1)

    def formula(s):
        weights = jnp.where(seen, jnp.exp(s), 0)
        return weights / weights.sum(axis=1, keepdims=True)

    def ours(s):
        return masked_softmax(s, jnp.asarray(seen))

    @jax.jit
    def of_both(scores):
        derivatives = (lambda f: f, jax.jacfwd, jax.jacrev, lambda f: jax.jacfwd(jax.jacrev(f)))
        return [(derivative(ours)(scores), derivative(formula)(scores)) for derivative in derivatives]

    (found, wanted), *derivatives = of_both(scores)
    np.testing.assert_allclose(found, wanted, rtol=1e-13)
    for found, wanted in derivatives:
        np.testing.assert_allclose(found, wanted, atol=1e-14)


@pytest.mark.parametrize("weighting", ["exponential", "softmax"])
def test_what_is_not_seen_may_overflow(weighting, getkey):
    """A later token with a huge score makes neither values nor gradients that are not finite."""
    attention = built(getkey(), weighting=weighting)
    layout = Interleaved().layout(2)
    x = np.ones((3, WIDTH))
    x[2] = 1e4
    gradient = np.asarray(jax.jit(jax.grad(lambda x: jnp.sum(attention(x, layout)[0] ** 2)))(x))
    assert np.isfinite(gradient).all()
    assert not gradient[1:].any()


def test_a_token_that_sees_nothing_collects_nothing(getkey):
    for weighting in ("softmax", "exponential"):
        attention = built(getkey(), weighting=weighting)
        assert not applied(attention, tokens(1), JOINED.layout(1)).any()
        collected = applied(attention, tokens(5), JOINED.layout(3))
        assert not collected[2].any()
        assert collected[3].any()


def test_rotation_makes_products_depend_on_the_difference_of_places():
    q, k = np.random.default_rng(0).normal(size=(2, 1, 2, 6))
    places = np.array([3, 12, 0, 1, 10])
    turn = jax.jit(lambda x: rotated(jnp.broadcast_to(x, (len(places), 2, 6)), places, Rotary()))
    of_q, of_k = (dict(zip(places, np.asarray(turn(x)), strict=True)) for x in (q, k))

    def product(a, b):
        return np.sum(of_q[a] * of_k[b])

    np.testing.assert_allclose(product(3, 1), product(12, 10), rtol=1e-12)
    np.testing.assert_allclose(product(0, 0), np.sum(q * k), rtol=1e-12)
    assert abs(product(3, 1) - product(1, 3)) > 1e-3
    # The first pair of coordinates turns by one radian a place.
    turned = np.asarray(turn(np.eye(6)[:1, None]))[3, 0]
    np.testing.assert_allclose(turned, [np.cos(1), 0, 0, np.sin(1), 0, 0], atol=1e-15)


@pytest.mark.parametrize("turned", [None, 6])
@pytest.mark.parametrize("pairs", ["halves", "adjacent"])
def test_every_pair_of_coordinates_turns_at_its_own_frequency(pairs, turned):
    """As a complex number that is multiplied by exp(i theta place), theta = base^(-2c/dim); others stay."""
    dim, places, base = turned or 8, np.array([0, 1, 7, 40]), 500.0
    x = np.random.default_rng(1).normal(size=(len(places), 2, 8))
    answer = np.asarray(rotated(jnp.asarray(x), places, Rotary(base, turned, pairs)))
    first = slice(dim // 2) if pairs == "halves" else slice(0, dim, 2)
    second = slice(dim // 2, dim) if pairs == "halves" else slice(1, dim, 2)
    frequencies = base ** (-2 * np.arange(dim // 2) / dim)
    wanted = (x[..., first] + 1j * x[..., second]) * np.exp(1j * places[:, None, None] * frequencies)
    np.testing.assert_allclose(answer[..., first] + 1j * answer[..., second], wanted, atol=1e-5)
    np.testing.assert_allclose(answer[..., dim:], x[..., dim:], atol=1e-6)


def test_the_law_of_the_weights(getkey):
    attention = eqx.filter_jit(Attention)(100, 4, output_std=0.3, key=getkey())
    # 10 000 weights each: the standard error of a variance is 1.4 percent of it.
    for weight in (attention.query, attention.key, attention.value):
        assert abs(np.var(np.asarray(weight)) * 100 - 1) < 4 * 0.0142
    assert abs(np.var(np.asarray(attention.output)) / 0.09 - 1) < 4 * 0.0142


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"heads": 4}, "heads: expected a divisor of the width 6, got 4; or give the head's dimension, dim="),
        ({"weighting": "softmx"}, "weighting: expected linear, relu, exponential, softmax or a function, got 'softmx'"),
        ({"normalisation": "length"}, "unknown normalisation 'length'; known: examples, none"),
        ({"rotary": Rotary()}, "dim: expected an even number of rotated coordinates, at most 3 of a head, got 3"),
    ],
)
def test_bad_fields_are_refused(fields, message, getkey):
    with pytest.raises(InputError, match=message):
        Attention(WIDTH, **({"heads": HEADS} | fields), key=getkey())
