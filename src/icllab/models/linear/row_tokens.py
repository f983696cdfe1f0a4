r"""Conversion of weights from published code, in which tokens are rows, to linear attention here and back.

Here the columns of Z are tokens. With rows, :math:`E = Z^\top`, each product of weights comes transposed:

====================  =======================================================  ===================================
code of               update of the rows                                       here
====================  =======================================================  ===================================
Ahn et al.            :math:`E + \frac1n(EQ'E^\top)M\,EP'^\top`                :math:`P = P'`, :math:`Q = Q'^\top`
von Oswald et al.     :math:`E + (EW_Q)(\bar EW_K)^\top(\bar EW_V)W_P`         :math:`P = (W_VW_P)^\top`,
                                                                               :math:`Q = W_KW_Q^\top`
====================  =======================================================  ===================================

:math:`\bar E` are the rows of the examples alone. Von Oswald et al. write the paper's formula with columns,
:math:`W^\top` of the code's; ``columns=True`` reads that.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from icllab.core.errors import expected
from icllab.models.linear.linear_attention import MASKED, LinearAttention


class AhnWeights(NamedTuple):
    """P' and Q' of each layer, for tokens as rows."""

    p: Float[Array, "layer token token"]
    q: Float[Array, "layer token token"]


class VonOswaldWeights(NamedTuple):
    """Key, query, value and projection of each layer."""

    key: Float[Array, "layer token inner"]
    query: Float[Array, "layer token inner"]
    value: Float[Array, "layer token inner"]
    projection: Float[Array, "layer inner token"]


def from_ahn(weights: AhnWeights, *, answers: str = "last", form: str = "tokens") -> LinearAttention:
    r"""Convert weights of Ahn et al.'s code: sums over n, query not a key, answer with a minus sign.

    .. math:: P = P', \qquad Q = Q'^\top

    Two matrices of different shapes raise an ``InputError``.

    Source: [Ahn23].
    """
    p, q = weights
    if p.shape != q.shape:
        raise expected("weights", "P and Q of one shape", (p.shape, q.shape))
    return LinearAttention(p, jnp.swapaxes(q, 1, 2), **MASKED, normalised=True, answers=answers, form=form)


def from_ahn_blocks(weights: AhnWeights, *, answers: str = "last", form: str = "tokens") -> LinearAttention:
    r"""Convert weights of code that stores only the blocks of the inputs, [layer, d, d].

    .. math::
        P = \begin{pmatrix}P' & 0 \\ 0 & 1\end{pmatrix}, \qquad
        Q = \begin{pmatrix}Q'^\top & 0 \\ 0 & 0\end{pmatrix}

    Source: [Ahn23].
    """
    p, q = (jnp.pad(block, ((0, 0), (0, 1), (0, 1))) for block in weights)
    return from_ahn(AhnWeights(p.at[:, -1, -1].set(1), q), answers=answers, form=form)


def to_ahn(model: LinearAttention) -> AhnWeights:
    """A model's weights as Ahn et al.'s code stores them; raise if the model has other conventions.

    Source: [Ahn23].
    """
    _require_conventions(model, True, "sign=1 becomes -1 if P changes sign")
    return AhnWeights(model.p, jnp.swapaxes(model.q, 1, 2))


def from_von_oswald(
    weights: VonOswaldWeights, *, columns: bool = False, answers: str = "last", form: str = "tokens"
) -> LinearAttention:
    r"""Convert von Oswald et al.'s weights: no division, query not a key, answer with a minus sign.

    .. math:: P = (W_VW_P)^\top, \qquad Q = W_KW_Q^\top

    The weights are as the code stores them, applied to tokens from the right; with ``columns`` as the paper writes
    them, applied from the left: :math:`P = W_PW_V`, :math:`Q = W_K^\top W_Q`.

    Source: [vonOswald23].
    """
    key, query, value, projection = weights
    if columns:
        p, q = projection @ value, jnp.swapaxes(key, 1, 2) @ query
    else:
        p, q = jnp.swapaxes(value @ projection, 1, 2), key @ jnp.swapaxes(query, 1, 2)
    return LinearAttention(p, q, **MASKED, normalised=False, answers=answers, form=form)


def to_von_oswald(model: LinearAttention) -> VonOswaldWeights:
    r"""One of many possible factorisations as von Oswald et al.'s code stores them.

    .. math:: W_K = Q, \quad W_Q = I, \quad W_V = P^\top, \quad W_P = I

    Only the products are determined. Sums over n have to be taken into the weights first: they depend on the prompt.
    Other conventions are refused.

    Source: [vonOswald23].
    """
    _require_conventions(model, False, "if all contexts have one length, divide P by it")
    identity = jnp.broadcast_to(jnp.eye(model.dim + 1, dtype=model.q.dtype), model.q.shape)
    return VonOswaldWeights(model.q, identity, jnp.swapaxes(model.p, 1, 2), identity)


def _require_conventions(model: LinearAttention, normalised: bool, hint: str) -> None:
    actual = (model.sign, model.query_is_key, model.causal, model.normalised)
    if actual != (-1, False, False, normalised):
        requirement = f"sign=-1, query_is_key=False, causal=False, normalised={normalised}"
        raise expected("model", requirement, actual, hint)
