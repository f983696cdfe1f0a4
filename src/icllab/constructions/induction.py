r"""Weights of two layers of attention that copy the token after an earlier occurrence of the present one.

The residual stream of a token has four parts: its content, its place, a buffer and an answer, the last two empty at
first. Each layer has one head, scores are products of a query and a key, and nothing is normalised:

.. math:: s^{(1)}_{ij} = \beta\,[j = i-1], \qquad
          s^{(2)}_{ij} = \alpha\,\bigl(\langle c_i, b_j\rangle - [j = 1]\bigr)

The first copies the content of the token before into the buffer b, the second attends from a content c to the buffers
that hold it and copies the contents there into the answer, which is read with strength :math:`\xi`. The first token
has nothing before it and stores itself; that is what is taken off.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from icllab.constructions.softmax import with_weights
from icllab.core.domains import NON_NEGATIVE
from icllab.core.errors import expected, require_integer
from icllab.core.views import fields_html, fields_repr
from icllab.models.networks.embedding import Tokens
from icllab.models.networks.transformer import BlockOptions, Transformer


class HeadBounds(NamedTuple):
    r"""Lower bounds for a head of finite strength, on any sequence of the given number of tokens.

    Attributes:
        previous_attention: Attention from a token to the one before it, :math:`1-\delta`.
        match_attention: Attention to what followed the earlier occurrences, where there are any.
        margin: Logit of the right token above that of any other, where all occurrences were followed by one token.
    """

    previous_attention: float
    match_attention: float
    margin: float

    __repr__ = fields_repr
    _repr_html_ = fields_html


def induction_bounds(*, tokens: int, previous: float, match: float, read: float) -> HeadBounds:
    r"""Lower bounds of an induction head of finite strengths, relative to a perfect head.

    .. math:: \delta = \frac{T-1}{e^\beta+T-1}, \qquad \epsilon = (T-1)\,e^{-\alpha(1-2\delta)}, \qquad
              A \ge \frac{1}{1+\epsilon}, \qquad \text{margin} \ge \xi\,\frac{1-\epsilon}{1+\epsilon}

    It answers every prompt of copying rightly if :math:`\alpha(1-2\delta) > \ln(T-1)`.

    Args:
        tokens: T, the tokens that the head sees, at least 2.
        previous: :math:`\beta`, finite and not negative, as are the others.
        match: :math:`\alpha`.
        read: :math:`\xi`.

    Derived: docs/constructions.md, The induction head.
    """
    _require(tokens=tokens, previous=previous, match=match, read=read)
    leak = (tokens - 1) / (math.exp(previous) + tokens - 1)
    off = (tokens - 1) * math.exp(min(-match * (1 - 2 * leak), 700.0))
    return HeadBounds(1 - leak, 1 / (1 + off), read * (1 - off) / (1 + off))


def induction_head(
    vocabulary: int, *, tokens: int, previous: float = 12.0, match: float = 12.0, read: float = 12.0
) -> Transformer:
    r"""Two layers of attention that continue a sequence as it continued after an earlier occurrence.

    .. math:: f_v(t_{\le i}) \to \xi\,\frac{\#\{j\le i: t_{j-1} = t_i,\ t_j = v\}}{\#\{j\le i: t_{j-1} = t_i\}}
              \qquad (\alpha, \beta \to \infty)

    On :math:`B, 2, A, 1, B` it answers 2. Where a token has not occurred before, it answers nothing of use.
    :func:`induction_bounds` says how near finite strengths come.

    Args:
        vocabulary: Number of tokens there are, V, at least 2.
        tokens: How many the head sees at most, T: all of a sequence but the last.
        previous: :math:`\beta`, of the first layer.
        match: :math:`\alpha`, of the second.
        read: :math:`\xi`, of the readout.

    Returns:
        A transformer of two blocks, one head each, attention only, of width 3V + T.

    Source: [Olsson22], [Reddy24].
    Derived: docs/constructions.md, The induction head.
    """
    require_integer("vocabulary", vocabulary, least=2)
    _require(tokens=tokens, previous=previous, match=match, read=read)
    width, dim = 3 * vocabulary + tokens, max(vocabulary + 1, tokens)
    content, place = slice(0, vocabulary), slice(vocabulary, vocabulary + tokens)
    buffer = slice(place.stop, place.stop + vocabulary)
    answer = slice(buffer.stop, buffer.stop + vocabulary)
    symbol = slice(0, vocabulary)  # of a head
    symbols = np.eye(vocabulary)
    inwards, outwards = np.zeros((2, 3, width, dim)), np.zeros((2, dim, width))
    (query, key, value), output = inwards[0], outwards[0]
    query[place, :tokens] = previous * np.eye(tokens, k=-1)
    key[place, :tokens] = np.eye(tokens)
    value[content, symbol] = symbols
    output[symbol, buffer] = symbols
    (query, key, value), output = inwards[1], outwards[1]
    query[content, symbol] = match * symbols
    query[place, vocabulary] = -match
    key[buffer, symbol] = symbols
    key[place.start, vocabulary] = 1.0
    value[content, symbol] = symbols
    output[symbol, answer] = symbols
    # With the axis of heads, as the layer has them.
    heads = [part for inward, out in zip(inwards, outwards, strict=True) for part in (*inward[:, :, None], out[None])]
    readout = np.zeros((width, vocabulary))
    readout[answer] = read * symbols
    weights = [np.eye(vocabulary + tokens, width), np.zeros(width), *heads, readout, np.zeros(vocabulary)]
    options = BlockOptions(heads=1, mlp=None, norm="none", head_dim=dim, scale=1.0)
    fields: dict[str, Any] = {"dim": vocabulary, "width": width, "layers": 2, "length": tokens - 1}
    return with_weights(Transformer, Tokens(vocabulary), options, weights, positions="one_hot", **fields)


def _require(*, tokens: int, **strengths: float) -> None:
    require_integer("tokens", tokens, least=2)
    for name, value in strengths.items():
        NON_NEGATIVE.require(name, value)
        if name == "previous" and value > 700:
            raise expected(name, "a number of at most 700, whose exponential is finite", value)
