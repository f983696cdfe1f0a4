"""Softmax attention that descends, against descents written out in NumPy, within the stated errors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from icllab import constructions
from icllab.algorithms import KernelRichardson, KernelRidge, NormalisedDescent
from icllab.constructions import kernel_richardson
from icllab.core.errors import InputError
from icllab.core.kernels import arc_cosine, gaussian
from icllab.core.prompt import RegressionPrompt

DIM, LENGTH = 3, 8
RIDGE, TEMPERATURE, SIZE = 4.0, 2.0, 1.2


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def drawn(seed=0, length=LENGTH, signs=False):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(length + 1, DIM)), rng.normal(size=length + 1)
    return RegressionPrompt(jnp.asarray(x), jnp.asarray(np.sign(y) if signs else np.clip(y, -1, 1)))


@eqx.filter_jit
def answers(predictor, prompt):
    return predictor(prompt)


def classifier(x, y, rates):
    """Gradient steps on the exponential loss, each divided by the loss; gradients are finite differences."""
    w = np.zeros(x.shape[1])
    for rate in rates:

        def loss(v):
            return np.sum(np.exp(-y * (x @ v)))

        gradient = [(loss(w + e) - loss(w - e)) / 2e-6 for e in 1e-6 * np.eye(len(w))]
        w = w - rate * np.array(gradient) / loss(w)
    return w


RATES = np.array([0.5, 0.2, 0.9, 0.4])


@pytest.mark.parametrize("positions", ["every", "last"])
def test_layers_are_steps_on_the_exponential_loss(positions):
    prompt = drawn(signs=True)
    algorithm = NormalisedDescent(RATES, layers=4, dim=DIM)
    attention = constructions.gradient_descent(algorithm, answers=positions)
    x, y = np.asarray(prompt.x), np.asarray(prompt.y)
    steps = [classifier(x[:i], y[:i], RATES) @ x[i] if i else 0.0 for i in range(LENGTH + 1)]
    np.testing.assert_allclose(answers(algorithm, prompt), steps, rtol=1e-7)
    np.testing.assert_allclose(
        answers(attention, prompt), answers(algorithm, prompt)[-len(answers(attention, prompt)) :]
    )


def test_a_label_is_not_seen_at_its_own_position():
    prompt = drawn(signs=True)
    attention = constructions.gradient_descent(NormalisedDescent(0.5, layers=2, dim=DIM))
    other = RegressionPrompt(prompt.x, prompt.y.at[-1].multiply(-1))
    np.testing.assert_array_equal(answers(attention, prompt), answers(attention, other))


def test_the_logistic_loss_has_other_steps():
    """With weights of the logistic loss, over their sum, the answers differ: the softmax is that of exponentials."""
    prompt = drawn(signs=True)
    x, y = np.asarray(prompt.x)[:-1], np.asarray(prompt.y)[:-1]
    w = np.zeros(DIM)
    for rate in RATES:
        weights = 1 / (1 + np.exp(y * (x @ w)))
        w = w + rate * (weights / weights.sum()) @ (y[:, None] * x)
    answer = float(answers(NormalisedDescent(RATES, layers=4, dim=DIM), prompt)[-1])
    assert abs(w @ np.asarray(prompt.x)[-1] - answer) > 0.01 * abs(answer)


@pytest.mark.parametrize("layers", [10, 100, 1000])
def test_the_margin_is_above_its_bound_and_below_the_largest(layers):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, DIM))
    truth = np.array([1.0, -0.5, 0.2]) / np.linalg.norm([1.0, -0.5, 0.2])
    x = x[np.abs(x @ truth) > 0.5]
    x = x / np.linalg.norm(x, axis=1).max()
    signed = x * np.sign(x @ truth)[:, None]
    # The largest margin: the shortest vector with all products at least one.
    shortest = minimize(
        lambda v: v @ v,
        5 * truth,
        jac=lambda v: 2 * v,
        constraints={"type": "ineq", "fun": lambda v: signed @ v - 1, "jac": lambda _: signed},
        method="SLSQP",
        options={"ftol": 1e-14},
    ).x
    largest = 1 / np.linalg.norm(shortest)
    padded = np.concatenate([x, np.zeros((1, DIM))])
    prompt = RegressionPrompt(jnp.asarray(padded), jnp.asarray(np.append(np.sign(x @ truth), 1.0)))
    w = np.asarray(eqx.filter_jit(lambda p: NormalisedDescent(1.0, layers=layers, dim=DIM).weights(p))(prompt))[-1]
    margin = (signed @ w).min() / np.linalg.norm(w)
    bound = largest - (np.log(len(x)) + 0.5) / (largest * layers)
    assert bound <= margin <= largest * (1 + 1e-9)
    assert layers < 1000 or bound > 0.85 * largest


def ridge_regression(prompt, ridge=RIDGE):
    """Kernel ridge regression at the last position, by a solve."""
    x, y = np.asarray(prompt.x), np.asarray(prompt.y)[:-1]
    kernel = np.exp(-((x[:, None] - x[None]) ** 2).sum(-1) / 2 / TEMPERATURE)
    return kernel[-1, :-1] @ np.linalg.solve(kernel[:-1, :-1] + ridge * np.eye(len(y)), y)


def iterated(prompt, layers):
    """Richardson's iteration, one unknown after the other, and the largest product of a step."""
    x, y = np.asarray(prompt.x), np.append(np.asarray(prompt.y)[:-1], 0.0)
    alpha, largest = np.zeros(len(y)), 0.0
    for _ in range(layers):
        new = alpha.copy()
        for j in range(len(y)):
            row = [np.exp(-np.sum((x[i] - x[j]) ** 2) / 2 / TEMPERATURE) for i in range(len(y) - 1)]
            largest = max(largest, abs(y[j] - RIDGE * alpha[j]))
            new[j] += (y[j] - row @ alpha[:-1] - RIDGE * alpha[j]) / (sum(row) + RIDGE)
        alpha = new
    return -RIDGE * alpha[-1], largest


