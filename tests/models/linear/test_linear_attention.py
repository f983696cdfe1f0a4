"""The layers are the papers' matrix formula; one layer without inputs in its values is the reduced model."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.cases import cast

from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.models import LinearAttention, ReducedLinearAttention, reduced
from icllab.tasks import LinearRegression

DIM, LENGTH = 4, 6
BOTH = {"causal": False, "query_is_key": True, "normalised": True}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def prompt(getkey):
    return RegressionPrompt(
        x=jax.random.normal(getkey(), (LENGTH + 1, DIM)), y=jax.random.normal(getkey(), (LENGTH + 1,))
    )


def drawn(key, **fields):
    return LinearAttention.drawn(
        **({"dim": DIM, "layers": 1, "std": 0.4, "sign": 1, "answers": "every"} | BOTH | fields), key=key
    )


def by_formula(model, x, y, query):
    """The papers' recursion on the matrix whose columns are tokens."""
    n = len(y)
    z = np.zeros((DIM + 1, n + 1))
    z[:DIM, :n], z[DIM, :n], z[:DIM, n] = np.asarray(x).T, y, query
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
def test_every_position_is_the_formula_on_its_prefix(layers, causal, query_is_key, normalised, sign, prompt, getkey):
    fields = {"causal": causal, "query_is_key": query_is_key, "normalised": normalised, "sign": sign}
    model = drawn(getkey(), layers=layers, std=0.2, **fields)
    wanted = [by_formula(model, prompt.x[:i], prompt.y[:i], prompt.x[i]) for i in range(LENGTH + 1)]
    np.testing.assert_allclose(model(prompt), wanted, rtol=1e-11, atol=1e-12)
    last = LinearAttention(model.p, model.q, answers="last", **fields)
    np.testing.assert_allclose(last(prompt), wanted[-1:], rtol=1e-11, atol=1e-12)


def without_inputs_in_the_value(model):
    return dataclasses.replace(model, p=model.p.at[:, DIM, :DIM].set(0))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("query_is_key", [True, False])
def test_one_layer_without_inputs_in_its_values_predicts_as_its_gamma(sign, query_is_key, prompt, getkey):
    """All other entries of P and Q, the query as a key and the last column of Q included, do not matter."""
    model = without_inputs_in_the_value(drawn(getkey(), sign=sign, query_is_key=query_is_key, std=1.0))
    task = LinearRegression.from_scaling(dim=DIM, alpha=1.5, kappa=2.0, rho=0.1, key=getkey())
    solved = reduced.fit(task, prompts=40, ridge=0.1, key=getkey())
    same = ReducedLinearAttention(model.gamma(), solved.task, solved.report)
    np.testing.assert_allclose(model(prompt), same(prompt), rtol=1e-12, atol=1e-12)


def test_a_gamma_that_was_solved_for_is_a_layer(prompt, getkey):
    task = cast(LinearRegression.from_scaling(dim=DIM, alpha=1.5, kappa=2.0, rho=0.1, key=getkey()), "float64")
    solved = reduced.fit(task, prompts=40, ridge=0.1, key=getkey())
    layer = LinearAttention.from_gamma(solved.gamma)
    np.testing.assert_allclose(layer(prompt), solved(prompt), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(layer.gamma(), solved.gamma, rtol=1e-15)
    last = LinearAttention.from_gamma(solved.gamma, answers="last")
    np.testing.assert_allclose(last(prompt), solved(prompt)[-1:], rtol=1e-12, atol=1e-12)


def test_inputs_in_the_values_make_the_terms_that_are_written_down(prompt, getkey):
    """The page's formula for v21 != 0, with the term of the query as a key; without it, no Γ gives the prediction."""
    model = drawn(getkey(), std=1.0)
    p, q = np.asarray(model.p[0]), np.asarray(model.q[0])
    u, v, m, k = p[DIM, :DIM], p[DIM, DIM], q[:DIM, :DIM], q[DIM, :DIM]
    x, y, query = np.asarray(prompt.x[:-1]), np.asarray(prompt.y[:-1]), np.asarray(prompt.x[-1])
    examples = np.mean((x @ u + v * y) * ((x @ m + y[:, None] * k) @ query))
    itself = (u @ query) * (query @ m @ query) / LENGTH
    np.testing.assert_allclose(model(prompt)[-1], examples + itself, rtol=1e-12)
    assert abs(float(model(prompt)[-1] - without_inputs_in_the_value(model)(prompt)[-1])) > 0.1


def test_what_has_no_gamma_says_so(getkey):
    with pytest.raises(
        InputError, match=r"p: expected a last row \(0, v22\), got '\|v21\| up to .*terms that no Γ has"
    ):
        drawn(getkey()).gamma()
    with pytest.raises(InputError, match="layers: expected 1 layer, to be reduced to a matrix, got 2"):
        drawn(getkey(), layers=2).gamma()
    with pytest.raises(InputError, match="normalised: expected True, as the features of the reduced model are"):
        drawn(getkey(), normalised=False).gamma()


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_the_known_weights_are_steps_of_gradient_descent(layers, prompt, getkey):
    """P = diag(0, 1), Q = -η diag(I, 0): each layer is one step on the context's mean squared error, halved."""
    step = 0.1
    p = jnp.zeros((layers, DIM + 1, DIM + 1)).at[:, DIM, DIM].set(1)
    q = jnp.zeros_like(p).at[:, :DIM, :DIM].set(-step * jnp.eye(DIM))
    model = LinearAttention.ahn(dim=DIM, layers=layers, std=1.0, key=getkey())
    model = dataclasses.replace(model, p=p, q=q)
    x, y, w = np.asarray(prompt.x[:-1]), np.asarray(prompt.y[:-1]), np.zeros(DIM)
    for _ in range(layers):
        w -= step * x.T @ (x @ w - y) / LENGTH
    np.testing.assert_allclose(model(prompt), [w @ np.asarray(prompt.x[-1])], rtol=1e-12)


def test_a_layer_can_be_ablated_by_its_name(prompt, getkey):
    model = drawn(getkey(), layers=2, answers="last")
    one = LinearAttention(model.p[:1], model.q[:1], sign=1, answers="last", **BOTH)
    without = model.trace(prompt, lambda name, value: jnp.zeros_like(value) if name == "layer1.update" else value)
    np.testing.assert_allclose(without.prediction, one(prompt), rtol=1e-14)


def test_only_the_matrices_are_positional():
    one = jnp.ones((1, 2, 2))
    with pytest.raises(TypeError, match="positional"):
        LinearAttention(one, one, 1, "last", False, True, True)
    with pytest.raises(TypeError, match="normalised"):
        LinearAttention(one, one, sign=1, answers="last", causal=False, query_is_key=True)


def test_conventions_are_fields(getkey):
    lu = LinearAttention.lu(dim=3, std=0.1, key=getkey())
    assert (lu.sign, lu.layers, lu.dim, lu.query_is_key, lu.positions) == (1, 1, 3, True, "last")
    ahn = LinearAttention.ahn(dim=3, layers=2, std=0.1, answers="every", key=getkey())
    assert (ahn.sign, ahn.layers, ahn.query_is_key, ahn.positions) == (-1, 2, False, "every")
    with pytest.raises(InputError, match="sign: expected 1 or -1, got 0"):
        drawn(getkey(), sign=0)
    with pytest.raises(InputError, match="unknown answers 'first'; known: every, last"):
        drawn(getkey(), answers="first")
    with pytest.raises(InputError, match="layers: expected an integer of at least 1, got 0"):
        drawn(getkey(), layers=0)
