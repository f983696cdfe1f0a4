"""Functional descent against its definition and its limits, and kernel ridge against a solve for every prefix."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.algorithms import (
    FunctionalDescent,
    GaussianProcess,
    GradientDescent,
    KernelRidge,
    LeastSquares,
    RepairedProcess,
    Ridge,
    SoftmaxLimit,
)
from icllab.core.errors import InputError
from icllab.core.kernels import arc_cosine, gram, repaired
from icllab.core.prompt import RegressionPrompt

DIM, LENGTH = 3, 5
SHAPE = {"layers": 4, "dim": DIM, "normalised": True}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def prompt():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(LENGTH + 1, DIM)), rng.normal(size=LENGTH + 1)
    return RegressionPrompt(jnp.asarray(x / np.linalg.norm(x, axis=1, keepdims=True)), jnp.asarray(y))


@eqx.filter_jit
def answered(predictor, prompt):
    return predictor(prompt)


def answers(predictor, prompt):
    return np.asarray(answered(predictor, prompt))


@eqx.filter_jit
def kernel_matrix(kernel, temperature, x):
    return gram(kernel, temperature, x)


def descent(kernel, noise=0.0, rate=0.4, temperature=0.6, **shape):
    fields = SHAPE | shape
    return FunctionalDescent(rate, kernel=kernel, temperature=temperature, noise_variance=noise, **fields)


@pytest.mark.parametrize(("kernel", "noise"), [("linear", 0.0), ("relu", 0.0), ("exponential", 0.3), (arc_cosine, 0.3)])
def test_each_prefix_is_the_iteration_on_its_coefficients(kernel, noise, prompt):
    rates = np.array([0.4, 0.1, 0.3, 0.2])
    k = np.asarray(kernel_matrix(kernel, jnp.asarray(0.6), prompt.x))
    found = answers(descent(kernel, noise, jnp.asarray(rates)), prompt)
    assert found[0] == 0
    for i in range(1, prompt.positions):
        alpha, y = np.zeros(i), np.asarray(prompt.y)[:i]
        for rate in rates:
            alpha = alpha + rate / i * (y - k[:i, :i] @ alpha - noise * alpha)
        np.testing.assert_allclose(found[i], alpha @ k[:i, i], rtol=1e-12)


def test_the_linear_kernel_is_gradient_descent(prompt):
    plain = GradientDescent(0.4 / 0.6, layers=4, dim=DIM, normalised=True, half=True)
    np.testing.assert_allclose(answers(descent("linear"), prompt), answers(plain, prompt), rtol=1e-12, atol=1e-14)


def test_softmax_attention_divides_by_the_sum_over_the_inputs_there(prompt):
    found, x, y = answers(descent("softmax"), prompt), np.asarray(prompt.x), np.asarray(prompt.y)
    for i in range(1, prompt.positions):
        e = np.exp(x[: i + 1] @ x[: i + 1].T / 0.6)
        weight = e / e.sum(axis=0)
        left = np.append(y[:i], 0.0)
        for _ in range(4):
            left = left - 0.4 / i * (left[:i] @ weight[:i])
        np.testing.assert_allclose(found[i], -left[i], rtol=1e-12)


@pytest.mark.parametrize(("kernel", "ridge"), [("linear", 0.2), ("exponential", 0.1), ("exponential", 0.0)])
def test_kernel_ridge_is_a_solve_for_every_prefix(kernel, ridge, prompt):
    k, y = np.asarray(kernel_matrix(kernel, jnp.asarray(0.6), prompt.x)), np.asarray(prompt.y)
    found = answers(KernelRidge(ridge, kernel=kernel, temperature=0.6), prompt)
    for i in range(1, prompt.positions):
        wanted = k[i, :i] @ np.linalg.solve(k[:i, :i] + ridge * np.eye(i), y[:i])
        np.testing.assert_allclose(found[i], wanted, rtol=1e-8)
    assert found[0] == 0
    process = GaussianProcess(ridge, kernel=kernel, temperature=0.6)
    np.testing.assert_array_equal(answers(process, prompt), found)


@pytest.mark.parametrize("ridge", [0.0, 0.2])
def test_the_repaired_process_solves_with_the_absolute_value_of_all_pairs(ridge, prompt):
    k = np.asarray(kernel_matrix("relu", jnp.asarray(0.6), prompt.x))
    values, vectors = np.linalg.eigh(k)
    whole = vectors @ np.diag(np.abs(values)) @ vectors.T
    np.testing.assert_allclose(jax.jit(repaired)(k), whole, atol=1e-13)
    found = answers(RepairedProcess(ridge, kernel="relu", temperature=0.6), prompt)
    y = np.asarray(prompt.y)[:LENGTH]
    # Singular here: so can be the rectified products of few inputs.
    among = whole[:-1, :-1] + ridge * np.eye(LENGTH)
    wanted = whole[-1, :-1] @ np.linalg.pinv(among, rcond=1e-10, hermitian=True) @ y
    np.testing.assert_allclose(found, [wanted], rtol=1e-8)
    # A kernel has nothing to repair.
    same = {"kernel": "exponential", "temperature": 0.6}
    plain = answers(GaussianProcess(ridge, **same), prompt)[-1:]
    np.testing.assert_allclose(answers(RepairedProcess(ridge, **same), prompt), plain, rtol=1e-8)


def test_with_the_linear_kernel_it_is_ridge_regression_of_any_rank(prompt):
    """With more examples than dimensions the Gram matrix is singular, and without a ridge labels contradict."""
    linear = {"kernel": "linear", "temperature": 1.0}
    ridge = answers(Ridge(0.3), prompt)
    np.testing.assert_allclose(answers(KernelRidge(0.3, **linear), prompt), ridge, rtol=1e-11, atol=1e-14)
    x = np.array(prompt.x)
    x[2] = x[0]
    repeated = RegressionPrompt(jnp.asarray(x), prompt.y)
    for given in (prompt, repeated):
        least = answers(LeastSquares(), given)
        np.testing.assert_allclose(answers(KernelRidge(0.0, **linear), given), least, rtol=1e-9, atol=1e-12)


def test_descent_tends_to_kernel_ridge_at_the_rate_of_its_slowest_mode(prompt):
    """Without division: the error is at most max |1 - eta (lambda + rho)|^L, times the size of the coefficients."""
    noise, rate = 0.8, 0.15
    whole = np.asarray(kernel_matrix("exponential", jnp.asarray(2.0), prompt.x))
    k = whole[:-1, :-1]
    slowest = np.max(np.abs(1 - rate * (np.linalg.eigvalsh(k) + noise)))
    assert slowest < 1
    alpha = np.linalg.solve(k + noise * np.eye(LENGTH), np.asarray(prompt.y)[:-1])
    reach = np.linalg.norm(whole[-1, :-1]) * np.linalg.norm(alpha)
    for layers in (10, 80):
        algorithm = descent("exponential", noise, rate, 2.0, layers=layers, normalised=False)
        off = abs(answers(algorithm, prompt)[-1] - answers(algorithm.limit(), prompt)[-1])
        assert off <= slowest**layers * reach + 1e-14
    assert off < 1e-4 * reach


def test_softmax_attention_tends_to_its_own_limit_and_not_to_the_posterior_mean(prompt):
    sharp = {"temperature": 0.3, "normalised": False, "rate": 1.0}
    algorithm = descent("softmax", layers=30000, **sharp)
    assert isinstance(algorithm.limit(), SoftmaxLimit)
    limit = answers(algorithm.limit(), prompt)
    few, many = (answers(descent("softmax", layers=n, **sharp), prompt) for n in (30, 30000))
    assert np.max(np.abs(many - limit)) < 1e-3 * np.max(np.abs(few - limit)) + 1e-12
    bayes = answers(GaussianProcess(0.0, kernel="exponential", temperature=0.3), prompt)
    assert np.max(np.abs(bayes - limit)) > 0.01


def test_where_all_normalisers_are_equal_the_limit_is_the_posterior_mean():
    """Points in cyclic symmetry, the query one of them by position: every sum over all inputs is the same."""
    angle = np.linspace(0, 2 * np.pi, LENGTH + 2)[:-1]
    x = jnp.asarray(np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1))
    prompt = RegressionPrompt(x, jnp.array([1.0, -0.5, 0.3, 2.0, 0.1, 0.0]))
    bayes = GaussianProcess(0.0, kernel="exponential", temperature=0.5)
    np.testing.assert_allclose(answers(SoftmaxLimit(0.5), prompt)[-1], answers(bayes, prompt)[-1], rtol=1e-10)


def test_warnings_are_said_by_the_algorithm():
    assert descent("linear").warnings == ()
    assert "not positive semi-definite" in descent("relu").warnings[0]
    assert "softmax is not a kernel" in descent("softmax").warnings[0]
    assert SoftmaxLimit(1.0).warnings == descent("softmax").warnings
    assert KernelRidge(0.1, kernel="relu", temperature=1.0).warnings == descent("relu").warnings


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: descent("gauss"), "kernel: expected linear, relu, exponential, softmax or a function, got 'gauss'"),
        (lambda: descent("linear", -0.1), "noise_variance: expected a number >= 0"),
        (
            lambda: descent("linear", rate=jnp.ones(3)),
            r"rate: expected one number, or one for each layer: shape \(\) or",
        ),
        (
            lambda: KernelRidge(0.1, kernel="softmax", temperature=1.0),
            "kernel: expected linear, relu, exponential or a function, got 'softmax'; a softmax is not symmetric",
        ),
        (
            lambda: RepairedProcess(0.1, kernel="softmax", temperature=1.0),
            "kernel: expected linear, relu, exponential or a function, got 'softmax'; a softmax is not symmetric",
        ),
        (lambda: GaussianProcess(-0.1, kernel="linear", temperature=1.0), "noise_variance: expected a number >= 0"),
        (lambda: RepairedProcess(-0.1, kernel="relu", temperature=1.0), "noise_variance: expected a number >= 0"),
        (lambda: descent("softmax", 0.1).limit(), "noise_variance: expected 0, because only the limit without noise"),
    ],
)
def test_what_cannot_be_is_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()