def richardson(layers):
    return KernelRichardson(RIDGE, kernel=gaussian, temperature=TEMPERATURE, layers=layers)


def test_the_iteration_is_that_of_the_unknowns_and_its_limit_is_ridge_regression():
    prompt = drawn()
    np.testing.assert_allclose(answers(richardson(7), prompt)[-1], iterated(prompt, 7)[0], rtol=1e-10)
    limit = answers(KernelRidge(RIDGE, kernel=gaussian, temperature=TEMPERATURE), prompt)
    np.testing.assert_allclose(answers(richardson(400), prompt), limit, atol=1e-10)
    np.testing.assert_allclose(limit[-1], ridge_regression(prompt), rtol=1e-10)


def stated_bound(layers, pieces):
    """The sum of the recursion in docs/constructions.md, with the largest divisors, times the ridge."""
    keep, product = LENGTH / (LENGTH + RIDGE), 9 * SIZE / RIDGE / (16 * pieces**2)
    spread, kappa = np.sqrt(LENGTH * (LENGTH + RIDGE)), 1 / (2 * np.sqrt(RIDGE * (1 + RIDGE)))
    start = SIZE * spread / RIDGE
    error = np.sqrt(LENGTH / (1 + RIDGE)) * start / RIDGE
    for layer in range(layers):
        error = keep * error + kappa * (keep**layer * start + product * spread / (1 - keep)) + product
    return RIDGE * error


@pytest.mark.parametrize(("layers", "pieces"), [(4, 16), (24, 1000)])
def test_the_transformer_is_within_its_bound_of_ridge_regression(layers, pieces):
    attention = kernel_richardson(richardson(layers), dim=DIM, pieces=pieces, size=SIZE)
    bound = stated_bound(layers, pieces)
    for seed in range(4):
        prompt = drawn(seed)
        assert iterated(prompt, layers)[1] < SIZE
        error = abs(float(answers(attention, prompt)[0]) - ridge_regression(prompt))
        assert error <= bound
    assert layers < 24 or bound < 0.01


def test_the_error_of_the_dense_layers_falls_as_the_square_of_their_width():
    errors = []
    for pieces in (20, 200):
        attention = kernel_richardson(richardson(6), dim=DIM, pieces=pieces, size=SIZE)
        prompts = [drawn(seed) for seed in range(6)]
        errors.append(np.mean([abs(float(answers(attention, p)[0]) - iterated(p, 6)[0]) for p in prompts]))
    assert 60 < errors[0] / errors[1] < 160


def test_attention_to_the_anchor_is_the_ridge_over_the_sum_of_the_kernel():
    prompt = drawn()
    attention = kernel_richardson(richardson(2), dim=DIM, pieces=2, size=SIZE)
    pattern = attention.trace(prompt).activations["block0.attention.pattern"][0]
    x = np.asarray(prompt.x)
    degrees = np.exp(-((x[:, None] - x[None, :-1]) ** 2).sum(-1) / 2 / TEMPERATURE).sum(1)
    np.testing.assert_allclose(pattern[1:, 0], RIDGE / (degrees + RIDGE), rtol=1e-10)
    assert np.ptp(pattern[1:, 0]) > 0.02  # equal divisors would not do


def test_refusals():
    with pytest.raises(InputError, match="gaussian"):
        kernel_richardson(
            KernelRichardson(RIDGE, kernel=arc_cosine, temperature=1.0, layers=2), dim=2, pieces=4, size=1.0
        )
    with pytest.raises(InputError, match="'tokens'"):
        constructions.gradient_descent(NormalisedDescent(0.5, layers=2, dim=DIM), form="gram")
    with pytest.raises(InputError, match="ridge"):
        KernelRichardson(0.0, kernel=gaussian, temperature=1.0, layers=2)
    with pytest.raises(InputError, match="rate"):
        NormalisedDescent(np.ones(3), layers=2, dim=DIM)
