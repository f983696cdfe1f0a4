r"""Survival functions of event times with censoring, and their comparison.

A run that ends before its transition is *censored*: its time is longer than its length. Leaving such runs out, or
counting their last step as a time, underestimates a delay.
"""

from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy.special import ndtri
from scipy.stats import CensoredData, ecdf, logrank

from icllab.core.domains import PROPER_FRACTION
from icllab.core.errors import expected

REASSIGNMENTS = 20_000  # number of divisions into two groups up to which all are enumerated; else as many are drawn


def kaplan_meier(
    times: np.ndarray, observed: np.ndarray, *, until: float | None = None, confidence: float = 0.95
) -> xr.Dataset:
    r"""Share of members without the event so far, with intervals.

    .. math:: \hat S(t) = \prod_{t_i\le t}\Bigl(1 - \frac{d_i}{n_i}\Bigr), \qquad
              \hat V = \sum_{t_i\le t}\frac{d_i}{n_i(n_i-d_i)}, \qquad
              \hat S(t)^{\exp\left(\pm z\sqrt{\hat V}/\ln\hat S(t)\right)}

    for :math:`d_i` events among :math:`n_i` members at risk at the time :math:`t_i`. The interval is Greenwood's on the
    scale of :math:`\ln(-\ln S)`. If S is 1 or 0 this is undefined and replaced by the exact binomial interval: of no
    event among the :math:`n_i`, or of no survivor among all (with censoring, the last defined interval).

    The median is the first time at which S is at most 1/2. Its interval holds all times whose interval of S contains
    1/2, and may reach infinity. The restricted mean is :math:`\int_0^{t^*}\hat S\,dt`, the mean time before
    :math:`t^*`, with Greenwood's standard error times :math:`\sqrt{m/(m-1)}` for m events; NaN for fewer than two.

    Args:
        times: Times of the event or of censoring, [member].
        observed: Whether the event happened, [member].
        until: Horizon :math:`t^*`, at most the largest time; None: the largest time.
        confidence: Coverage of the intervals.

    Returns:
        ``survival``, ``survival_interval`` and ``at_risk`` over ``time``; ``median_time``, ``median_time_interval``,
        ``restricted_mean``, ``restricted_mean_error``; the attributes ``members``, ``events``, ``until``.

    Raises:
        InputError: There is no member, a time is not positive, shapes differ, or ``until`` exceeds the largest time.

    Source: [KaplanMeier58].
    Derived: docs/transitions.md, Runs that have not made it.
    """
    sample = _Sample.from_times(times, observed)
    horizon = sample.horizon(until)
    PROPER_FRACTION.require("confidence", confidence)
    table = _Table.from_sample(sample)
    low, high = table.limits(confidence)
    mean, error = table.restricted_mean(horizon)
    attributes = {"members": len(sample.times), "events": int(table.events.sum())}
    return xr.Dataset(
        {
            "survival": ("time", table.survival),
            "survival_interval": (("time", "bound"), np.stack([low, high], 1)),
            "at_risk": ("time", table.at_risk),
            "median_time": table.first(table.survival <= 0.5),
            "median_time_interval": ("bound", [table.first(low <= 0.5), table.first(high < 0.5)]),
            "restricted_mean": mean,
            "restricted_mean_error": error,
        },
        coords={"time": table.at, "bound": ["low", "high"]},
        attrs=attributes | {"until": horizon, "confidence": confidence},
    )


def delay(first: xr.Dataset, second: xr.Dataset, *, until: float | None = None, seed: int = 0) -> xr.Dataset:
    r"""Delay of a second group against a first: log-rank test and difference of restricted means.

    .. math:: Z = \frac{\sum_i\bigl(d_{2i} - d_i\,n_{2i}/n_i\bigr)}{\sqrt{\sum_iv_i}}, \qquad
              v_i = \frac{n_{1i}n_{2i}d_i(n_i-d_i)}{n_i^2(n_i-1)}

    Z is negative if the second group is later. ``p_value`` is two-sided and normal, and too small for small groups.
    ``exact_p_value`` is the share of divisions of the members into groups of these sizes whose sum is at least as large
    (all divisions, or 20 000 random ones if there are more).

    Args:
        first: Result of ``transitions``, or any Dataset with ``observed_time`` and ``crossed`` over one axis.
        second: The same for the second group.
        until: Horizon of the restricted means; None: the smaller of the two largest times.
        seed: Seed of the random divisions.

    Returns:
        ``log_rank`` (Z), ``p_value``, ``exact_p_value``; ``restricted_difference``, second minus first, and the natural
        logarithm of their ratio, ``log_ratio``, each with an ``_error``. NaN without any event.

    Raises:
        InputError: A Dataset lacks one of the two variables, or as :func:`kaplan_meier`.

    Source: [Mantel66].
    Derived: docs/transitions.md, Two groups.
    """
    sample1, sample2 = (_Sample.from_dataset(name, group) for name, group in (("first", first), ("second", second)))
    horizon = min(max(sample1.times), max(sample2.times)) if until is None else until
    means = [kaplan_meier(group.times, group.observed, until=horizon) for group in (sample1, sample2)]
    (a, of_a), (b, of_b) = ((float(m["restricted_mean"]), float(m["restricted_mean_error"])) for m in means)
    z = p = exact = np.nan
    if sample1.observed.any() or sample2.observed.any():
        test = logrank(sample2.censored, sample1.censored)
        z, p, exact = float(test.statistic), float(test.pvalue), _exact_p_value(sample1, sample2, seed)
    return xr.Dataset(
        {
            "log_rank": z,
            "p_value": p,
            "exact_p_value": exact,
            "restricted_difference": b - a,
            "restricted_difference_error": np.hypot(of_a, of_b),
            "log_ratio": np.log(b / a),
            "log_ratio_error": np.hypot(of_a / a, of_b / b),
        },
        attrs={"until": float(horizon), "events": int(sample1.observed.sum() + sample2.observed.sum())},
    )


