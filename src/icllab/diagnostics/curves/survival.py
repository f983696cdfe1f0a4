r"""How long until something happens, where for some it has not happened yet: survival functions and their comparison.

A run that has not made its transition when it ends says that its time is longer, and no more: it is *censored*.
Leaving such runs out, or counting their last step as a time, makes a delay look short.
"""

from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy.special import ndtri
from scipy.stats import CensoredData, ecdf, logrank

from icllab.core.errors import expected, require_number

REASSIGNMENTS = 20_000  # as many ways of dividing the members in two are all counted; of more, so many are drawn


def kaplan_meier(
    times: np.ndarray, observed: np.ndarray, *, until: float | None = None, confidence: float = 0.95
) -> xr.Dataset:
    r"""The share of members to which it has not happened by a time, with intervals.

    .. math:: \hat S(t) = \prod_{t_i\le t}\Bigl(1 - \frac{d_i}{n_i}\Bigr), \qquad
              \hat V = \sum_{t_i\le t}\frac{d_i}{n_i(n_i-d_i)}, \qquad
              \hat S(t)^{\exp\left(\pm z\sqrt{\hat V}/\ln\hat S(t)\right)}

    with :math:`d_i` of the :math:`n_i` members that are left at the time :math:`t_i`. The interval is Greenwood's on
    the scale of :math:`\ln(-\ln S)`. That is undefined where S is 1 or 0; there it is the exact binomial one, of no
    event among the :math:`n_i`, and of no survivor among all (while some were censored, the last that is defined).

    The median is the first time at which S is at most 1/2. Its interval has all times whose interval of S has 1/2
    in it: it reaches to infinity where the data do not bound it. The restricted mean is
    :math:`\int_0^{t^*}\hat S\,dt`, the mean time spent before :math:`t^*`, with Greenwood's standard error times
    :math:`\sqrt{m/(m-1)}` for m events; without two events it has none.

    Args:
        times: Times of the event, or until when there was none, [member].
        observed: Whether it happened, [member].
        until: :math:`t^*`, at most the largest time; None: that.
        confidence: Coverage of the intervals.

    Returns:
        ``survival``, ``survival_interval`` and ``at_risk`` over ``time``; ``median_time``, ``median_time_interval``,
        ``restricted_mean``, ``restricted_mean_error``; the attributes ``members``, ``events``, ``until``.

    Raises:
        InputError: No member, times that are no positive numbers or not as many, or an ``until`` beyond them.

    Source: [KaplanMeier58].
    Derived: docs/transitions.md, Runs that have not made it.
    """
    sample = _Sample.read(times, observed)
    horizon = sample.horizon(until)
    require_number("confidence", confidence, "a number between 0 and 1", lambda x: 0 < x < 1)
    table = _Table.of(sample)
    low, high = table.limits(confidence)
    mean, error = table.restricted_mean(horizon)
    attributes = {"members": len(sample.times), "events": int(table.events.sum())}
    return xr.Dataset(
        {
            "survival": ("time", table.survival),
            "survival_interval": (("time", "bound"), np.stack([low, high], 1)),
            "at_risk": ("time", table.left),
            "median_time": table.first(table.survival <= 0.5),
            "median_time_interval": ("bound", [table.first(low <= 0.5), table.first(high < 0.5)]),
            "restricted_mean": mean,
            "restricted_mean_error": error,
        },
        coords={"time": table.at, "bound": ["low", "high"]},
        attrs=attributes | {"until": horizon, "confidence": confidence},
    )


def delay(first: xr.Dataset, second: xr.Dataset, *, until: float | None = None, seed: int = 0) -> xr.Dataset:
    r"""Does it happen later in a second group than in a first? The log-rank test and the difference of the means.

    .. math:: Z = \frac{\sum_i\bigl(d_{2i} - d_i\,n_{2i}/n_i\bigr)}{\sqrt{\sum_iv_i}}, \qquad
              v_i = \frac{n_{1i}n_{2i}d_i(n_i-d_i)}{n_i^2(n_i-1)}

    Z is negative where the second group is the later one. ``p_value`` is two-sided and normal, which is too sure of
    itself in small groups; ``exact_p_value`` is the share of all divisions of the members into groups of these sizes
    whose sum is at least as large (of a draw of 20 000 of them where there are more).

    Args:
        first: What ``transitions`` returns, or any Dataset with ``observed_time`` and ``transitioned`` over one axis.
        second: The same of the second group.
        until: Where the restricted means end; None: the smaller of the two largest times.
        seed: Seed of the draw of divisions.

    Returns:
        ``log_rank`` (Z), ``p_value``, ``exact_p_value``; ``restricted_difference``, second minus first, and the natural
        logarithm of their ratio, ``log_ratio``, each with an ``_error``. NaN where there is no event at all.

    Raises:
        InputError: A Dataset lacks one of the two variables, or as :func:`kaplan_meier`.

    Source: [Mantel66].
    Derived: docs/transitions.md, Two groups.
    """
    one, two = (_Sample.of(name, group) for name, group in (("first", first), ("second", second)))
    horizon = min(max(one.times), max(two.times)) if until is None else until
    means = [kaplan_meier(group.times, group.observed, until=horizon) for group in (one, two)]
    (a, of_a), (b, of_b) = ((float(m["restricted_mean"]), float(m["restricted_mean_error"])) for m in means)
    z = p = exact = np.nan
    if one.observed.any() or two.observed.any():
        found = logrank(two.censored, one.censored)
        z, p, exact = float(found.statistic), float(found.pvalue), _exact_p_value(one, two, seed)
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
        attrs={"until": float(horizon), "events": int(one.observed.sum() + two.observed.sum())},
    )


