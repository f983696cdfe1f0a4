r"""Fractions of variance unexplained by candidate algorithms, and the verdict.

The functions take squared differences, with one row for each prompt, from
:mod:`icllab.diagnostics.identification.comparison`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from icllab.core.domains import PROPER_FRACTION, Domain
from icllab.core.errors import require_integer

NONE, MANY, UNDECIDED = "none of these", "indistinguishable", "undecided"


ROUNDING = 1e-6
"""Largest fraction of variance unexplained that is rounding."""


class VerdictRule(NamedTuple):
    r"""Rule of a verdict and of its intervals.

    Attributes:
        tolerance: :math:`\epsilon`, the largest fraction of variance unexplained of an accepted candidate.
        resolution: :math:`\epsilon_0`; candidates with a smaller fraction between them are equivalent. None: the
            resolution of the intervals, see :func:`judge_candidates`.
        confidence: Level of the bootstrap intervals over prompts.
        resamples: Number of bootstrap resamples, at least 20.
    """

    tolerance: float = 0.01
    resolution: float | None = ROUNDING
    confidence: float = 0.95
    resamples: int = 1000

    def require(self) -> None:
        """Raise if a number is out of range."""
        PROPER_FRACTION.require("tolerance", self.tolerance)
        range_of_resolution = "a number from 0 to the tolerance"
        if self.resolution is not None:
            Domain(least=0, most=self.tolerance, text=range_of_resolution).require("resolution", self.resolution)
        PROPER_FRACTION.require("confidence", self.confidence)
        require_integer("resamples", self.resamples, least=20)


class Evidence(NamedTuple):
    """Squared differences on each prompt, averaged over positions; NaN without gradients."""

    answers: Float[np.ndarray, "prompt candidate"]  # between network and candidate
    answers_scale: Float[np.ndarray, " prompt"]  # residuals of the baselines
    gradients: Float[np.ndarray, "prompt candidate"]  # the same for input gradients
    gradients_scale: Float[np.ndarray, " prompt"]
    mutual_answers: Float[np.ndarray, "candidate candidate"]  # between two candidates, averaged over prompts
    mutual_gradients: Float[np.ndarray, "candidate candidate"]


class Unexplained(NamedTuple):
    """Fractions of variance unexplained for every resample of the prompts; the first row is the sample."""

    prediction_discrepancy: Float[np.ndarray, "resample candidate"]
    input_gradient_discrepancy: Float[np.ndarray, "resample candidate"]  # NaN without gradients
    fraction_unexplained: Float[np.ndarray, "resample candidate"]  # the larger of the two


class Judgement(NamedTuple):
    """Result of :func:`judge_candidates`."""

    verdict: str  # a candidate's name, or NONE, MANY or UNDECIDED
    accepted: Bool[np.ndarray, " candidate"]  # candidates within the tolerance
    among: Bool[np.ndarray, " candidate"]  # candidates that the verdict refers to
    best: int  # index of the candidate with the least fraction unexplained
    unexplained_by_best: float
    gap_to_best: Float[np.ndarray, " candidate"]  # excess of each candidate's fraction over the best
    gap_to_best_interval: Float[np.ndarray, "candidate bound"]
    warning: str  # set if the network lies between two candidates


def resamplings(prompts: int, *, resamples: int, seed: Sequence[int]) -> Float[np.ndarray, "resample prompt"]:
    """Weights of the prompts: equal in the first row, then bootstrap weights."""
    draws = np.random.default_rng(list(seed)).multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples)
    return np.concatenate([np.ones((1, prompts)), draws]) / prompts


def unexplained(evidence: Evidence, weights: Float[np.ndarray, "resample prompt"]) -> Unexplained:
    r"""Fractions of the variance of answers and input gradients that each candidate leaves unexplained.

    .. math:: \delta_k = \frac{E\,(f - r_k)^2}{E\,(f - t)^2}, \qquad
              \gamma_k = \frac{E\,|g_f - g_k|^2}{E\,|g_f - c|^2}, \qquad u_k = \max(\delta_k, \gamma_k)

    with t and c the baselines of :class:`~icllab.diagnostics.identification.responses.Baselines`. If the baselines
    explain the answers exactly, :math:`\delta_k = \infty`; if baselines and candidate both explain the gradients
    exactly, :math:`\gamma_k = 0`. Answers that are not finite explain nothing.

    Source: distances by answers and by input gradients [vonOswald23].
    Derived: docs/identification.md, The fraction of variance unexplained.
    """
    answers = _ratio(evidence.answers, evidence.answers_scale, weights, of_nothing=np.inf)
    gradients = _ratio(evidence.gradients, evidence.gradients_scale, weights, of_nothing=0.0)
    known = ~np.isnan(evidence.gradients).all(0) & ~np.isnan(evidence.gradients_scale).all()
    gradients = np.where(known, gradients, np.nan)
    return Unexplained(answers, gradients, np.fmax(answers, gradients))


def mutual_unexplained(evidence: Evidence) -> Float[np.ndarray, "candidate candidate"]:
    """Fractions between two candidates, on the scales of the network's distances."""
    single_weight = np.ones((1, 1))

    def part(between: np.ndarray, scale: np.ndarray, of_nothing: float) -> np.ndarray:
        fractions = _ratio(between.reshape(1, -1), np.asarray([scale.mean()]), single_weight, of_nothing=of_nothing)
        return fractions.reshape(between.shape)

    answers = part(evidence.mutual_answers, evidence.answers_scale, np.inf)
    gradients = part(evidence.mutual_gradients, evidence.gradients_scale, 0.0)
    has_gradients = ~np.isnan(evidence.mutual_gradients) & ~np.isnan(evidence.gradients_scale).all()
    fractions = np.fmax(answers, np.where(has_gradients, gradients, np.nan))
    np.fill_diagonal(fractions, 0.0)
    return fractions


