r"""The accuracy of task recognition, which knows M relations of items to labels and nothing else; exactly.

A relation gives L items different labels, all of the L that there are: it is a permutation. A prompt shows N of the
items with their labels under one relation and asks for the label of an item. Task recognition has M relations in its
weights. It takes one of those that agree with the most of the N pairs, drawn uniformly among them, and answers with
that relation's label of the query. It never looks the query up in the context.
"""

import math

import numpy as np

from icllab.core.domains import Domain
from icllab.core.errors import expected
from icllab.theory.parameters import Array, Number, Numbers, plain, read, require_pairs

_COUNT = Domain(int, least=1)


def agreements(*, pairs: int, labels: int) -> Array:
    r"""The distribution of how many of N pairs a random relation agrees with.

    .. math:: p_j = \binom Nj \sum_{i=0}^{N-j} (-1)^i \binom{N-j}{i} \frac{(L-j-i)!}{L!}, \qquad j = 0, \dots, N

    with N ``pairs`` and L ``labels``, integers with :math:`1 \le N \le L`; others raise an ``InputError``.

    Args:
        pairs: :math:`N`, the number of item-label pairs in a prompt; an integer of at least 1.
        labels: :math:`L`, the number of labels; an integer of at least :math:`N`.

    Derived: docs/context-and-weights.md, Task recognition.
    """
    require_pairs(pairs, labels)
    n, size = int(pairs), int(labels)

    def ways(j: int) -> int:
        terms = ((-1) ** i * math.comb(n - j, i) * math.factorial(size - j - i) for i in range(n - j + 1))
        return math.comb(n, j) * sum(terms)

    return np.array([ways(j) / math.factorial(size) for j in range(n + 1)])


def recognition_on_a_new_relation(relations: Numbers, *, pairs: int, labels: int) -> Number:
    r"""The accuracy of task recognition under a random relation, for a query whose item is in the context.

    .. math:: \frac1N\, \mathbb E \max_{m \le M} J_m = \frac1N \sum_{j=1}^N \bigl(1 - P(J < j)^M\bigr)

    with :math:`J_m` independent, each with the distribution of :func:`agreements`: the query is equally likely to be
    any of the context's items, and the answer is right for those that the relation taken agrees with. With one
    relation it is 1/L. A predictor that looks the query up in the context is always right.

    ``relations`` is M, whole numbers of at least 1; the others are as in :func:`agreements`.

    Args:
        relations: :math:`M`, the number of relations that are known; an integer of at least 1.
        pairs: :math:`N`, the number of item-label pairs in a prompt; an integer of at least 1.
        labels: :math:`L`, the number of labels; an integer of at least :math:`N`.

    Derived: docs/context-and-weights.md, Task recognition.
    """
    below = np.cumsum(agreements(pairs=pairs, labels=labels))[:-1]
    (m,) = read(relations=(relations, _COUNT))
    with np.errstate(divide="ignore"):  # with one item there is no way to disagree
        logs = np.log(below)
    return plain(np.sum(-np.expm1(m[..., None] * logs), axis=-1) / pairs)


def recognition_on_an_unseen_item(relations: Numbers, *, pairs: int, labels: int) -> Number:
    r"""The accuracy of task recognition under one of its relations, for a query whose item is not in the context.

    .. math:: r + \frac{1 - r}{L - N}, \qquad r = \frac{1 - (1 - p_N)^M}{M p_N}

    r is the chance that the right relation is the one taken, of all that agree with every pair: another does so with
    the probability :math:`p_N = (L-N)!/L!`. A wrong one has the right label among the L - N that are left by chance.
    A predictor that only looks into the context finds nothing there, and is right at most with the probability
    1/(L - N).

    Arguments are those of :func:`recognition_on_a_new_relation`, with N less than L. Relations are drawn independently,
    so that two of them may be alike.

    Derived: docs/context-and-weights.md, Task recognition.
    """
    whole_agreement = agreements(pairs=pairs, labels=labels)[-1]
    if labels == pairs:
        raise expected("labels", f"more than the {pairs} pairs", labels)
    (m,) = read(relations=(relations, _COUNT))
    right = -np.expm1(m * np.log1p(-whole_agreement)) / (m * whole_agreement)
    return plain(right + (1 - right) / (labels - pairs))
