r"""Label maps of gradient-descent algorithms: matrices that depend on the sample covariance alone.

The answers of :mod:`icllab.algorithms.descent` are linear in the labels,

.. math:: \hat y = x_q^\top R(S)\,m, \qquad S = \frac1n\sum_ix_ix_i^\top, \quad m = \frac1n\sum_iy_ix_i,

and where only S is drawn, as by :class:`~icllab.tasks.integrated_regression.IntegratedRegression`, it is the label map
:math:`R(S)` that is judged.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icllab.algorithms.descent import Descent, GradientDescentPlusPlus
from icllab.core.errors import expected
from icllab.core.protocols import AbstractPredictor
from icllab.tasks.integrated_regression import CovariancePrompt

_SMALL = 32  # dimensions up to which many matrices are multiplied side by side
_CACHED = 2**14  # entries of a block of them


class LabelMap(AbstractPredictor):
    r"""A gradient-descent algorithm applied to a sample covariance; it returns the label map, [1, dim, dim].

    .. math:: R_0 = 0, \qquad R \leftarrow R - H^\top A_lH\,(SR - I), \qquad
              H \leftarrow (I - B_l\,HSH^\top A_l^\top)\,H

    for GD++, and with :math:`H = I` for the others. Its parameters are those of ``algorithm``: what is trained here is
    the algorithm, and :func:`icllab.constructions.gradient_descent` makes attention of it. GD++ of several layers is
    written for speed, and has first derivatives in reverse mode only.

    Attributes:
        algorithm: A :class:`~icllab.algorithms.descent.GradientDescent`, ``PreconditionedDescent`` or
            ``GradientDescentPlusPlus``.

    Raises:
        InputError: ``algorithm`` is another; or, when called, inputs have another dimension.

    Derived: docs/training.md, Prompts that are integrated out.
    """

    positions: ClassVar[Literal["every", "last"]] = "last"

    algorithm: Any

    def __check_init__(self) -> None:
        if not isinstance(self.algorithm, Descent):
            options = "a GradientDescent, PreconditionedDescent or GradientDescentPlusPlus"
            raise expected("algorithm", options, type(self.algorithm).__name__)

    def __call__(self, prompt: CovariancePrompt) -> Float[Array, "1 dim dim"]:
        """The label map of the algorithm for inputs with this sample covariance."""
        algorithm = self.algorithm
        if prompt.dim != algorithm.dim:
            raise expected("prompt", f"inputs of dimension {algorithm.dim}", prompt.dim)
        scale = (1 if algorithm.half else 2) * (1 if algorithm.normalised else prompt.examples)
        covariance = scale * prompt.covariance
        with jax.default_matmul_precision("float32"):
            if isinstance(algorithm, GradientDescentPlusPlus) and algorithm.dim <= _SMALL:
                a, b = algorithm.matrices(covariance.dtype)
                return scale * (_plus_plus(covariance, a, b) if algorithm.layers > 1 else a[0])[None]
            identity = scale * jnp.eye(prompt.dim, dtype=covariance.dtype)
            return jax.vmap(algorithm.descend, (None, 1), 1)(covariance, identity)[None]


def _in_blocks(function: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a function of arrays whose last axis is the prompt to a function of one prompt."""
    # Matrices this small are no loop of their own: under vmap every loop is over prompts, in blocks that stay cached.

    def full(array: Array, count: int) -> Array:
        return jnp.broadcast_to(array[..., None], (*array.shape, count))

    @jax.custom_batching.custom_vmap
    def one(*arrays: Array) -> Any:
        return jax.tree.map(lambda out: out[..., 0], function(*(full(array, 1) for array in arrays)))

    @one.def_vmap
    def _(size: int, mask: list[bool], *arrays: Array) -> tuple[Any, Any]:
        block = min(size, 2 ** max(0, (_CACHED // arrays[0][0].size).bit_length() - 1))  # vectors without a remainder

        def blocks(array: Array) -> Array:
            padded = jnp.pad(array, ((0, -size % block), *((0, 0),) * (array.ndim - 1)))
            return jnp.moveaxis(padded.reshape(-1, block, *array.shape[1:]), 1, -1)

        def run(block_arrays: list[Array]) -> Any:
            iterator = iter(block_arrays)
            return function(*(next(iterator) if b else full(a, block) for a, b in zip(arrays, mask, strict=True)))

        outputs = jax.lax.map(run, [blocks(a) for a, b in zip(arrays, mask, strict=True) if b])
        outputs = jax.tree.map(lambda x: jnp.moveaxis(x, -1, 1).reshape(-1, *x.shape[1:-1])[:size], outputs)
        return outputs, jax.tree.map(lambda _: True, outputs)

    return one


def _recursion(
    s: Float[Array, "dim dim prompt"], a: Float[Array, "layer dim dim prompt"], b: Float[Array, "layer dim dim prompt"]
) -> Float[Array, "dim dim prompt"]:
    """The label maps of GD++ for all labels at once, from symmetric covariances."""
    label_map, layers = a[0], len(a)
    h = jnp.eye(len(s), dtype=s.dtype)[..., None] - _product(b[0], _turned(_product(a[0], s)))
    for i in range(1, layers):
        along = _product(h, s)
        label_map = label_map + _product(_turned(h), _product(a[i], h - _product(along, label_map)))
        if i < layers - 1:
            h = h - _product(_product(b[i], _product(along, _turned(h))), _product(_turned(a[i]), h))
    return label_map


def _turned(matrices: Float[Array, "row column prompt"]) -> Float[Array, "column row prompt"]:
    return jnp.swapaxes(matrices, 0, 1)


@jax.custom_vjp
def _product(a: Float[Array, "row inner prompt"], b: Float[Array, "inner column prompt"]) -> Array:
    """Products of stacked matrices, each computed as a sum of outer products."""
    first = a[:, 0][:, None] * b[0][None]
    return jax.lax.fori_loop(1, len(b), lambda k, total: total + a[:, k][:, None] * b[k][None], first)


_product.defvjp(
    lambda a, b: (_product(a, b), (a, b)),
    lambda factors, change: (_product(change, _turned(factors[1])), _product(_turned(factors[0]), change)),
)
_forward = _in_blocks(_recursion)
_backward = _in_blocks(lambda s, a, b, change: jax.vjp(_recursion, s, a, b)[1](change))


@jax.custom_vjp
def _plus_plus(
    s: Float[Array, "dim dim"], a: Float[Array, "layer dim dim"], b: Float[Array, "layer dim dim"]
) -> Float[Array, "dim dim"]:
    """The label map of GD++; its gradient computes the map again, which is cheaper than storing it."""
    return _forward(s, a, b)


_plus_plus.defvjp(lambda s, a, b: (_forward(s, a, b), (s, a, b)), lambda saved, change: _backward(*saved, change))
