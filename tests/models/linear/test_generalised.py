"""The layers are the papers' matrix formula for every h; with the inner product they are linear attention."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.models import GeneralisedAttention, LinearAttention

DIM, LENGTH = 3, 5
FIELDS = {"dim": DIM, "layers": 2, "std": 0.4, "temperature": 0.8, "sign": -1, "answers": "every", "normalised": True}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def prompt(getkey):
    return RegressionPrompt(
        x=jax.random.normal(getkey(), (LENGTH + 1, DIM)), y=jax.random.normal(getkey(), (LENGTH + 1,))
    )


def drawn(key, similarity, **fields):
    return GeneralisedAttention.init(similarity=similarity, **(FIELDS | fields), key=key)


def distance(u, w):
    return jnp.exp(-jnp.sum((u - w) ** 2))


def h_of(similarity, axis, keys, queries, temperature):
    """Rows are keys, columns queries; the columns of both arguments are tokens."""
    if similarity is distance:
        return np.exp(-np.sum((keys[:, :, None] - queries[:, None, :]) ** 2, axis=0) / temperature)
    scores = keys.T @ queries / temperature
    if similarity == "softmax":
        weights = np.exp(scores)
        return weights / weights.sum(axis=0 if axis == "keys" else 1, keepdims=True)
    return {"linear": scores, "relu": np.maximum(scores, 0), "exponential": np.exp(scores)}[similarity]


def by_formula(model, x, y, query):
    """The recursion on the matrix whose columns are tokens, for one prompt."""
    n = len(y)
    z = np.zeros((DIM + 1, n + 1))
    z[:DIM, :n], z[DIM, :n], z[:DIM, n] = np.asarray(x).T, y, query
    mask = np.diag(np.append(np.ones(n), 0.0))
    diagonal = model.diagonal if model.diagonal is not None else np.zeros_like(model.value)
    parts = (model.value, model.key, model.query, model.temperature, diagonal)
    for v, b, c, t, own in zip(*(np.asarray(part) for part in parts), strict=True):
        h = h_of(model.similarity, model.axis, b @ z[:DIM], c @ z[:DIM], t)
        z = z + (v @ z @ mask @ h + own @ z @ mask) / (max(n, 1) if model.normalised else 1)
    return model.sign * z[DIM, n]


@pytest.mark.parametrize(
    ("similarity", "axis", "normalised"),
    [
        ("linear", "keys", True),
        ("relu", "keys", False),
        ("exponential", "keys", True),
        ("softmax", "keys", False),
        ("softmax", "queries", True),
        (distance, "keys", True),
    ],
)
def test_every_position_is_the_formula_on_its_prefix(similarity, axis, normalised, prompt, getkey):
    model = drawn(getkey(), similarity, axis=axis, normalised=normalised)
    model = eqx.tree_at(lambda m: m.diagonal, model, 0.3 * model.value[::-1], is_leaf=lambda leaf: leaf is None)
    model = eqx.tree_at(lambda m: m.temperature, model, jnp.array([0.8, 1.7]))  # of layers, which differ
    wanted = [by_formula(model, prompt.x[:i], prompt.y[:i], prompt.x[i]) for i in range(LENGTH + 1)]
    np.testing.assert_allclose(model(prompt), wanted, rtol=1e-11, atol=1e-12)
    last = dataclasses.replace(model, answers="last")
    np.testing.assert_allclose(last(prompt), wanted[-1:], rtol=1e-11)


@pytest.mark.parametrize("answers", ["every", "last"])
def test_with_the_inner_product_it_is_linear_attention(answers, prompt, getkey):
    model = drawn(getkey(), "linear", answers=answers)
    linear = model.linear_attention()
    np.testing.assert_allclose(linear(prompt), model(prompt), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(GeneralisedAttention.from_linear(linear)(prompt), model(prompt), rtol=1e-12, atol=1e-13)


def test_a_step_of_a_layer_is_named_and_can_be_changed(prompt, getkey):
    model = drawn(getkey(), "softmax", answers="last")
    trace = model.trace(prompt)
    per_layer = ["keys", "queries", "pattern", "update"]
    names = [f"layer{i}.{name}" if name else f"layer{i}" for i in range(2) for name in (*per_layer, "")]
    assert list(trace.activations) == ["tokens", *names, "prediction"]
    np.testing.assert_allclose(trace.activations["layer0.pattern"].sum(axis=0), 1, rtol=1e-12)
    without = model.trace(prompt, lambda name, value: 0 * value if name == "layer1.update" else value)
    one = jax.tree.map(lambda leaf: leaf[:1], model)
    np.testing.assert_allclose(without.prediction, one(prompt), rtol=1e-13)


def test_only_the_arrays_are_positional(getkey):
    model = drawn(getkey(), "relu")
    arrays = (model.value, model.key, model.query, model.temperature, model.diagonal)
    with pytest.raises(TypeError, match="positional"):
        GeneralisedAttention(*arrays, "relu", "keys", -1, "every", True)


def test_what_cannot_be_is_refused(prompt, getkey):
    with pytest.raises(
        InputError, match="similarity: expected linear, relu, exponential, softmax or a function, got 'linaer'"
    ):
        drawn(getkey(), "linaer")
    with pytest.raises(InputError, match="unknown axis 'rows'; known: keys, queries"):
        drawn(getkey(), "softmax", axis="rows")
    with pytest.raises(InputError, match="sign: expected 1 or -1, got 2"):
        drawn(getkey(), "relu", sign=2)
    with pytest.raises(InputError, match="unknown answers 'first'"):
        drawn(getkey(), "relu", answers="first")
    with pytest.raises(InputError, match="layers: expected an integer of at least 1, got 0"):
        drawn(getkey(), "relu", layers=0)
    with pytest.raises(InputError, match="similarity: expected 'linear', without a diagonal head, got 'relu'"):
        drawn(getkey(), "relu").linear_attention()
    ahn = LinearAttention.ahn(dim=DIM, layers=1, std=0.1, key=getkey())
    with pytest.raises(InputError, match="model: expected zeros in the last row and column of Q"):
        GeneralisedAttention.from_linear(ahn)
    lu = LinearAttention.lu(dim=DIM, std=0.0, key=getkey())
    with pytest.raises(InputError, match="model: expected query_is_key=False and causal=False"):
        GeneralisedAttention.from_linear(lu)
