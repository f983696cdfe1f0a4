r"""Softmax attention that descends: for labels :math:`\pm1`, and, with dense layers, for kernel ridge regression."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icllab.algorithms.descent import NormalisedDescent, per_layer
from icllab.algorithms.functional import KernelRichardson
from icllab.core.domains import POSITIVE
from icllab.core.errors import expected, require_integer
from icllab.core.kernels import gaussian
from icllab.models.networks.embedding import AbstractArrangement, Joined, Layout
from icllab.models.networks.transformer import BlockOptions, Transformer


class SignedExamples(Joined):
    """Tokens with three parts: the input times its label, of an example; zeros; and the input, of a query.

    Attributes:
        dim: Dimension of the inputs.
    """

    dim: int = eqx.field(static=True, kw_only=True)

    @property
    def outputs(self) -> int | None:
        """Entries of the two vectors that are read."""
        return 2 * self.dim

    def features(self, dim: int) -> int:
        """Number of coordinates of the three parts."""
        return 3 * dim

    def tokens(self, prompt: Any) -> Float[Array, "token feature"]:
        """The examples, then the queries."""
        x, y = self.examples(prompt)
        examples, queries = (y * x)[:-1], x if self.answers == "every" else x[-1:]
        return jnp.concatenate(
            [jnp.pad(examples, ((0, 0), (0, 2 * self.dim))), jnp.pad(queries, ((0, 0), (2 * self.dim, 0)))]
        )


class AnchoredExamples(Joined):
    r"""Tokens :math:`(x, y, |x|^2/2, 0, 1, 0, 0, 0)`, after an anchor :math:`(0, 0, 0, 1, 1, 0, 0, 0)` that all see."""

    def features(self, dim: int) -> int:
        """Number of coordinates of a token."""
        return dim + 7

    def tokens(self, prompt: Any) -> Float[Array, "token feature"]:
        """The anchor, the examples, and the queries."""
        tokens = super().tokens(prompt)
        square, one = jnp.sum(tokens[:, :-1] ** 2, axis=1, keepdims=True) / 2, jnp.ones_like(tokens[:, :1])
        tokens = jnp.pad(jnp.concatenate([tokens, square, 0 * one, one], axis=1), ((1, 0), (0, 3)))
        return tokens.at[0, -5:-3].set(1)

    def layout(self, positions: int) -> Layout:
        """The layout of the examples and queries, with the anchor before them."""
        rest = super().layout(positions)
        visible = np.pad(rest.visible, ((1, 0), (1, 0)))
        visible[:, 0] = True
        places = np.append(0, rest.place + 1)
        return Layout(visible, np.append(0, rest.examples), places, slice(rest.read.start + 1, None), rest.keys + 1)

    def token_count(self, length: int) -> int:
        """One position for each token."""
        return length + 2


class Classifier(Transformer):
    """A transformer whose answer is the inner product of two vectors that it reads from the stream."""

    def answers(self, stream: Float[Array, "row width"]) -> Float[Array, " row"]:
        """The inner product of both halves of the readout."""
        first, second = jnp.split(super().answers(stream), 2, axis=1)
        return jnp.sum(first * second, axis=1)


def descending_classifier(algorithm: NormalisedDescent, answers: str) -> Classifier:
    """Attention whose layers are the steps: a softmax gives the weights of the examples in the gradient."""
    dim, rates = algorithm.dim, per_layer(algorithm.rate, algorithm.layers, 0, jnp.result_type(algorithm.rate))
    arrangement = SignedExamples(answers=answers, causal=answers == "every", query_is_key=False, dim=dim)
    example, weights, queries = np.split(np.eye(3 * dim), 3, axis=1)
    inwards = [part[:, None] for part in (-weights, example, example)]
    heads = [part for rate in rates for part in (*inwards, rate * weights.T[None])]
    options = BlockOptions(heads=1, mlp=None, norm="none", head_dim=dim, scale=1.0)
    readout = np.concatenate([weights, queries], axis=1), np.zeros(2 * dim)
    return with_weights(Classifier, arrangement, options, [*heads, *readout], rates.dtype, dim=dim, layers=len(rates))


def kernel_richardson(algorithm: KernelRichardson, *, dim: int, pieces: int, size: float) -> Transformer:
    r"""A transformer of softmax attention and ReLU layers that takes the steps of Richardson's iteration.

    .. math:: |\hat y - \hat y^{(L)}| \le c_1(n, \lambda)\,L\Bigl(\frac n{n+\lambda}\Bigr)^LB
              + c_2(n, \lambda)\,\frac B{m^2}

    for the last answer of kernel ridge regression on n examples. The attention of each of the L equal blocks is exact.
    Its :math:`2m + 3` hidden units multiply two numbers as a difference of squares, each linear between knots.

    Args:
        algorithm: The iteration, with the kernel :func:`~icllab.core.kernels.gaussian`.
        dim: Dimension of inputs.
        pieces: m, pieces of each square.
        size: B, bound of labels and of :math:`|y_j - \lambda\alpha_j|` in any step; larger products are wrong.

    Source: the blocks, their number and their width by the abstract of [Yan26].
    Derived: docs/constructions.md, Kernel ridge regression by softmax attention.
    """
    if algorithm.kernel is not gaussian:
        raise expected("algorithm", "the kernel icllab.core.kernels.gaussian", algorithm.kernel)
    for name, value in (("dim", dim), ("pieces", pieces)):
        require_integer(name, value)
    POSITIVE.require("size", size)
    temperature, ridge, width = float(algorithm.temperature), float(algorithm.ridge), dim + 7
    y, square, anchor, one, alpha, share, buffer = range(dim, width)
    query, key, value, output = (np.zeros((width, dim + 2)) for _ in range(4))
    query[:dim, :dim], key[:dim, :dim] = np.eye(dim) / temperature, np.eye(dim)
    query[one, dim:], query[square, -1] = (-1 / temperature, math.log(ridge)), 1 / temperature
    key[square, dim] = key[anchor, -1] = value[anchor, 1] = output[buffer, 0] = output[share, 1] = 1
    value[alpha, 0] = -1
    # The products are C (q(s + c / C) - q(s - c / C)) / 4, with C = B / ridge and q the square between knots.
    step = 3 / pieces
    inward, outward = np.zeros((width, 2 * pieces + 3)), np.zeros((2 * pieces + 3, width))
    inward[share, : 2 * pieces] = 1
    inward[[y, alpha], :pieces] = [[1 / size], [-ridge / size]]
    inward[[y, alpha], pieces : 2 * pieces] = [[-1 / size], [ridge / size]]
    slopes = np.append(step - 2, np.full(pieces - 1, 2 * step)) * size / ridge / 4
    outward[: 2 * pieces, alpha] = np.append(slopes, -slopes)
    inward[[buffer, buffer, share], [-3, -2, -1]] = 1, -1, 1
    outward[-3:, [alpha, buffer, share]] = (1, -1, 0), (-1, 1, 0), (0, 0, -1)
    bias = np.append(np.tile(1 - step * np.arange(pieces), 2), np.zeros(3))
    heads = [part[:, None] for part in (query, key, value)]
    block = [*heads, output.T[None], inward, bias, outward, np.zeros(width)]
    parts = [*block * algorithm.layers, -ridge * np.eye(width)[:, alpha : alpha + 1], np.zeros(1)]
    mlp = (2 * pieces + 3,)
    options = BlockOptions(heads=1, mlp=mlp, norm="none", nonlinearity="relu", head_dim=dim + 2, scale=1.0)
    arrangement = AnchoredExamples(answers="last", causal=False, query_is_key=False)
    dtype = algorithm.ridge.dtype
    return with_weights(Transformer, arrangement, options, parts, dtype, dim=dim, layers=algorithm.layers)


def with_weights(
    kind: Any, arrangement: AbstractArrangement, options: BlockOptions, weights: list, dtype: Any = None, **fields: Any
) -> Any:
    """A transformer with weights in the order of its leaves: embedding, blocks, readout."""
    fields = {"width": None, "positions": "none"} | fields
    shape = eqx.filter_eval_shape(kind, arrangement, block=options, **fields, key=jax.random.key(0))  # draws none
    return jax.tree.unflatten(jax.tree.structure(shape), [jnp.asarray(part, dtype) for part in weights])