class _Sample(NamedTuple):
    times: np.ndarray
    observed: np.ndarray

    @classmethod
    def from_times(cls, times: np.ndarray, observed: np.ndarray) -> "_Sample":
        times, observed = np.asarray(times, float), np.asarray(observed, bool)
        if times.ndim != 1 or not times.size:
            raise expected("times", "one for each member, at least one", f"shape {times.shape}")
        if times.shape != observed.shape:
            raise expected("observed", f"as many as times, {len(times)}", f"shape {observed.shape}")
        sound = np.isfinite(times) & (times > 0)
        if not sound.all():
            raise expected("times", "finite numbers > 0", float(times[~sound][0]))
        return cls(times, observed)

    @classmethod
    def from_dataset(cls, name: str, group: xr.Dataset) -> "_Sample":
        variables = [str(v) for v in group.data_vars] if isinstance(group, xr.Dataset) else type(group).__name__
        if not {"observed_time", "crossed"} <= set(variables):
            came, hint = variables, "version 0.2: dataset.rename(transitioned='crossed')"
            raise expected(name, "a Dataset with observed_time and crossed", came, hint)
        return cls.from_times(group["observed_time"].values, group["crossed"].values)

    @property
    def censored(self) -> CensoredData:
        return CensoredData.right_censored(self.times, ~self.observed)

    def horizon(self, until: float | None) -> float:
        last = float(self.times.max())
        if until is not None and not 0 < until <= last:
            raise expected("until", f"a number > 0, at most the largest time {last:g}", until)
        return last if until is None else float(until)


class _Table(NamedTuple):
    """Survival estimates after each time of an event or of censoring."""

    at: np.ndarray
    survival: np.ndarray
    at_risk: np.ndarray  # members at risk at each time
    events: np.ndarray  # number of events at each time

    @classmethod
    def from_sample(cls, sample: _Sample) -> "_Table":
        function = ecdf(sample.censored).sf
        at = function.quantiles
        events = (sample.observed & (sample.times == at[:, None])).sum(1)
        return cls(at, function.probabilities, (sample.times >= at[:, None]).sum(1), events)

    def greenwood(self) -> np.ndarray:
        """Terms of the variance; zero if no member is left, since their factor is zero."""
        after = self.at_risk - self.events
        return np.where(after > 0, self.events / (self.at_risk * np.maximum(after, 1.0)), 0.0)

    def limits(self, confidence: float) -> tuple[np.ndarray, np.ndarray]:
        survival, at_risk = self.survival, self.at_risk
        z, tail = float(ndtri(0.5 + confidence / 2)), (1 - confidence) / 2
        spread = np.sqrt(np.cumsum(self.greenwood()))
        low, high = np.zeros_like(survival), np.ones_like(survival)
        inside = (survival > 0) & (survival < 1)
        hazard = -np.log(survival[inside])
        low[inside], high[inside] = (np.exp(-hazard * np.exp(side * z * spread[inside] / hazard)) for side in (1, -1))
        low[survival == 1] = tail ** (1 / at_risk[survival == 1])
        extinct = survival == 0
        if extinct.any():
            before = high[~extinct][-1] if (~extinct).any() else 1.0
            all_observed = self.events.sum() == at_risk[0]
            high[extinct] = min(before, 1 - tail ** (1 / at_risk[0])) if all_observed else before
        return low, high

    def first(self, where: np.ndarray) -> float:
        return float(self.at[where.argmax()]) if where.any() else np.inf

    def restricted_mean(self, until: float) -> tuple[float, float]:
        starts, ends = np.append(0.0, self.at), np.append(self.at, np.inf)
        areas = np.append(1.0, self.survival) * np.maximum(np.minimum(ends, until) - np.minimum(starts, until), 0.0)
        within = int(self.events[self.at <= until].sum())
        if within < 2:
            return float(areas.sum()), np.nan
        later = areas.sum() - np.cumsum(areas)[:-1]
        variance = np.sum(np.where(self.at <= until, later**2 * self.greenwood(), 0.0))
        return float(areas.sum()), float(np.sqrt(variance * within / (within - 1)))


def _exact_p_value(sample1: _Sample, sample2: _Sample, seed: int) -> float:
    """Share of divisions of the members whose observed minus expected events are as far from zero."""
    times, observed = np.append(sample1.times, sample2.times), np.append(sample1.observed, sample2.observed)
    table = _Table.from_sample(_Sample(times, observed))
    # Contribution of each member to the sum of its group.
    scores = observed - ((times[:, None] >= table.at) * table.events / table.at_risk).sum(1)
    sums = _sums_of_divisions(scores, len(sample2.times), np.random.default_rng(seed))
    exceeds = np.abs(sums) >= np.abs(scores[len(sample1.times) :].sum()) - 1e-9 * len(times)
    exhaustive = len(sums) < REASSIGNMENTS
    return float(exceeds.mean() if exhaustive else (exceeds.sum() + 1) / (len(sums) + 1))


def _sums_of_divisions(scores: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Sums of ``size`` scores over all subsets, or over random subsets if there are too many."""
    if comb(len(scores), size) < REASSIGNMENTS:
        return np.asarray([scores[list(subset)].sum() for subset in combinations(range(len(scores)), size)])
    return np.asarray([rng.permutation(scores)[:size].sum() for _ in range(REASSIGNMENTS)])
