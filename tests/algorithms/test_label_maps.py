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
from icllab.tasks import CovariancePrompt, LinearRegression

DIM, LENGTH = 3, 6


def matrices(key, layers, dim=DIM):
    return 0.2 * jax.random.normal(key, (layers, dim, dim)) + 0.3 * jnp.eye(dim)[None]


def algorithms(key, **shape):
    a, b = (matrices(k, 3) for k in jax.random.split(key))
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
def test_applied_to_the_labels_it_gives_the_weights_of_the_algorithm(name, convention, getkey):
    with jax.enable_x64(True):
        algorithm = algorithms(getkey(), **convention)[name]
        if convention:  # without the 1/n the steps have to be smaller
            algorithm = jax.tree.map(lambda leaf: leaf / (2 * LENGTH), algorithm)
        prompt = LinearRegression.convention("ahn", dim=DIM, length=LENGTH).sample(key=getkey())
        x, y = prompt.x[:-1], prompt.y[:-1]
        found = jax.jit(lambda s: LabelMap(algorithm)(CovariancePrompt(s, LENGTH)))(x.T @ x / LENGTH)
        assert found.shape == (1, DIM, DIM)
        np.testing.assert_allclose(found[0] @ (y @ x / LENGTH), algorithm.weights(prompt)[-1], rtol=1e-11, atol=1e-13)


def stack(getkey, dim, count):
    x = jax.random.normal(getkey(), (count, LENGTH, dim))
    return jnp.swapaxes(x, 1, 2) @ x / LENGTH


def maps(a, b, covariances):
    predictor = LabelMap(GradientDescentPlusPlus(a, b, layers=len(a), dim=a.shape[-1], normalised=True, half=True))
    return jax.vmap(lambda s: predictor(CovariancePrompt(s, LENGTH))[0])(covariances)


def gradients(a, b, covariances):
    """By a covariance they are known up to an antisymmetric part, which no covariance can follow."""
    by_a, by_b, by_s = jax.grad(lambda *parts: jnp.sum(jnp.sin(maps(*parts))), (0, 1, 2))(a, b, covariances)
    return maps(a, b, covariances), by_a, by_b, by_s + jnp.swapaxes(by_s, 1, 2)


@pytest.mark.slow
def test_in_a_stack_it_is_the_same_and_so_is_its_gradient(getkey, monkeypatch):
    """Eleven in blocks of four, the last one cut. The gradient is that of the plain recursion."""
    monkeypatch.setattr(label_maps, "_CACHED", 4 * DIM**2)
    with jax.enable_x64(True):
        parts = matrices(getkey(), 3), matrices(getkey(), 3), stack(getkey, DIM, 11)
        found = jax.jit(gradients)(*parts)
        monkeypatch.setattr(label_maps, "_SMALL", 0)
        for ours, theirs in zip(found, jax.jit(lambda *given: gradients(*given))(*parts), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_members_side_by_side_have_their_own_gradients(getkey):
    """With a stack of parameters of its own, and of one prompt alone."""
    with jax.enable_x64(True):
        a, b = (jnp.stack([matrices(getkey(), 2) for _ in range(2)]) for _ in range(2))
        covariances = stack(getkey, DIM, 2)
        together = jax.jit(jax.vmap(gradients, (0, 0, None)))(a, b, covariances)
        paired = jax.jit(jax.vmap(lambda *own: gradients(*own[:2], own[2][None])))(a, b, covariances)
        alone = jax.jit(gradients)
        for i in range(2):
            own = alone(a[i], b[i], covariances)
            for ours, theirs in zip(together, own, strict=True):
                np.testing.assert_allclose(ours[i], theirs, rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(paired[0][i, 0], own[0][i], rtol=1e-10)
            np.testing.assert_allclose(paired[3][i, 0], own[3][i], rtol=1e-10, atol=1e-12)


def test_large_matrices_are_multiplied_one_by_one(getkey):
    with jax.enable_x64(True):
        shape = {"layers": 2, "dim": 40, "normalised": True, "half": True}
        algorithm, s = GradientDescentPlusPlus.scalar(0.1, 0.1, **shape), stack(getkey, 40, 1)[0]
        found = LabelMap(algorithm)(CovariancePrompt(s, LENGTH))[0]
        step = 0.1 * np.eye(40)
        h = np.eye(40) - 0.01 * np.asarray(s)
        wanted = step - 0.1 * h @ h @ (np.asarray(s) @ step - np.eye(40))
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-13)


def test_what_has_no_label_map_is_refused(getkey):
    with pytest.raises(InputError, match=r"algorithm: expected a GradientDescent, PreconditionedDescent or .* 'Ridge'"):
        LabelMap(Ridge(0.1))
    predictor = LabelMap(algorithms(getkey())["descent"])
    with pytest.raises(InputError, match="prompt: expected inputs of dimension 3, got 4"):
        predictor(CovariancePrompt(jnp.eye(4), LENGTH))
