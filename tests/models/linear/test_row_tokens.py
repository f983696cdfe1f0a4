"""Weights of published code, run as that code's formula on rows, are the models they are read as."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.models import LinearAttention
from icllab.models.linear.row_tokens import (
    AhnWeights,
    VonOswaldWeights,
    from_ahn,
    from_ahn_blocks,
    from_von_oswald,
    to_ahn,
    to_von_oswald,
)

DIM, LENGTH, LAYERS = 3, 5, 2


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def prompt(getkey):
    return RegressionPrompt(
        x=jax.random.normal(getkey(), (LENGTH + 1, DIM)), y=jax.random.normal(getkey(), (LENGTH + 1,))
    )


def rows(prompt):
    return np.column_stack([prompt.x, np.append(prompt.y[:-1], 0.0)])


def test_ahn(prompt, getkey):
    """E + (1/n) (E Q' E') M (E P''), a row for each token, queries in the rows of the scores."""
    p, q = 0.3 * jax.random.normal(getkey(), (2, LAYERS, DIM + 1, DIM + 1))
    e, mask = rows(prompt), np.diag(np.append(np.ones(LENGTH), 0.0))
    for layer in range(LAYERS):
        e = e + (e @ np.asarray(q[layer]) @ e.T) @ mask @ e @ np.asarray(p[layer]).T / LENGTH
    model = from_ahn(AhnWeights(p, q))
    np.testing.assert_allclose(model(prompt), [-e[-1, -1]], rtol=1e-12)
    for back, there in zip(to_ahn(model), (p, q), strict=True):
        np.testing.assert_array_equal(back, there)


def test_ahn_blocks(prompt, getkey):
    """The blocks of the inputs are filled up with zeros, and a one for the label's own value."""
    p, q = 0.3 * jax.random.normal(getkey(), (2, LAYERS, DIM, DIM))
    x, y, n = np.asarray(prompt.x), np.append(prompt.y[:-1], 0.0), LENGTH
    for layer in range(LAYERS):
        scores = x @ np.asarray(q[layer]) @ x[:n].T / n
        x, y = x + scores @ x[:n] @ np.asarray(p[layer]).T, y + scores @ y[:n]
    np.testing.assert_allclose(from_ahn_blocks(AhnWeights(p, q))(prompt), [-y[-1]], rtol=1e-12)


def test_von_oswald(prompt, getkey):
    """E + (E W_Q) (E W_K)' (E W_V) W_P over the examples; the paper's weights act from the left instead."""
    inner = 4
    key, query, value = 0.4 * jax.random.normal(getkey(), (3, LAYERS, DIM + 1, inner))
    weights = VonOswaldWeights(key, query, value, 0.4 * jax.random.normal(getkey(), (LAYERS, inner, DIM + 1)))
    e = rows(prompt)
    for layer in range(LAYERS):
        k, q, v, out = (np.asarray(w[layer]) for w in weights)
        e = e + (e @ q) @ (e[:-1] @ k).T @ (e[:-1] @ v) @ out
    model = from_von_oswald(weights)
    np.testing.assert_allclose(model(prompt), [-e[-1, -1]], rtol=1e-12)
    columns = VonOswaldWeights(*(jnp.swapaxes(w, 1, 2) for w in weights))
    np.testing.assert_allclose(from_von_oswald(columns, columns=True)(prompt), model(prompt), rtol=1e-12)
    np.testing.assert_allclose(from_von_oswald(to_von_oswald(model))(prompt), model(prompt), rtol=1e-12)


def test_von_oswald_s_step_of_gradient_descent(prompt):
    """W_K = W_Q = diag(I, 0), W_V = ((0, 0), (0, -1)), P = eta/n: with columns, as in the paper."""
    eta, only = 0.3, jnp.diag(jnp.array([1.0] * DIM + [0.0]))
    value = jnp.zeros_like(only).at[DIM, DIM].set(-1.0)
    weights = VonOswaldWeights(only[None], only[None], value[None], eta / LENGTH * jnp.eye(DIM + 1)[None])
    w = eta * np.asarray(prompt.x[:-1]).T @ np.asarray(prompt.y[:-1]) / LENGTH
    np.testing.assert_allclose(from_von_oswald(weights, columns=True)(prompt), [w @ prompt.x[-1]], rtol=1e-12)


def test_other_conventions_cannot_be_written_in_the_layout(getkey):
    lu = LinearAttention.lu(dim=DIM, std=0.1, key=getkey())
    with pytest.raises(InputError, match="model: expected sign=-1, query_is_key=False, causal=False, normalised=True"):
        to_ahn(lu)
    ahn = LinearAttention.ahn(dim=DIM, layers=1, std=0.1, key=getkey())
    with pytest.raises(InputError, match=r"normalised=False, got .*; if all contexts have one length, divide P by it"):
        to_von_oswald(ahn)
    with pytest.raises(InputError, match="weights: expected P and Q of one shape"):
        from_ahn(AhnWeights(ahn.p, ahn.q[:, :2]))
