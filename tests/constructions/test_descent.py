"""Twelve layers answer as the twelve steps they are made of: to 1e-12 in float64, to 1e-5 in float32."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab import constructions
from icllab.algorithms import (
    FunctionalDescent,
    GaussianProcess,
    GradientDescent,
    GradientDescentPlusPlus,
    PreconditionedDescent,
    Ridge,
)
from icllab.core.errors import InputError
from icllab.core.kernels import arc_cosine, gram
from icllab.core.prompt import RegressionPrompt

DIM, LENGTH, LAYERS = 3, 5, 12
SHAPE = {"layers": LAYERS, "dim": DIM, "normalised": True, "half": True}
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def drawn(precision, length=LENGTH):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(length + 1, DIM)), rng.normal(size=length + 1)
    return RegressionPrompt(jnp.asarray(x, precision), jnp.asarray(y, precision))


def matrices(scale, seed, *shape):
    return scale * np.random.default_rng(seed).normal(size=(*shape, DIM, DIM))


def functional(kernel, noise=0.0, **fields):
    shape = {"temperature": 2.0, "layers": LAYERS, "dim": DIM, "normalised": True}
    return FunctionalDescent(np.linspace(0.1, 0.3, LAYERS), kernel=kernel, noise_variance=noise, **(shape | fields))


ALGORITHMS = {
    "one rate": lambda: GradientDescent(0.3, **SHAPE),
    "own rates, neither factor": lambda: GradientDescent(
        np.linspace(0.01, 0.04, LAYERS), **(SHAPE | {"half": False, "normalised": False})
    ),
    "one matrix": lambda: PreconditionedDescent(matrices(0.2, 1), **SHAPE),
    "own matrices, not symmetric": lambda: PreconditionedDescent(matrices(0.2, 2, LAYERS), **SHAPE),
    "GD++, matrices": lambda: GradientDescentPlusPlus(matrices(0.2, 3, LAYERS), matrices(0.1, 4, LAYERS), **SHAPE),
    "GD++, numbers": lambda: GradientDescentPlusPlus.scalar(0.3, 0.2, **SHAPE),
}
KERNELS = {
    "linear": lambda: functional("linear"),
    "relu": lambda: functional("relu", normalised=False, temperature=9.0),
    "exponential under noise": lambda: functional("exponential", 0.3),
    "softmax": lambda: functional("softmax"),
    "a function": lambda: functional(arc_cosine, 0.1),
}


@eqx.filter_jit
def answered(predictor, prompt):
    return predictor(prompt)


def off(found, wanted):
    return np.max(np.abs(found - wanted)) / np.max(np.abs(wanted))


def everywhere(names, single):
    """All of them in float64; in float32 one by default."""
    slow = [name for name in names if name != single]
    return [
        *((name, "float64") for name in names),
        (single, "float32"),
        *(pytest.param(name, "float32", marks=pytest.mark.slow) for name in slow),
    ]


@pytest.mark.parametrize(
    ("name", "precision"), everywhere(ALGORITHMS, "own matrices, not symmetric"), indirect=["precision"]
)
def test_linear_attention_answers_as_its_algorithm(name, precision):
    algorithm, prompt = ALGORITHMS[name](), drawn(precision)
    wanted = np.asarray(answered(algorithm, prompt))
    assert wanted.dtype == np.dtype(precision)
    for answers, form in (("every", "tokens"), ("every", "gram"), ("last", "tokens")):
        attention = constructions.gradient_descent(algorithm, answers=answers, form=form)
        assert attention.layers == LAYERS
        found = np.asarray(answered(attention, prompt))
        assert off(found, wanted if answers == "every" else wanted[-1:]) < TOLERANCE[precision]


@pytest.mark.parametrize(("name", "precision"), everywhere(KERNELS, "softmax"), indirect=["precision"])
def test_kernel_attention_answers_as_its_algorithm(name, precision):
    algorithm, prompt = KERNELS[name](), drawn(precision)
    found, wanted = (
        answered(predictor, prompt) for predictor in (constructions.gradient_descent(algorithm), algorithm)
    )
    assert off(np.asarray(found), np.asarray(wanted)) < TOLERANCE[precision]


def test_the_label_slots_hold_what_is_left_of_the_labels():
    """After layer l, y_i - f_l(x_i): the model inside, seen from the examples."""
    with jax.enable_x64(True):
        prompt = drawn("float64")
        algorithm = GradientDescent(0.3, **SHAPE)
        attention = constructions.gradient_descent(algorithm, answers="last")
        activations = jax.tree.map(np.asarray, eqx.filter_jit(attention.trace)(prompt).activations)
        x, y, w = np.asarray(prompt.x[:-1]), np.asarray(prompt.y[:-1]), np.zeros(DIM)
        for layer in range(LAYERS):
            w = w - 0.3 * x.T @ (x @ w - y) / LENGTH
            np.testing.assert_allclose(activations[f"layer{layer}"][:-1, -1], y - x @ w, atol=1e-12)
            np.testing.assert_allclose(activations[f"layer{layer}"][-1, -1], -w @ np.asarray(prompt.x[-1]), atol=1e-12)


def test_under_label_noise_depth_leads_to_the_posterior_mean_and_not_without_the_diagonal_head():
    """Within the bound of the docstring at every depth; without the head the noise is fitted."""
    with jax.enable_x64(True):
        prompt, rate = drawn("float64"), 0.15
        process = GaussianProcess(0.8, kernel="linear", temperature=1.0)
        bayes = np.asarray(answered(process, prompt))[-1:]
        np.testing.assert_allclose(bayes, np.asarray(answered(Ridge(0.8), prompt))[-1:], rtol=1e-11)
        k = np.asarray(gram("linear", jnp.asarray(1.0), prompt.x))
        inner, reach = k[:-1, :-1] + 0.8 * np.eye(LENGTH), np.linalg.norm(k[-1, :-1])
        slowest = np.max(np.abs(1 - rate * np.linalg.eigvalsh(inner)))
        bound = reach * np.linalg.norm(np.linalg.solve(inner, np.asarray(prompt.y[:-1])))
        assert slowest < 1
        for layers in (5, 24):
            fields = {"rate": rate, "layers": layers, "dim": DIM, "answers": "last"}
            deep = constructions.gaussian_process(process, **fields)
            reached = off(np.asarray(answered(deep, prompt)), bayes)
            assert reached <= slowest**layers * bound / abs(float(bayes[0]))
        noiseless = GaussianProcess(0.0, kernel="linear", temperature=1.0)
        without = constructions.gaussian_process(noiseless, **fields)
        assert without.diagonal is None
        assert off(np.asarray(answered(without, prompt)), bayes) > 0.02 > reached


def test_what_has_no_construction_is_refused():
    with pytest.raises(InputError, match=r"algorithm: expected a GradientDescent, .*, got 'Ridge'"):
        constructions.gradient_descent(Ridge(0.1))
    with pytest.raises(
        InputError, match=r"form: expected 'tokens' \(other forms are for linear attention only\), got 'gram'"
    ):
        constructions.gradient_descent(functional("linear"), form="gram")
