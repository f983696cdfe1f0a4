r"""Which candidate algorithm explains a network's answers: fractions of variance unexplained, and a verdict.

Everything here is arithmetic on squared differences, one row for each prompt; which network, candidates and task they
come from is the business of :mod:`icllab.diagnostics.identification.comparison`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from icllab.core.errors import require_integer, require_number

NONE, MANY, UNDECIDED = "none of these", "indistinguishable", "undecided"


ROUNDING = 1e-6
"""A fraction of variance unexplained that is nothing but rounding."""


class VerdictRule(NamedTuple):
    r"""What a verdict requires, and how its intervals are made.

    Attributes:
        tolerance: :math:`\epsilon`, the largest fraction of variance unexplained of a candidate that is named.
        resolution: :math:`\epsilon_0`; candidates with a smaller fraction between them are one to all purposes. None:
            what the intervals resolve, see :func:`judged`.
        confidence: Level of the bootstrap intervals over prompts.
        resamples: Number of bootstrap resamples, at least 20.
    """

    tolerance: float = 0.01
    resolution: float | None = ROUNDING
    confidence: float = 0.95
    resamples: int = 1000

    def require(self) -> None:
        """Refuse numbers that make no rule."""
        require_number("tolerance", self.tolerance, "a number between 0 and 1", lambda v: 0 < v < 1)
        wanted = "a number from 0 to the tolerance"
        if self.resolution is not None:
            require_number("resolution", self.resolution, wanted, lambda v: 0 <= v <= self.tolerance)
        require_number("confidence", self.confidence, "a number between 0 and 1", lambda v: 0 < v < 1)
        require_integer("resamples", self.resamples, least=20)


class Evidence(NamedTuple):
    """Squared differences on each prompt, means over the positions compared; NaN where there are no gradients."""

    answers: Float[np.ndarray, "prompt candidate"]  # between network and candidate
    answers_scale: Float[np.ndarray, " prompt"]  # what the baselines leave of the network's answers
    gradients: Float[np.ndarray, "prompt candidate"]  # likewise, of input gradients
    gradients_scale: Float[np.ndarray, " prompt"]
    mutual_answers: Float[np.ndarray, "candidate candidate"]  # between two candidates, the mean over prompts
    mutual_gradients: Float[np.ndarray, "candidate candidate"]


class Unexplained(NamedTuple):
    """Fractions of variance unexplained, for every resample of the prompts; the first row is the sample itself."""

    prediction_discrepancy: Float[np.ndarray, "resample candidate"]
    input_gradient_discrepancy: Float[np.ndarray, "resample candidate"]  # NaN where there are no gradients
    fraction_unexplained: Float[np.ndarray, "resample candidate"]  # the larger of the two


class Judgement(NamedTuple):
    """What is concluded."""

    verdict: str  # a candidate's name, or one of three others
    accepted: Bool[np.ndarray, " candidate"]  # which candidates explain enough
    among: Bool[np.ndarray, " candidate"]  # which could be meant: one, several, or none
    best: int  # number of the candidate with the least fraction unexplained
    unexplained_by_best: float
    gap_to_best: Float[np.ndarray, " candidate"]  # each candidate's fraction unexplained minus that of the best
    gap_to_best_interval: Float[np.ndarray, "candidate bound"]
    warning: str  # a sentence where the network lies between two candidates; else nothing


def resamplings(prompts: int, *, resamples: int, seed: Sequence[int]) -> Float[np.ndarray, "resample prompt"]:
    """Weights of the prompts: equal in the first row, then those of draws with replacement."""
    drawn = np.random.default_rng(list(seed)).multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples)
    return np.concatenate([np.ones((1, prompts)), drawn]) / prompts


def unexplained(evidence: Evidence, weights: Float[np.ndarray, "resample prompt"]) -> Unexplained:
    r"""The fractions of the variance of answers and input gradients that each candidate leaves unexplained.

    .. math:: \delta_k = \frac{E\,(f - r_k)^2}{E\,(f - t)^2}, \qquad
              \gamma_k = \frac{E\,|g_f - g_k|^2}{E\,|g_f - c|^2}, \qquad u_k = \max(\delta_k, \gamma_k)

    with t and c the baselines of :class:`~icllab.diagnostics.identification.responses.Baselines`. Where these leave
    nothing of the answers, no candidate explains anything and :math:`\delta_k = \infty`; where they leave nothing of
    the gradients and the candidate neither, :math:`\gamma_k = 0`. Answers that are no numbers explain nothing.

    Source: distances by answers and by input gradients [vonOswald23].
    Derived: docs/identification.md, The fraction of variance unexplained.
    """
    answers = _ratio(evidence.answers, evidence.answers_scale, weights, of_nothing=np.inf)
    gradients = _ratio(evidence.gradients, evidence.gradients_scale, weights, of_nothing=0.0)
    known = ~np.isnan(evidence.gradients).all(0) & ~np.isnan(evidence.gradients_scale).all()
    gradients = np.where(known, gradients, np.nan)
    return Unexplained(answers, gradients, np.fmax(answers, gradients))


def mutual_unexplained(evidence: Evidence) -> Float[np.ndarray, "candidate candidate"]:
    """How far two candidates are from each other, on the same scales as the network from them."""
    one = np.ones((1, 1))

    def part(between: np.ndarray, scale: np.ndarray, of_nothing: float) -> np.ndarray:
        found = _ratio(between.reshape(1, -1), np.asarray([scale.mean()]), one, of_nothing=of_nothing)
        return found.reshape(between.shape)

    answers = part(evidence.mutual_answers, evidence.answers_scale, np.inf)
    gradients = part(evidence.mutual_gradients, evidence.gradients_scale, 0.0)
    known = ~np.isnan(evidence.mutual_gradients) & ~np.isnan(evidence.gradients_scale).all()
    found = np.fmax(answers, np.where(known, gradients, np.nan))
    np.fill_diagonal(found, 0.0)
    return found


def interval(samples: Float[np.ndarray, "resample *rest"], confidence: float) -> Float[np.ndarray, "*rest bound"]:
    """The middle part of the resamples (not of the first row, the sample itself)."""
    outside = (1 - confidence) / 2
    # No interpolation between neighbours: both may be infinite.
    low, high = np.quantile(samples[1:], [outside, 1 - outside], axis=0, method="nearest")
    return np.stack([low, high], axis=-1)


def judged(
    found: Unexplained, mutual: Float[np.ndarray, "candidate candidate"], names: Sequence[str], rule: VerdictRule
) -> Judgement:
    r"""The verdict, from fractions unexplained, their intervals, and how far candidates are from one another.

    Candidate k is *accepted* where the upper end of the interval of :math:`u_k` is at most the tolerance
    :math:`\epsilon`, and *refused* where the lower end is above. The accepted candidate of least :math:`u_k` is the
    *best*. With it are *meant* all j that are not refused and

    .. math:: 0 \in \mathrm{interval}(u_j - u_k) \qquad\text{or}\qquad
              m_{jk} \le \max(u_k, \epsilon_0),

    m their mutual fraction: the data do not resolve which is nearer, or the two are nearer to each other than the
    network is to the best, or one candidate to all purposes. Without a resolution of the rule, that of candidate j is

    .. math:: \epsilon_0 = \max(10^{-6},\ \epsilon\,w_j), \qquad w_j = (u_j^+ - u_j^-)/u_j,

    with the ends of the interval of :math:`u_j`: a fraction of the size of the tolerance is known to
    :math:`\epsilon\,w_j`, and whether one of two such candidates is accepted is chance. With many more examples than
    dimensions ridge regression and least squares differ by far more than rounding and by less than that.

    One is meant: its name. Several:
    ``"indistinguishable"``. No candidate accepted: ``"none of these"``, or ``"undecided"`` if one is not refused, and
    more prompts would decide.

    Derived: docs/identification.md, The verdict.
    """
    u = found.fraction_unexplained[0]
    low, high = np.moveaxis(interval(found.fraction_unexplained, rule.confidence), -1, 0)
    accepted, refused = high <= rule.tolerance, low > rule.tolerance
    best = int(np.argmin(np.where(accepted, u, np.inf) if accepted.any() else u))
    gap, of_gap = _gap_to_best(found.fraction_unexplained, best, rule.confidence)
    if not accepted.any():
        verdict = NONE if refused.all() else UNDECIDED
        return Judgement(verdict, accepted, accepted, best, float(u[best]), gap, of_gap, "")
    resolution = np.full(len(u), ROUNDING if rule.resolution is None else rule.resolution)
    if rule.resolution is None:
        usable = np.isfinite(high) & (u > 0)
        widths = np.divide(high - low, u, out=np.zeros_like(u), where=usable)
        resolution = np.maximum(resolution, rule.tolerance * widths)
    near = mutual[best] <= np.maximum(u[best], resolution)
    among = ~refused & ((of_gap[:, 0] <= 0) & (of_gap[:, 1] >= 0) | near)
    among[best] = True
    verdict = names[best] if among.sum() == 1 else MANY
    # |a - b|^2 > |f - a|^2 + |f - b|^2: seen from the network, the two stand on opposite sides.
    least = ROUNDING if rule.resolution is None else rule.resolution
    apart = among & (mutual[best] > np.maximum(u[best] + u, least))
    between = [name for name, is_apart in zip(names, apart, strict=True) if is_apart]
    warning = f"the answers lie between those of {names[best]} and {between[0]}" if between else ""
    return Judgement(verdict, accepted, among, best, float(u[best]), gap, of_gap, warning)


def _gap_to_best(fractions: np.ndarray, best: int, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """Each candidate's fraction above that of the best; infinite where the candidate's is."""
    finite = np.isfinite(fractions)
    usable = finite & finite[:, [best]]
    left = np.where(usable, fractions, 0.0) - np.where(finite[:, [best]], fractions[:, [best]], 0.0)
    left = np.where(usable, left, np.inf)
    left[:, best] = 0.0
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