class _Sample(NamedTuple):
    times: np.ndarray
    observed: np.ndarray

    @classmethod
    def read(cls, times: np.ndarray, observed: np.ndarray) -> "_Sample":
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
    def of(cls, name: str, group: xr.Dataset) -> "_Sample":
        for variable in ("observed_time", "transitioned"):
            if variable not in group:
                raise expected(name, "a Dataset with observed_time and transitioned", [str(v) for v in group.data_vars])
        return cls.read(group["observed_time"].values, group["transitioned"].values)

    @property
    def censored(self) -> CensoredData:
        return CensoredData.right_censored(self.times, ~self.observed)

    def horizon(self, until: float | None) -> float:
        last = float(self.times.max())
        if until is not None and not 0 < until <= last:
            raise expected("until", f"a number > 0, at most the largest time {last:g}", until)
        return last if until is None else float(until)


class _Table(NamedTuple):
    """Times of events and of censoring, with the estimate after each."""

    at: np.ndarray
    survival: np.ndarray
    left: np.ndarray  # members that are left at each time
    events: np.ndarray  # members to whom it happens then

    @classmethod
    def of(cls, sample: _Sample) -> "_Table":
        found = ecdf(sample.censored).sf
        at = found.quantiles
        events = (sample.observed & (sample.times == at[:, None])).sum(1)
        return cls(at, found.probabilities, (sample.times >= at[:, None]).sum(1), events)

    def greenwood(self) -> np.ndarray:
        """Terms of the variance; zero where nobody is left, where what they are multiplied with is zero."""
        after = self.left - self.events
        return np.where(after > 0, self.events / (self.left * np.maximum(after, 1.0)), 0.0)

    def limits(self, confidence: float) -> tuple[np.ndarray, np.ndarray]:
        survival, left = self.survival, self.left
        z, tail = float(ndtri(0.5 + confidence / 2)), (1 - confidence) / 2
        spread = np.sqrt(np.cumsum(self.greenwood()))
        low, high = np.zeros_like(survival), np.ones_like(survival)
        inside = (survival > 0) & (survival < 1)
        hazard = -np.log(survival[inside])
        low[inside], high[inside] = (np.exp(-hazard * np.exp(side * z * spread[inside] / hazard)) for side in (1, -1))
        low[survival == 1] = tail ** (1 / left[survival == 1])
        gone = survival == 0
        if gone.any():
            before = high[~gone][-1] if (~gone).any() else 1.0
            all_seen = self.events.sum() == left[0]
            high[gone] = min(before, 1 - tail ** (1 / left[0])) if all_seen else before
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


def _exact_p_value(one: _Sample, two: _Sample, seed: int) -> float:
    """Over divisions of the members: how often the observed minus expected events are as far from zero."""
    times, observed = np.append(one.times, two.times), np.append(one.observed, two.observed)
    table = _Table.of(_Sample(times, observed))
    # What each member adds to the sum of a group that it is in.
    scores = observed - ((times[:, None] >= table.at) * table.events / table.left).sum(1)
    sums = _sums_of_divisions(scores, len(two.times), np.random.default_rng(seed))
    reached = np.abs(sums) >= np.abs(scores[len(one.times) :].sum()) - 1e-9 * len(times)
    exhaustive = len(sums) < REASSIGNMENTS
    return float(reached.mean() if exhaustive else (reached.sum() + 1) / (len(sums) + 1))


def _sums_of_divisions(scores: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Sums of ``size`` scores: of every choice of them, or of as many draws as are allowed."""
    if comb(len(scores), size) < REASSIGNMENTS:
        return np.asarray([scores[list(chosen)].sum() for chosen in combinations(range(len(scores)), size)])
    return np.asarray([rng.permutation(scores)[:size].sum() for _ in range(REASSIGNMENTS)])
