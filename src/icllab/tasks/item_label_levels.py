"""Exact accuracies of simple predictors of item-label prompts."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Levels(NamedTuple):
    """Expected accuracies of simple predictors.

    Attributes:
        chance: Accuracy of a label drawn uniformly from all L.
        context_label: Accuracy of the label of a slot of the context that is drawn uniformly.
        in_context: Accuracy of a predictor that finds the query's class in the context and answers with its label
            there; where it is not there, with a label drawn from all L.
        in_weights: Accuracy of a predictor that has the labels of the K classes in its weights, and answers a novel
            class with a label drawn from all L.
    """

    chance: float
    context_label: float
    in_context: float
    in_weights: float


def levels_of(
    *,
    frequencies: Float[np.ndarray, " class"] | None,
    labels: int,
    pairs: int,
    burstiness: int,
    p_bursty: float,
    p_novel: float,
    no_repeats: bool,
    swapped: bool,
    purged: bool,
) -> Levels:
    r"""The levels of a distribution of prompts, averaged over its three kinds.

    With :math:`q_l = \sum_{k \bmod L = l} p_k` the frequency of a label, a uniformly drawn slot of the context shows
    the target with the probability

    .. math:: \frac BN + \Big(1 - \frac BN\Big) s, \qquad
              s = \begin{cases} 1/L & \text{novel} \\ \sum_l q_l^2 & \text{bursty} \\ 0 & \text{no repeats} \end{cases}

    and in a plain context, where the query has no slot, with

    .. math:: \sum_l q_l^2, \qquad\text{purged:}\quad \sum_k p_k\, \frac{q_{l(k)} - p_k}{1 - p_k} .

    The query's class is in a novel or a bursty context, in a plain one with the probability
    :math:`\sum_k p_k (1 - (1 - p_k)^N)`, and never if purged. With swapped labels the context shows the right ones, and
    the labels in the weights are always wrong.

    Derived: docs/item-label.md, Levels.
    """
    share, chance = burstiness / pairs, 1 / labels

    def bursty(repeat: float) -> float:
        return share + (1 - share) * (0.0 if no_repeats else repeat)

    novel = np.array([bursty(chance), 1.0, chance])
    if frequencies is None:
        return Levels(chance, *novel.tolist())
    p = np.asarray(frequencies, float) / np.sum(frequencies)
    of_label = p.reshape(-1, labels).sum(axis=0)
    repeat = float(np.sum(of_label**2))
    by_heart = 0.0 if swapped else 1.0
    bursty_levels = np.array([bursty(repeat), 1.0, by_heart])
    if purged:
        presence = 0.0
        alike = float(np.sum(p * (np.tile(of_label, len(p) // labels) - p) / (1 - p)))
    else:
        presence, alike = float(np.sum(p * (1 - (1 - p) ** pairs))), repeat
    plain = np.array([alike, presence + (1 - presence) * chance, by_heart])
    mean = p_novel * novel + (1 - p_novel) * (p_bursty * bursty_levels + (1 - p_bursty) * plain)
    return Levels(chance, *mean.tolist())
