"""Dense layers that merge the axes over which they are mapped, and stacks of such layers.

.. math:: y_i = x_i W + b

A model is written on one prompt, so a batch of prompts reaches a dense layer through ``vmap``. Mapped the
ordinary way, the gradient of ``W`` sums over two axes at once, prompts and positions, and a compiler for CPUs
transposes both factors before it multiplies them. Here the mapped axis is merged with the axis of rows first,
so that forward and gradient are each one matrix product.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.domains import NON_NEGATIVE
from icllab.core.errors import expected, require_flag, require_integer, require_key, unknown
from icllab.core.kernels import ELEMENTWISE


def wide(weight: Array) -> Array:
    """Weights in the type in which they compute: JAX's default type of floats if they are kept in bfloat16."""
    return weight.astype(jnp.result_type(float)) if weight.dtype == jnp.bfloat16 else weight


def product(x: Float[Array, "*rows inner"], weight: Float[Array, "inner outer"]) -> Float[Array, "*rows outer"]:
    """``x @ weight``; under ``vmap``, axes that only ``x`` has become rows of one product.

    An axis that the weights are mapped over too (members of an ensemble) stays a batch of products. Numbers of two
    precisions are promoted as by ``jnp.matmul``; weights in bfloat16 are widened first, unless ``x`` is so too.
    """
    weight = weight if x.dtype == jnp.bfloat16 else wide(weight)
    rows, dtype = x.shape[:-1], jnp.result_type(x, weight)
    x, weight = x.astype(dtype), weight.astype(dtype)
    return _product.bind(x.reshape(-1, x.shape[-1]), weight).reshape(*rows, weight.shape[-1])


def _plain(x: Array, weight: Array) -> Array:
    return jnp.matmul(x, weight)


def _shape(x: Any, weight: Any) -> ShapedArray:
    return ShapedArray((x.shape[0], weight.shape[1]), x.dtype)


def _mapped(values: tuple[Array, Array], axes: tuple[Any, Any]) -> tuple[Array, int]:
    """The rule under ``vmap``: merge an axis that only ``x`` has with the rows."""
    (x, weight), (of_x, of_weight) = values, axes
    if of_weight is None:
        return product(jnp.moveaxis(x, of_x, 0), weight), 0
    weight = jnp.moveaxis(weight, of_weight, 0)
    if of_x is None:
        # One set of rows for all members: one product with the members' columns side by side.
        members, inner, outer = weight.shape
        products = product(x, jnp.moveaxis(weight, 0, 1).reshape(inner, members * outer))
        return products.reshape(x.shape[0], members, outer), 1
    return jnp.matmul(jnp.moveaxis(x, of_x, 0), weight), 0


def _over_rows(x: Array, y: Array) -> Array:
    """``x.T @ y``, with the wider factor second, which halves the time on a CPU."""
    dims = (((0,), (0,)), ((), ()))
    if x.shape[1] <= y.shape[1]:
        return jax.lax.dot_general(x, y, dims)
    # Without the barrier the compiler undoes the exchange.
    return jax.lax.optimization_barrier(jax.lax.dot_general(y, x, dims)).T


_product = Primitive("icllab_product")
_product.def_impl(_plain)
_product.def_abstract_eval(_shape)
mlir.register_lowering(_product, mlir.lower_fun(_plain, multiple_results=False))
batching.primitive_batchers[_product] = _mapped
ad.defbilinear(
    _product,
    lambda cotangent, x, weight: product(cotangent, weight.T),
    lambda cotangent, x, weight: _over_rows(x, cotangent),
)


class Dense(eqx.Module):
    r"""An affine map of the last axis, :math:`y = x W + b`.

    Weights are drawn from :math:`N(0, \sigma^2)`, with :math:`\sigma^2 = 1 / \text{inner}` unless ``std`` is given;
    biases start at zero.
    """

    weight: Float[Array, "inner outer"]
    bias: Float[Array, " outer"] | None

    def __init__(self, inner: int, outer: int, *, bias: bool = True, std: float | None = None, key: PRNGKeyArray):
        require_integer("inner", inner, least=0)
        require_integer("outer", outer)
        require_flag("bias", bias)
        require_spread("std", std)
        require_key(key)
        spread = float(max(inner, 1) ** -0.5) if std is None else std
        self.weight = spread * jax.random.normal(key, (inner, outer))
        self.bias = jnp.zeros(outer) if bias else None

    def __call__(self, x: Float[Array, "*rows inner"]) -> Float[Array, "*rows outer"]:
        """The map of every row."""
        y = product(x, self.weight)
        return y if self.bias is None else y + jnp.broadcast_to(self.bias, y.shape)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "linear": ELEMENTWISE["linear"],
    "relu": ELEMENTWISE["relu"],
    "gelu": jax.nn.gelu,
    "exact_gelu": functools.partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