def interval(samples: Float[np.ndarray, "resample *rest"], confidence: float) -> Float[np.ndarray, "*rest bound"]:
    """Central interval of the resamples, without the first row, the sample."""
    outside = (1 - confidence) / 2
    # No interpolation: neighbours may be infinite.
    low, high = np.quantile(samples[1:], [outside, 1 - outside], axis=0, method="nearest")
    return np.stack([low, high], axis=-1)


def judge_candidates(
    fractions: Unexplained, mutual: Float[np.ndarray, "candidate candidate"], names: Sequence[str], rule: VerdictRule
) -> Judgement:
    r"""Judge candidates by their fractions unexplained, the intervals, and the mutual fractions.

    Candidate k is *accepted* if the upper end of the interval of :math:`u_k` is at most the tolerance
    :math:`\epsilon`, and *rejected* if the lower end is above. The accepted candidate of least :math:`u_k` is the
    *best*. The verdict refers to it and to all j that are not rejected and satisfy

    .. math:: 0 \in \mathrm{interval}(u_j - u_k) \qquad\text{or}\qquad
              m_{jk} \le \max(u_k, \epsilon_0),

    with m their mutual fraction: the data do not resolve which is nearer, or the two are nearer to each other than the
    network is to the best, or they are equivalent. If the rule has no resolution, that of candidate j is

    .. math:: \epsilon_0 = \max(10^{-6},\ \epsilon\,w_j), \qquad w_j = (u_j^+ - u_j^-)/u_j,

    with the ends of the interval of :math:`u_j`: the interval of a fraction near the tolerance has the width
    :math:`\epsilon\,w_j`, so that chance decides which of two closer candidates is accepted. With many more examples
    than dimensions, ridge regression and least squares differ by more than rounding and by less than that.

    The verdict is the name of the only candidate that it refers to, or ``"indistinguishable"`` for several. If none is
    accepted it is ``"none of these"``, or ``"undecided"`` if one is not rejected and more prompts would decide.

    Derived: docs/identification.md, The verdict.
    """
    u = fractions.fraction_unexplained[0]
    low, high = np.moveaxis(interval(fractions.fraction_unexplained, rule.confidence), -1, 0)
    accepted, rejected = high <= rule.tolerance, low > rule.tolerance
    best = int(np.argmin(np.where(accepted, u, np.inf) if accepted.any() else u))
    gap, gap_interval = _gap_to_best(fractions.fraction_unexplained, best, rule.confidence)
    if not accepted.any():
        verdict = NONE if rejected.all() else UNDECIDED
        return Judgement(verdict, accepted, accepted, best, float(u[best]), gap, gap_interval, "")
    resolution = np.full(len(u), ROUNDING if rule.resolution is None else rule.resolution)
    if rule.resolution is None:
        usable = np.isfinite(high) & (u > 0)
        widths = np.divide(high - low, u, out=np.zeros_like(u), where=usable)
        resolution = np.maximum(resolution, rule.tolerance * widths)
    is_near = mutual[best] <= np.maximum(u[best], resolution)
    among = ~rejected & ((gap_interval[:, 0] <= 0) & (gap_interval[:, 1] >= 0) | is_near)
    among[best] = True
    verdict = names[best] if among.sum() == 1 else MANY
    # |a - b|^2 > |f - a|^2 + |f - b|^2: the two candidates are on opposite sides of the network.
    smallest = ROUNDING if rule.resolution is None else rule.resolution
    opposite = among & (mutual[best] > np.maximum(u[best] + u, smallest))
    between = [name for name, is_opposite in zip(names, opposite, strict=True) if is_opposite]
    warning = f"the answers lie between those of {names[best]} and {between[0]}" if between else ""
    return Judgement(verdict, accepted, among, best, float(u[best]), gap, gap_interval, warning)


def _gap_to_best(fractions: np.ndarray, best: int, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """Excess of each candidate's fraction over that of the best; infinite if the fraction is."""
    finite = np.isfinite(fractions)
    usable = finite & finite[:, [best]]
    gaps = np.where(usable, fractions, 0.0) - np.where(finite[:, [best]], fractions[:, [best]], 0.0)
    gaps = np.where(usable, gaps, np.inf)
    gaps[:, best] = 0.0
    return gaps[0], interval(gaps, confidence)


def _ratio(parts: np.ndarray, scale: np.ndarray, weights: np.ndarray, *, of_nothing: float) -> np.ndarray:
    """Weighted means of ``parts`` over that of ``scale``; infinite if a part is not finite."""
    sound = np.isfinite(parts).all(0)
    means = weights @ np.where(sound, parts, 0.0)
    if not np.isfinite(scale).all():
        return np.full_like(means, np.inf)
    scales = (weights @ scale)[:, None]
    is_positive = scales > 0
    empty = np.where(means > 0, np.inf, of_nothing)
    ratios = np.where(is_positive, means / np.where(is_positive, scales, 1.0), empty)
    return np.where(sound, ratios, np.inf)
