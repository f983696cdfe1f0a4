r"""Which rival explains a network's answers: shares left unexplained, their intervals, and a verdict.

Everything here is arithmetic on squared differences, one row for each prompt; which network, rivals and task they
come from is the business of :mod:`icllab.diagnostics.identification.comparison`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

NONE, MANY, UNDECIDED = "none of these", "indistinguishable", "undecided"


class Evidence(NamedTuple):
    """Squared differences on each prompt, means over the positions compared.

    Attributes:
        answers: Between network and rival.
        answers_scale: What the trivial alternatives leave of the network's answers.
        slopes: As ``answers``, of the derivatives; NaN for a rival without.
        slopes_scale: As ``answers_scale``; NaN for a network without.
        mutual_answers: Between two rivals, the mean over prompts.
        mutual_slopes: Likewise, NaN where one has none.
    """

    answers: Float[np.ndarray, "prompt rival"]
    answers_scale: Float[np.ndarray, " prompt"]
    slopes: Float[np.ndarray, "prompt rival"]
    slopes_scale: Float[np.ndarray, " prompt"]
    mutual_answers: Float[np.ndarray, "rival rival"]
    mutual_slopes: Float[np.ndarray, "rival rival"]


class Shares(NamedTuple):
    """Shares left unexplained, for every resampling of the prompts; the first row is the sample itself.

    Attributes:
        prediction: Of the answers.
        sensitivity: Of the derivatives; NaN where there are none.
        unexplained: The larger of the two.
    """

    prediction: Float[np.ndarray, "resample rival"]
    sensitivity: Float[np.ndarray, "resample rival"]
    unexplained: Float[np.ndarray, "resample rival"]


class Judgement(NamedTuple):
    """What is concluded.

    Attributes:
        verdict: A rival's name, or one of three others.
        accepted: The rivals that explain enough.
        among: The rivals that could be meant: one, several, or none.
        leader: The rival of least share, by number.
        behind: By how much more each rival leaves than the leader; [rival].
        behind_interval: Its interval, [rival, bound].
        warning: That the network lies between two rivals, or is explained by trivial alternatives; or nothing.
    """

    verdict: str
    accepted: np.ndarray
    among: np.ndarray
    leader: int
    behind: np.ndarray
    behind_interval: np.ndarray
    warning: str


def resamplings(prompts: int, *, resamples: int, seed: Sequence[int]) -> Float[np.ndarray, "resample prompt"]:
    """Weights of the prompts: equal in the first row, then those of draws with replacement."""
    drawn = np.random.default_rng(list(seed)).multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples)
    return np.concatenate([np.ones((1, prompts)), drawn]) / prompts


def shares(evidence: Evidence, weights: Float[np.ndarray, "resample prompt"]) -> Shares:
    r"""The shares of the network's answers and slopes that each rival leaves unexplained.

    .. math:: \delta_k = \frac{E\,(f - r_k)^2}{E\,(f - t)^2}, \qquad
              \gamma_k = \frac{E\,|g_f - g_k|^2}{E\,|g_f - c|^2}, \qquad u_k = \max(\delta_k, \gamma_k)

    with t and c the trivial alternatives of :class:`~icllab.diagnostics.identification.responses.Trivial`. Where
    these leave nothing
    of the answers, no rival explains anything and :math:`\delta_k = \infty`; where they leave nothing of the slopes
    and the rival neither, :math:`\gamma_k = 0`. Answers that are no numbers explain nothing.

    Args:
        evidence: Squared differences.
        weights: Of the prompts, one row for each resampling.

    Source: distances by answers and by slopes [vonOswald23].
    Derived: docs/identification.md, The share left unexplained.
    """
    prediction = _ratio(evidence.answers, evidence.answers_scale, weights, of_nothing=np.inf)
    sensitivity = _ratio(evidence.slopes, evidence.slopes_scale, weights, of_nothing=0.0)
    known = ~np.isnan(evidence.slopes).all(0) & ~np.isnan(evidence.slopes_scale).all()
    sensitivity = np.where(known, sensitivity, np.nan)
    return Shares(prediction, sensitivity, np.fmax(prediction, sensitivity))


def mutual_shares(evidence: Evidence) -> Float[np.ndarray, "rival rival"]:
    """How far two rivals are from each other, on the same scales as the network from them."""
    one = np.ones((1, 1))

    def part(between: np.ndarray, scale: np.ndarray, of_nothing: float) -> np.ndarray:
        found = _ratio(between.reshape(1, -1), np.asarray([scale.mean()]), one, of_nothing=of_nothing)
        return found.reshape(between.shape)

    answers = part(evidence.mutual_answers, evidence.answers_scale, np.inf)
    slopes = part(evidence.mutual_slopes, evidence.slopes_scale, 0.0)
    known = ~np.isnan(evidence.mutual_slopes) & ~np.isnan(evidence.slopes_scale).all()
    found = np.fmax(answers, np.where(known, slopes, np.nan))
    np.fill_diagonal(found, 0.0)
    return found


def interval(samples: Float[np.ndarray, "resample *rest"], confidence: float) -> Float[np.ndarray, "*rest bound"]:
    """The middle part of the resamplings (not of the first row, the sample itself)."""
    outside = (1 - confidence) / 2
    # No interpolation between neighbours: both may be infinite.
    low, high = np.quantile(samples[1:], [outside, 1 - outside], axis=0, method="nearest")
    return np.stack([low, high], axis=-1)


def judged(
    found: Shares,
    mutual: Float[np.ndarray, "rival rival"],
    names: Sequence[str],
    *,
    share: float,
    resolution: float,
    confidence: float,
) -> Judgement:
    r"""The verdict, from shares, their intervals, and how far rivals are from one another.

    Rival k is *accepted* where the upper end of the interval of :math:`u_k` is at most the share :math:`\epsilon`, and
    *refused* where the lower end is above. With the accepted rival of least :math:`u_k`, the leader, are *meant* all j
    that are not refused and

    .. math:: 0 \in \mathrm{interval}(u_j - u_k) \qquad\text{or}\qquad
              m_{jk} \le \max(u_k, \epsilon_0),

    m their mutual share: the data do not resolve which is nearer, or the two are nearer to each other than the
    network is to the leader, or one rival to all purposes. One is meant: its name. Several: ``"indistinguishable"``.
    No rival accepted: ``"none of these"``, or ``"undecided"`` if one is not refused, and more prompts would decide.

    Args:
        found: Shares with their resamplings.
        mutual: :math:`m_{jk}`.
        names: Of the rivals.
        share: :math:`\epsilon`.
        resolution: :math:`\epsilon_0`.
        confidence: Of the intervals.

    Derived: docs/identification.md, The verdict.
    """
    u = found.unexplained[0]
    low, high = np.moveaxis(interval(found.unexplained, confidence), -1, 0)
    accepted, refused = high <= share, low > share
    leader = int(np.argmin(np.where(accepted, u, np.inf) if accepted.any() else u))
    behind, of_behind = _behind(found.unexplained, leader, confidence)
    if not accepted.any():
        verdict = NONE if refused.all() else UNDECIDED
        return Judgement(verdict, accepted, accepted, leader, behind, of_behind, "")
    near = mutual[leader] <= max(u[leader], resolution)
    among = ~refused & ((of_behind[:, 0] <= 0) & (of_behind[:, 1] >= 0) | near)
    among[leader] = True
    verdict = names[leader] if among.sum() == 1 else MANY
    # |a - b|^2 > |f - a|^2 + |f - b|^2: seen from the network, the two stand on opposite sides.
    apart = among & (mutual[leader] > np.maximum(u[leader] + u, resolution))
    between = [name for name, is_apart in zip(names, apart, strict=True) if is_apart]
    warning = f"the answers lie between those of {names[leader]} and {between[0]}" if between else ""
    return Judgement(verdict, accepted, among, leader, behind, of_behind, warning)


def _behind(unexplained: np.ndarray, leader: int, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """Each rival's share above the leader's; infinite where the rival's is."""
    finite = np.isfinite(unexplained)
    usable = finite & finite[:, [leader]]
    left = np.where(usable, unexplained, 0.0) - np.where(finite[:, [leader]], unexplained[:, [leader]], 0.0)
    left = np.where(usable, left, np.inf)
    left[:, leader] = 0.0
    return left[0], interval(left, confidence)


def _ratio(parts: np.ndarray, scale: np.ndarray, weights: np.ndarray, *, of_nothing: float) -> np.ndarray:
    """Weighted means of ``parts`` over that of ``scale``; infinite where a part is no number."""
    sound = np.isfinite(parts).all(0)
    means = weights @ np.where(sound, parts, 0.0)
    if not np.isfinite(scale).all():
        return np.full_like(means, np.inf)
    against = (weights @ scale)[:, None]
    there = against > 0
    empty = np.where(means > 0, np.inf, of_nothing)
    found = np.where(there, means / np.where(there, against, 1.0), empty)
    return np.where(sound, found, np.inf)
