"""The merging product is the product: values and gradients, mapped over rows, over members, over both."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.models.networks.dense import Dense, Perceptron, activation, product


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def plain(x, w):
    return jnp.einsum("...i,io->...o", x, w)


def close(a, b):
    jax.tree.map(lambda p, q: np.testing.assert_allclose(p, q, rtol=1e-12, atol=1e-12), a, b)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


# (axes of x beyond [row, inner], axes of w beyond [inner, outer], the maps from the outermost inwards)
MAPS = {
    "one": ((), (), []),
    "prompts": ((5,), (), [(0, None)]),
    "prompts along another axis": ((5,), (), [(1, None)]),
    "members": ((3,), (3,), [(0, 0)]),
    "members share the rows": ((), (3,), [(None, 0)]),
    "members of prompts": ((3, 5), (3,), [(0, 0), (0, None)]),
    "members share the prompts": ((5,), (3,), [(None, 0), (0, None)]),
    "prompts of members": ((5, 3), (3,), [(0, None), (0, 0)]),
    "two axes of prompts": ((2, 5), (), [(0, None), (0, None)]),
}


def mapped_over(maps, f):
    for axes in reversed(maps):
        f = jax.vmap(f, axes)
    return f


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("sizes", [(4, 2), pytest.param((2, 4), marks=pytest.mark.slow)])
def test_the_product_and_its_derivatives_are_those_of_the_plain_one(name, sizes):
    before_x, before_w, maps = MAPS[name]
    inner, outer = sizes
    x = normal(*before_x, 7, inner) if maps != [(1, None)] else normal(7, *before_x, inner)
    w = normal(*before_w, inner, outer, seed=1)

    def mapped(f):
        return mapped_over(maps, f)

    def loss(f):
        return lambda x, w: jnp.sum(jnp.sin(mapped(f)(x, w)))

    def per_example(f):
        return mapped(jax.grad(lambda x, w: jnp.sum(jnp.sin(f(x, w))), argnums=(0, 1)))

    tangents = (jnp.asarray(np.cos(x)), jnp.asarray(np.sin(w)))

    def everything(f):
        """One program: what is compared is compiled, and compiled once."""
        return jax.jit(
            lambda x, w: (
                mapped(f)(x, w),
                jax.grad(loss(f), argnums=(0, 1))(x, w),
                jax.grad(jax.checkpoint(loss(f)), argnums=(0, 1))(x, w),
                per_example(f)(x, w),
                jax.jvp(loss(f), (x, w), tangents),
                jax.jvp(jax.grad(loss(f), argnums=(0, 1)), (x, w), tangents),
            )
        )(x, w)

    close(everything(product), everything(plain))


def test_vectors_and_more_axes_of_rows():
    w = normal(4, 2)
    for shape in ((4,), (3, 4), (2, 3, 4)):
        x = normal(*shape, seed=1)
        close(product(x, w), np.asarray(x) @ np.asarray(w))


def test_nothing_has_to_be_compiled_as_a_whole():
    """The rule under ``vmap`` and the product itself, one operation at a time."""
    x, w = normal(3, 5, 7, 4), normal(3, 4, 2, seed=1)
    close(mapped_over(MAPS["members of prompts"][2], product)(x, w), np.asarray(x) @ np.asarray(w)[:, None])


def test_a_batch_of_prompts_is_one_product_forward_and_backward():
    """No product is batched, and none sums over two axes: that is what merging is for."""
    x, w = normal(5, 7, 4), normal(4, 2, seed=1)
    loss = lambda w, x: jnp.sum(jnp.sin(jax.vmap(lambda row: product(row, w))(x)))  # noqa: E731
    text = jax.jit(jax.grad(loss)).lower(w, x).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) == 2
    assert not any("batching_dims" in line for line in products)
    assert sum("tensor<35x4xf64>" in line for line in products) == 2


def test_in_float32_the_dtype_stays():
    x, w = jnp.zeros((3, 4), jnp.float32), jnp.zeros((4, 2), jnp.float32)
    value, gradient = jax.eval_shape(jax.value_and_grad(lambda w: jnp.sum(product(x, w))), w)
    assert value.dtype == gradient.dtype == jnp.float32


def test_an_affine_map_and_the_law_of_its_weights(getkey):
    layer = Dense(200, 300, key=getkey())
    x = normal(3, 200)
    close(layer(x), np.asarray(x) @ np.asarray(layer.weight))
    # 60 000 weights: the standard error of their variance is 0.6 percent of it.
    for weight, variance in ((layer.weight, 1 / 200), (Dense(200, 300, std=0.02, key=getkey()).weight, 4e-4)):
        assert abs(np.var(weight) / variance - 1) < 4 * (2 / 60000) ** 0.5
    assert Dense(200, 300, bias=False, key=getkey()).bias is None


def test_a_perceptron_is_its_layers(getkey):
    stack = Perceptron(3, (5, 4), 2, nonlinearity="tanh", last_std=0.0, key=getkey())
    x = normal(6, 3)
    assert not np.any(stack(x))
    stack = Perceptron(3, (5, 4), 2, nonlinearity=jnp.tanh, key=getkey())
    seen = {}
    a, b, c = (np.asarray(layer.weight) for layer in stack.layers)
    close(stack(x, lambda name, value: seen.setdefault(name, value)), np.tanh(np.tanh(np.asarray(x) @ a) @ b) @ c)
    assert list(seen) == ["hidden0", "hidden1"]
    affine = Perceptron(3, (), 2, nonlinearity="relu", key=getkey())
    assert not np.any(affine(jnp.zeros((6, 3))))


def test_an_unknown_activation_is_answered_with_the_nearest(getkey):
    with pytest.raises(InputError, match="unknown activation 'gelo'; did you mean 'gelu'"):
        activation("gelo")
    with pytest.raises(
        InputError, match="unknown activation 'cosh'; known: exact_gelu, gelu, linear, relu, silu, tanh"
    ):
        Perceptron(1, (), 1, nonlinearity="cosh", key=getkey())


def test_numbers_of_two_precisions_are_promoted_as_by_a_matrix_product():
    """Forward and gradient, under vmap too: float32 prompts meet float64 weights."""
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(2, 3, 4)).astype(np.float32), rng.normal(size=(4, 5))
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):

        def total(f):
            return jax.grad(lambda x, w: jnp.sum(jax.vmap(f, (0, None))(x, w) ** 2), (0, 1))(jnp.asarray(x), weight)

        assert product(jnp.asarray(x), jnp.asarray(weight)).dtype == np.float64
        for ours, known in zip(total(product), total(jnp.matmul), strict=True):
            assert ours.dtype == known.dtype
            np.testing.assert_allclose(ours, known, rtol=1e-6 if known.dtype == np.float32 else 1e-12)
