"""The layers are the papers' matrix formula; one layer without inputs in its values is the reduced model."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.cases import cast
from drawing import prompt_of, with_normal_weights

from icllab.core.errors import InputError
from icllab.models import LinearAttention, ReducedLinearAttention, edited, reduced
from icllab.tasks import LinearRegression

DIM, LENGTH = 4, 6
BOTH = {"causal": False, "query_is_key": True, "normalised": True}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def prompt():
    return prompt_of(0, positions=LENGTH + 1, dim=DIM)


def drawn(std=0.4, **fields):
    fields = {"dim": DIM, "layers": 1, "std": std, "sign": 1, "answers": "every"} | BOTH | fields
    key = jax.random.key(0)
    return with_normal_weights(lambda: LinearAttention.init(**fields, key=key), seed=1, std=std)


@eqx.filter_jit
def answers(model, prompt):
    return model(prompt)


def by_formula(model, x, y, query):
    """The papers' recursion on the matrix whose columns are tokens."""
    n = len(y)
    z = np.zeros((DIM + 1, n + 1))
    z[:DIM, :n], z[DIM, :n], z[:DIM, n] = x.T, y, query
    for p, q in zip(np.asarray(model.p), np.asarray(model.q), strict=True):
        mask = np.ones((n + 1, n + 1))  # key, query
        mask[n, :n] = 0
        mask[n, n] = model.query_is_key
        if model.causal:
            mask[:n, :n] = np.triu(np.ones((n, n)))
        seen = np.append(np.arange(1, n + 1) if model.causal else np.full(n, n), n)
        share = 1 / np.maximum(seen, 1) if model.normalised else np.ones(n + 1)
        z = z + p @ z @ (mask * (z.T @ q @ z)) * share
    return model.sign * z[DIM, n]


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("query_is_key", "normalised", "sign"), [(True, True, 1), (False, True, -1), (False, False, 1)]
)
def test_every_position_is_the_formula_on_its_prefix(layers, causal, query_is_key, normalised, sign, prompt):
    fields = {"causal": causal, "query_is_key": query_is_key, "normalised": normalised, "sign": sign}
    model = drawn(layers=layers, std=0.2, **fields)
    x, y = np.asarray(prompt.x), np.asarray(prompt.y)
    wanted = [by_formula(model, x[:i], y[:i], x[i]) for i in range(LENGTH + 1)]
    last = LinearAttention(model.p, model.q, answers="last", **fields)
    of_every, of_last = eqx.filter_jit(lambda prompt: (model(prompt), last(prompt)))(prompt)
    np.testing.assert_allclose(of_every, wanted, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(of_last, wanted[-1:], rtol=1e-11, atol=1e-12)


@functools.cache
def solved():
    """A reduced head that was fitted; in float64."""
    task = LinearRegression.from_scaling(dim=DIM, alpha=1.5, kappa=2.0, rho=0.1, key=jax.random.key(2))
    return reduced.fit(cast(task, "float64"), prompts=40, ridge=0.1, key=jax.random.key(3))


def without_inputs_in_the_value(model):
    p = np.array(model.p)
    p[:, DIM, :DIM] = 0
    return dataclasses.replace(model, p=jnp.asarray(p))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("query_is_key", [True, False])
def test_one_layer_without_inputs_in_its_values_predicts_as_its_gamma(sign, query_is_key, prompt):
    """All other entries of P and Q, the query as a key and the last column of Q included, do not matter."""
    model = without_inputs_in_the_value(drawn(sign=sign, query_is_key=query_is_key, std=1.0))
    same = ReducedLinearAttention(model.gamma(), solved().task, solved().report)
    np.testing.assert_allclose(answers(model, prompt), answers(same, prompt), rtol=1e-12, atol=1e-12)


def test_a_gamma_that_was_solved_for_is_a_layer(prompt):
    head = solved()
    wanted = np.asarray(answers(head, prompt))
    layer = LinearAttention.from_gamma(head.gamma)
    np.testing.assert_allclose(answers(layer, prompt), wanted, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(layer.gamma(), head.gamma, rtol=1e-15)
    last = LinearAttention.from_gamma(head.gamma, answers="last")
    np.testing.assert_allclose(answers(last, prompt), wanted[-1:], rtol=1e-12, atol=1e-12)


def test_inputs_in_the_values_make_the_terms_that_are_written_down(prompt):
    """The page's formula for v21 != 0, with the term of the query as a key; without it, no Γ gives the prediction."""
    model = drawn(std=1.0)
    p, q = np.asarray(model.p)[0], np.asarray(model.q)[0]
    u, v, m, k = p[DIM, :DIM], p[DIM, DIM], q[:DIM, :DIM], q[DIM, :DIM]
    x, y, query = np.asarray(prompt.x)[:-1], np.asarray(prompt.y)[:-1], np.asarray(prompt.x)[-1]
    examples = np.mean((x @ u + v * y) * ((x @ m + y[:, None] * k) @ query))
    itself = (u @ query) * (query @ m @ query) / LENGTH
    found, without = (np.asarray(answers(m, prompt))[-1] for m in (model, without_inputs_in_the_value(model)))
    np.testing.assert_allclose(found, examples + itself, rtol=1e-12)
    assert abs(found - without) > 0.1


def test_what_has_no_gamma_says_so():
    with pytest.raises(
        InputError, match=r"p: expected a last row \(0, v22\), got '\|v21\| up to .*terms that Γ cannot express"
    ):
        drawn().gamma()
    with pytest.raises(InputError, match="layers: expected 1 layer, to be reduced to a matrix, got 2"):
        drawn(layers=2).gamma()
    with pytest.raises(InputError, match="normalised: expected True, as in the features of the reduced model"):
        drawn(normalised=False).gamma()


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_the_known_weights_are_steps_of_gradient_descent(layers, prompt):
    """P = diag(0, 1), Q = -η diag(I, 0): each layer is one step on the context's mean squared error, halved."""
    step = 0.1
    p, q = np.zeros((2, layers, DIM + 1, DIM + 1))
    p[:, DIM, DIM] = 1
    q[:, :DIM, :DIM] = -step * np.eye(DIM)
    key = jax.random.key(0)
    model = eqx.filter_eval_shape(lambda: LinearAttention.ahn(dim=DIM, layers=layers, std=1.0, key=key))
    model = dataclasses.replace(model, p=jnp.asarray(p), q=jnp.asarray(q))
    x, y, w = np.asarray(prompt.x)[:-1], np.asarray(prompt.y)[:-1], np.zeros(DIM)
    for _ in range(layers):
        w -= step * x.T @ (x @ w - y) / LENGTH
    np.testing.assert_allclose(answers(model, prompt), [w @ np.asarray(prompt.x)[-1]], rtol=1e-12)


def test_a_layer_can_be_ablated_by_its_name(prompt):
    model = drawn(layers=2, answers="last")
    one = LinearAttention(model.p[:1], model.q[:1], sign=1, answers="last", **BOTH)
    without = edited(model, lambda name, value: jnp.zeros_like(value) if name == "layer1.update" else value)
    np.testing.assert_allclose(answers(without, prompt), answers(one, prompt), rtol=1e-14)


def test_only_the_matrices_are_positional():
    one = jnp.ones((1, 2, 2))
    with pytest.raises(TypeError, match="positional"):
        LinearAttention(one, one, 1, "last", False, True, True)
    with pytest.raises(TypeError, match="normalised"):
        LinearAttention(one, one, sign=1, answers="last", causal=False, query_is_key=True)


def test_conventions_are_fields(getkey):
    key = getkey()
    lu = eqx.filter_eval_shape(lambda: LinearAttention.lu(dim=3, std=0.1, key=key))
    assert (lu.sign, lu.layers, lu.dim, lu.query_is_key, lu.positions) == (1, 1, 3, True, "last")
    ahn = eqx.filter_eval_shape(lambda: LinearAttention.ahn(dim=3, layers=2, std=0.1, answers="every", key=key))
    assert (ahn.sign, ahn.layers, ahn.query_is_key, ahn.positions) == (-1, 2, False, "every")
    with pytest.raises(InputError, match="sign: expected 1 or -1, got 0"):
        drawn(sign=0)
    with pytest.raises(InputError, match="unknown answers 'first'; known: every, last"):
        drawn(answers="first")
    with pytest.raises(InputError, match="layers: expected an integer of at least 1, got 0"):
        drawn(layers=0)
