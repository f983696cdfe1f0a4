"""The label map is what the algorithm makes of the labels, alone, in a stack, and under differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.algorithms import (
    GradientDescent,
    GradientDescentPlusPlus,
    LabelMap,
    PreconditionedDescent,
    Ridge,
    label_maps,
)
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.tasks import CovariancePrompt

DIM, LENGTH = 3, 6


def matrices(seed, layers, dim=DIM):
    return jnp.asarray(0.2 * np.random.default_rng(seed).normal(size=(layers, dim, dim)) + 0.3 * np.eye(dim), float)


def algorithms(**shape):
    a, b = matrices(0, 3), matrices(1, 3)
    shape = {"layers": 3, "dim": DIM, "normalised": True, "half": True} | shape
    return {
        "descent": GradientDescent([0.1, 0.2, 0.15], **shape),
        "preconditioned": PreconditionedDescent(a, **shape),
        "plus_plus": GradientDescentPlusPlus(a, b, **shape),
        "plus_plus_shared": GradientDescentPlusPlus(a[0], b[0], **shape),
        "plus_plus_one_layer": GradientDescentPlusPlus(a[:1], b[:1], **(shape | {"layers": 1})),
    }


OTHER = {"normalised": False, "half": False}


@pytest.mark.parametrize(
    ("name", "convention"),
    [
        ("descent", {}),
        ("preconditioned", OTHER),
        ("plus_plus", {}),
        ("plus_plus", OTHER),
        ("plus_plus_shared", {}),
        ("plus_plus_one_layer", OTHER),
    ],
)
def test_applied_to_the_labels_it_gives_the_weights_of_the_algorithm(name, convention):
    with jax.enable_x64(True):
        algorithm = algorithms(**convention)[name]
        if convention:  # without the 1/n the steps have to be smaller
            algorithm = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf) / (2 * LENGTH)), algorithm)
        rng = np.random.default_rng(2)
        x, y = rng.normal(size=(LENGTH + 1, DIM)), rng.normal(size=LENGTH + 1)

        @jax.jit
        def both_routes(prompt, s):
            return LabelMap(algorithm)(CovariancePrompt(s, LENGTH)), algorithm.weights(prompt)

        prompt, x, y = RegressionPrompt(jnp.asarray(x), jnp.asarray(y)), x[:-1], y[:-1]
        found, weights = map(np.asarray, both_routes(prompt, jnp.asarray(x.T @ x / LENGTH)))
        assert found.shape == (1, DIM, DIM)
        np.testing.assert_allclose(found[0] @ (y @ x / LENGTH), weights[-1], rtol=1e-11, atol=1e-13)


def stack(dim, count):
    x = np.random.default_rng(3).normal(size=(count, LENGTH, dim))
    return jnp.asarray(np.swapaxes(x, 1, 2) @ x / LENGTH)


def maps(a, b, covariances):
    predictor = LabelMap(GradientDescentPlusPlus(a, b, layers=len(a), dim=a.shape[-1], normalised=True, half=True))
    return jax.vmap(lambda s: predictor(CovariancePrompt(s, LENGTH))[0])(covariances)


def gradients(a, b, covariances):
    """By a covariance they are known up to an antisymmetric part, which no covariance can follow."""
    by_a, by_b, by_s = jax.grad(lambda *parts: jnp.sum(jnp.sin(maps(*parts))), (0, 1, 2))(a, b, covariances)
    return maps(a, b, covariances), by_a, by_b, by_s + jnp.swapaxes(by_s, 1, 2)


@pytest.mark.slow
def test_in_a_stack_it_is_the_same_and_so_is_its_gradient(monkeypatch):
    """Eleven in blocks of four, the last one cut. The gradient is that of the plain recursion."""
    monkeypatch.setattr(label_maps, "_CACHED", 4 * DIM**2)
    with jax.enable_x64(True):
        parts = matrices(0, 3), matrices(1, 3), stack(DIM, 11)
        found = jax.jit(gradients)(*parts)
        monkeypatch.setattr(label_maps, "_SMALL", 0)
        for ours, theirs in zip(found, jax.jit(lambda *given: gradients(*given))(*parts), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_members_side_by_side_have_their_own_gradients():
    """With a stack of parameters of its own, and of one prompt alone."""
    with jax.enable_x64(True):
        a, b = (jnp.asarray(np.stack([matrices(seed, 2) for seed in pair])) for pair in ((0, 1), (2, 3)))
        covariances = stack(DIM, 2)
        together = jax.jit(jax.vmap(gradients, (0, 0, None)))(a, b, covariances)
        paired = jax.jit(jax.vmap(lambda *own: gradients(*own[:2], own[2][None])))(a, b, covariances)
        alone = jax.jit(gradients)
        for i in range(2):
            own = alone(a[i], b[i], covariances)
            for ours, theirs in zip(together, own, strict=True):
                np.testing.assert_allclose(ours[i], theirs, rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(paired[0][i, 0], own[0][i], rtol=1e-10)
            np.testing.assert_allclose(paired[3][i, 0], own[3][i], rtol=1e-10, atol=1e-12)


def test_large_matrices_are_multiplied_one_by_one():
    with jax.enable_x64(True):
        shape = {"layers": 2, "dim": 40, "normalised": True, "half": True}
        algorithm, s = GradientDescentPlusPlus.scalar(0.1, 0.1, **shape), np.asarray(stack(40, 1))[0]
        found = jax.jit(lambda s: LabelMap(algorithm)(CovariancePrompt(s, LENGTH))[0])(s)
        step = 0.1 * np.eye(40)
        h = np.eye(40) - 0.01 * s
        wanted = step - 0.1 * h @ h @ (s @ step - np.eye(40))
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-13)


def test_what_has_no_label_map_is_refused():
    with pytest.raises(InputError, match=r"algorithm: expected a GradientDescent, PreconditionedDescent or .* 'Ridge'"):
        LabelMap(Ridge(0.1))
    predictor = LabelMap(algorithms()["descent"])
    with pytest.raises(InputError, match="prompt: expected inputs of dimension 3, got 4"):
        predictor(CovariancePrompt(jnp.eye(4), LENGTH))
