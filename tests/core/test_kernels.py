"""Kernels against their definitions, and how far what is none is from being one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core import kernels
from icllab.core.errors import InputError


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def circle(points):
    t = np.linspace(0, 2 * np.pi, points + 1)[:-1]
    return jnp.asarray(np.stack([np.cos(t), np.sin(t)], axis=1))


def test_the_gram_matrix_is_of_scaled_inputs(getkey):
    x = jax.random.normal(getkey(), (5, 3))
    temperature = jnp.asarray(0.7)
    inner = np.asarray(x @ x.T) / 0.7
    np.testing.assert_allclose(kernels.gram("linear", temperature, x), inner, rtol=1e-13)
    np.testing.assert_allclose(kernels.gram("relu", temperature, x), np.maximum(inner, 0), rtol=1e-13)
    np.testing.assert_allclose(kernels.gram("exponential", temperature, x), np.exp(inner), rtol=1e-13)
    cubic = kernels.gram(lambda u, v: (1 + u @ v) ** 3, temperature, x)
    np.testing.assert_allclose(cubic, (1 + inner) ** 3, rtol=1e-12)


def test_on_the_sphere_the_exponential_is_gaussian(getkey):
    x = jax.random.normal(getkey(), (6, 4))
    x = x / jnp.linalg.norm(x, axis=1, keepdims=True)
    squares = jnp.sum((x[:, None] - x[None]) ** 2, axis=-1)
    found = kernels.gram("exponential", jnp.asarray(0.5), x)
    np.testing.assert_allclose(found, jnp.exp(2.0) * jnp.exp(-squares), rtol=1e-13)


def test_the_arc_cosine_kernel_is_a_mean_over_rectified_units():
    """On the circle: 2 E relu(g'u) relu(g'v) by quadrature over the angle of g, with E |g|^2 = 2."""
    u, v = jnp.array([1.0, 0.0]), jnp.array([2 * jnp.cos(1.1), 2 * jnp.sin(1.1)])
    g = circle(4096)
    mean = 2 * 2 * jnp.mean(jax.nn.relu(g @ u) * jax.nn.relu(g @ v))
    np.testing.assert_allclose(kernels.arc_cosine(u, v), mean, rtol=1e-6)
    np.testing.assert_allclose(kernels.arc_cosine(v, v), 4.0, rtol=1e-13)
    np.testing.assert_allclose(kernels.arc_cosine(v, -v), 0.0, atol=1e-13)
    assert all(bool(jnp.isfinite(part).all()) for part in jax.grad(kernels.arc_cosine, (0, 1))(v, v))


def test_how_negative_the_rectified_product_is_tends_to_a_fifteenth():
    off = [float(kernels.negative_part("relu", circle(m))) - 1 / 15 for m in (40, 80)]
    assert 0 < off[1] < off[0] < 0.01
    assert 3.5 < off[0] / off[1] < 4.5  # the Fourier series of a corner: second order
    for kernel in ("linear", "exponential", kernels.arc_cosine):
        assert float(kernels.negative_part(kernel, circle(40))) < 1e-14


def test_what_is_no_kernel_is_warned_of():
    assert kernels.kernel_warnings("linear") == kernels.kernel_warnings(kernels.arc_cosine) == ()
    (relu,) = kernels.kernel_warnings("relu")
    assert relu.startswith("relu(<u, v>) is not positive semi-definite")
    (softmax,) = kernels.kernel_warnings("softmax")
    assert softmax.startswith("softmax is not a kernel")
    (unknown,) = kernels.kernel_warnings(lambda u, v: u @ v)
    assert "is not known here" in unknown


def test_names_that_are_not_known_are_refused():
    every = "kernel: expected linear, relu, exponential, softmax or a function, got "
    for other in ("gauss", "Linear", 3, None):
        with pytest.raises(InputError, match=every + repr(other)):
            kernels.require_kernel("kernel", other)
    with pytest.raises(InputError, match="weighting: expected linear, relu, exponential, softmax, got <"):
        kernels.require_kernel("weighting", kernels.arc_cosine, function=False)
    with pytest.raises(InputError, match="a softmax is not symmetric"):
        kernels.negative_part("softmax", circle(4))
