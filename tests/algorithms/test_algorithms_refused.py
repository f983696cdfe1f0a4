"""Arguments that make no algorithm are refused in one line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import assert_refused, unchecked

from icllab.algorithms import (
    DiscreteMMSE,
    FromSklearn,
    FunctionalDescent,
    GaussianPosterior,
    GaussianProcess,
    GradientDescent,
    GradientDescentPlusPlus,
    KernelRidge,
    NGram,
    PreconditionedDescent,
    RepairedProcess,
    Ridge,
    SoftmaxLimit,
)
from icllab.core.prompt import RegressionPrompt, TokenPrompt

INTEGER = "expected an integer of at least 1, got "
STEPS = {"layers": 2, "dim": 3, "normalised": True, "half": True}


def descent(**change):
    return GradientDescent(**{"rate": 0.1} | STEPS | change)


def preconditioned(**change):
    return PreconditionedDescent(**{"preconditioner": jnp.eye(3)} | STEPS | change)


def plus_plus(**change):
    return GradientDescentPlusPlus.scalar(**{"rate": 0.1, "contraction": 0.1} | STEPS | change)


def functional(**change):
    fields = {"rate": 0.1, "noise_variance": 0.0, "kernel": "linear", "temperature": 1.0}
    fields |= {"layers": 2, "dim": 3, "normalised": True}
    return FunctionalDescent(**fields | change)


def kernel_ridge(**change):
    return KernelRidge(**{"ridge": 0.1, "kernel": "linear", "temperature": 1.0} | change)


def process(kind=GaussianProcess, **change):
    return kind(**{"noise_variance": 0.1, "kernel": "linear", "temperature": 1.0} | change)


def posterior(**change):
    return GaussianPosterior(**{"covariance": 1.0, "noise_variance": 0.1} | change)


def pool(**change):
    return DiscreteMMSE(**{"pool": jnp.ones((2, 3)), "noise_variance": 0.1} | change)


class Mean:
    def fit(self, x, y):
        return self

    def predict(self, x):
        return np.zeros(len(x))


@pytest.mark.parametrize(
    ("make", "change", "said"),
    [
        (descent, {"half": "no"}, "half: expected True or False, got 'no'"),
        (descent, {"half": 1}, "half: expected True or False, got 1"),
        (descent, {"normalised": None}, "normalised: expected True or False, got None"),
        (descent, {"layers": 2.5}, f"layers: {INTEGER}2.5"),
        (descent, {"layers": True}, f"layers: {INTEGER}True"),
        (descent, {"dim": "3"}, f"dim: {INTEGER}'3'"),
        (descent, {"rate": "0.1"}, "rate: expected real numbers, got '0.1'"),
        (descent, {"rate": True}, "rate: expected real numbers, got 'numbers of type bool'"),
        (descent, {"rate": None}, "rate: expected real numbers, got 'NoneType'"),
        (descent, {"rate": float("nan")}, "rate: expected one number, finite, got 'NaN or infinity'"),
        (preconditioned, {"preconditioner": "eye"}, "preconditioner: expected real numbers, got 'eye'"),
        (preconditioned, {"dim": 2.5}, f"dim: {INTEGER}2.5"),
        (plus_plus, {"contraction": "0.1"}, "contraction: expected real numbers, got '0.1'"),
        (plus_plus, {"dim": None}, f"dim: {INTEGER}None"),
        (
            functional,
            {"rate": np.inf},
            "rate: expected one number, or one for each layer, finite, got 'NaN or infinity'",
        ),
        (functional, {"layers": "2"}, f"layers: {INTEGER}'2'"),
        (functional, {"normalised": 0}, "normalised: expected True or False, got 0"),
        (functional, {"temperature": -1.0}, "temperature: expected a finite number > 0, got -1.0"),
        (kernel_ridge, {"ridge": True}, "ridge: expected real numbers, got 'numbers of type bool'"),
        (kernel_ridge, {"temperature": jnp.ones(2)}, "temperature: expected a finite number > 0, got [1.0, 1.0]"),
        (process, {"temperature": 0}, "temperature: expected a finite number > 0, got 0.0"),
        (process, {"noise_variance": [0.1, 0.2]}, "noise_variance: expected a number >= 0, got [0.1"),
        (process, {"kind": RepairedProcess, "temperature": "1"}, "temperature: expected real numbers, got '1'"),
        (SoftmaxLimit, {"temperature": -1}, "temperature: expected a finite number > 0, got -1.0"),
        (Ridge, {"ridge": "1"}, "ridge: expected real numbers, got '1'"),
        (
            posterior,
            {"covariance": np.ones((2, 3))},
            "covariance: expected a scalar, a diagonal or a matrix [dim, dim]",
        ),
        (posterior, {"covariance": True}, "covariance: expected real numbers, got 'numbers of type bool'"),
        (posterior, {"noise_variance": None}, "noise_variance: expected real numbers, got 'NoneType'"),
        (pool, {"pool": "tasks"}, "pool: expected real numbers, got 'tasks'"),
        (
            pool,
            {"noise_variance": np.ones(2)},
            "noise_variance: expected a number >= 0, got [1.0, 1.0]; use jax.vmap",
        ),
        (
            NGram.from_laws,
            {"laws": [[0.5, 0.5]]},
            "distributions: expected a sequence of tables, arrays [context, state]",
        ),
        (FromSklearn, {"estimator": Mean(), "fewest": 2.5}, "fewest: expected an integer of at least 1, because"),
        (FromSklearn, {"estimator": Mean(), "otherwise": "0"}, "otherwise: expected a number, got '0'"),
    ],
)
def test_what_makes_no_algorithm_is_refused(make, change, said):
    assert_refused(lambda: make(**change), said)


@unchecked()
def test_numbers_that_are_arrays_or_traced_are_still_taken():
    rates = jax.eval_shape(lambda rate: descent(rate=rate).rate, jnp.ones(2))
    assert rates.shape == (2,)
    ridges = jax.vmap(lambda ridge: Ridge(ridge).ridge)(-jnp.ones(3))  # traced: its sign cannot be asked
    assert ridges.shape == (3,)
    assert process(temperature=np.float32(2.0), noise_variance=1).noise_variance.dtype == jnp.float32


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: RegressionPrompt([[1.0, 2.0]], [1.0]), "x: expected an array of numbers, got 'list'"),
        (lambda: RegressionPrompt(jnp.ones((5, 2)), [1.0] * 5), "y: expected an array of numbers, got 'list'"),
        (
            lambda: RegressionPrompt(jnp.ones((5, 2)), jnp.ones(4)),
            "y: expected one target for each input, of shape (5,), got (4,)",
        ),
        (lambda: Ridge(1.0)((jnp.ones((5, 2)), jnp.ones(5))), "prompt: expected a prompt of regression, with x and y"),
        (lambda: Ridge(1.0)(TokenPrompt(jnp.arange(3))), "prompt: expected a prompt of regression, with x and y"),
        (lambda: DiscreteMMSE(jnp.ones((3, 4)), 0.1)(pairs()), "prompt: expected inputs of 4 numbers, got 2"),
        (lambda: GaussianPosterior(jnp.ones(3), 0.1)(pairs()), "prompt: expected inputs of 3 numbers, got 2"),
        (lambda: GaussianPosterior(jnp.eye(3), 0.1)(pairs()), "prompt: expected inputs of 3 numbers, got 2"),
        (lambda: GaussianPosterior(jnp.full((2, 2), jnp.nan), 0.1), "covariance: expected a finite number, got"),
        (lambda: NGram.from_laws([np.full((1, 3), 0.5)]), "distributions[0]: expected rows of probabilities"),
        (lambda: NGram.from_laws([np.array([[1.5, -0.5]])]), "distributions[0]: expected rows of probabilities"),
        (lambda: NGram.from_laws([np.array([[np.nan, 1.0]])]), "distributions[0]: expected rows of probabilities"),
        (
            lambda: NGram.from_laws([np.full((1, 2), 0.5), np.array([[0.5, 0.5], [1.0, 1.0]])]),
            "distributions[1]: expected rows of probabilities",
        ),
    ],
)
def test_prompts_and_distributions_that_do_not_fit_are_told(call, said):
    assert_refused(call, said)


def pairs():
    return RegressionPrompt(jnp.ones((5, 2)), jnp.ones(5))