def activation(name: str | Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A nonlinearity by name, or the given function; ``gelu`` uses tanh, ``exact_gelu`` uses erf."""
    if callable(name):
        return name
    if not isinstance(name, str):
        raise expected("nonlinearity", ", ".join(ACTIVATIONS) + " or a function", name)
    if name not in ACTIVATIONS:
        raise unknown("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


def require_widths(name: str, widths: Any, otherwise: str = "") -> None:
    """Raise unless ``widths`` is a tuple of hidden widths; the error names ``otherwise`` as an alternative."""
    if not isinstance(widths, list | tuple):
        hint = f"{name}=({widths},) is one layer" if isinstance(widths, int) and not isinstance(widths, bool) else ""
        raise expected(name, f"a tuple of widths, one for each hidden layer{otherwise}", widths, hint)
    for width in widths:
        require_integer(name, width)


def require_spread(name: str, value: Any, *, default: bool = True) -> None:
    """Raise unless ``value`` is a standard deviation, a traced number or, if there is a ``default``, None."""
    if value is not None or not default:
        NON_NEGATIVE.require_scalar(name, value)


class Perceptron(eqx.Module):
    r"""Dense layers with nonlinearities between them; without hidden layers, one affine map.

    .. math:: x \mapsto W_L\, \phi( \cdots \phi(x W_1 + b_1) \cdots ) + b_L

    Attributes:
        layers: The dense layers, first to last.
        nonlinearity: :math:`\phi`, a name of :data:`ACTIVATIONS` or a function.
    """

    layers: tuple[Dense, ...]
    nonlinearity: str | Callable[[Array], Array] = eqx.field(static=True)

    def __init__(
        self,
        inner: int,
        hidden: tuple[int, ...],
        outer: int,
        *,
        nonlinearity: str | Callable[[Array], Array],
        std: float | None = None,
        last_std: float | None = None,
        bias: bool = True,
        key: PRNGKeyArray,
    ):
        activation(nonlinearity)
        require_widths("hidden", hidden)
        require_key(key)
        widths = (inner, *hidden, outer)
        keys = jax.random.split(key, len(widths) - 1)
        stds = [std] * (len(keys) - 1) + [std if last_std is None else last_std]
        self.layers = tuple(
            Dense(a, b, bias=bias, std=s, key=k) for a, b, s, k in zip(widths[:-1], widths[1:], stds, keys, strict=True)
        )
        self.nonlinearity = nonlinearity

    def __call__(
        self, x: Float[Array, "*rows inner"], record: Callable[[str, Array], Array] = lambda _, value: value
    ) -> Float[Array, "*rows outer"]:
        """The map of every row; ``record`` sees each hidden layer as ``hidden0``, ``hidden1``, ..."""
        phi = activation(self.nonlinearity)
        for i, layer in enumerate(self.layers[:-1]):
            x = record(f"hidden{i}", phi(layer(x)))
        return self.layers[-1](x)


class GatedPerceptron(eqx.Module):
    r"""One hidden layer multiplied by a gate; with ``"silu"``, SwiGLU.

    .. math:: x \mapsto W_2\, \big( \phi(x W_g + b_g) \odot (x W_1 + b_1) \big) + b_2

    Attributes:
        gate: :math:`W_g, b_g`.
        layers: :math:`W_1, b_1` and :math:`W_2, b_2`.
        nonlinearity: :math:`\phi`, a name of :data:`ACTIVATIONS` or a function.

    Source: [Shazeer20].
    """

    gate: Dense
    layers: tuple[Dense, Dense]
    nonlinearity: str | Callable[[Array], Array] = eqx.field(static=True)

    def __init__(
        self,
        inner: int,
        hidden: int,
        outer: int,
        *,
        nonlinearity: str | Callable[[Array], Array],
        std: float | None = None,
        last_std: float | None = None,
        bias: bool = True,
        key: PRNGKeyArray,
    ):
        activation(nonlinearity)
        require_key(key)
        of_gate, of_first, of_last = jax.random.split(key, 3)
        self.gate = Dense(inner, hidden, bias=bias, std=std, key=of_gate)
        last = Dense(hidden, outer, bias=bias, std=std if last_std is None else last_std, key=of_last)
        self.layers = Dense(inner, hidden, bias=bias, std=std, key=of_first), last
        self.nonlinearity = nonlinearity

    def __call__(
        self, x: Float[Array, "*rows inner"], record: Callable[[str, Array], Array] = lambda _, value: value
    ) -> Float[Array, "*rows outer"]:
        """The map of every row; ``record`` sees ``gate`` after the nonlinearity, and the product as ``hidden0``."""
        gate = record("gate", activation(self.nonlinearity)(self.gate(x)))
        return self.layers[1](record("hidden0", gate * self.layers[0](x)))
