r"""Medians (with censoring) and fractions, with distribution-free intervals over named axes.

The probability that an interval misses is at most that of so many standard errors on each side,
:math:`\epsilon = P(Z < -\sigma)`, .00135 of three. Of n samples the *median* lies between two of them in order,

.. math:: x_{(k)} \le m \le x_{(n+1-k)}, \qquad P(B \le k - 1) \le \epsilon, \quad B \sim \mathrm{Bin}(n, 1/2),

whatever their distribution: ten are the least that have an interval of three standard errors. A run that ends before
its event has a time that is longer than its length. Below, its length stands for its time; above, infinity. Of a
*fraction* of k members in n the limits are those of Clopper and Pearson, at which as many or more, or as few or fewer,
have the probability :math:`\epsilon`.

A claim that compares many numbers misses some by chance. What *fails* among :math:`K` has missed by
:func:`comparing_sigmas` too, so that a true claim fails on one key in twenty at most, however its numbers depend on
each other (Bonferroni; of a claim that fails if any number does, Holm's procedure is the same).
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import xarray as xr
from scipy.special import ndtr, ndtri

from icllab.core.errors import expected
from icllab.core.statistics import binomial_limits
from icllab.core.views import fields_html, fields_repr

SIGMAS = 3.0
FALSE = 0.05
"""Largest probability that a true claim fails."""
_comparisons: ContextVar[int] = ContextVar("comparisons", default=1)


@contextlib.contextmanager
def comparisons(count: int) -> Iterator[None]:
    """Let findings within fail as in a claim that compares ``count`` numbers."""
    token = _comparisons.set(max(count, 1))
    try:
        yield
    finally:
        _comparisons.reset(token)


def comparing_sigmas() -> float:
    r"""Standard errors by which one of K numbers misses by chance, :math:`z_{1-0.05/2K}`: 3 of K = 18."""
    return -float(ndtri(FALSE / (2 * _comparisons.get())))


_Limits: TypeAlias = tuple[xr.DataArray, xr.DataArray]


@dataclass(frozen=True, repr=False)
class Interval:
    """A value between two limits for every element of an array with named axes.

    Attributes:
        value: The estimate.
        low: The lower limit, over the same axes; -inf where there is none.
        high: The upper limit; inf where there is none.
        lowest: The lower limit that one of many comparisons allows, :func:`comparing_sigmas`.
        highest: The upper one.
    """

    value: xr.DataArray
    low: xr.DataArray
    high: xr.DataArray
    lowest: xr.DataArray
    highest: xr.DataArray

    logarithmic = False
    __repr__ = fields_repr
    _repr_html_ = fields_html

    def __truediv__(self, operand: "Interval") -> "Interval":
        """The ratio of positive numbers: the interval covers it whenever both intervals cover theirs."""

        def limits(mine: _Limits, others: _Limits) -> _Limits:
            below = others[0] > 0
            return mine[0].clip(min=0) / others[1], xr.where(below, mine[1] / others[0].where(below, 1.0), np.inf)

        near = limits((self.low, self.high), (operand.low, operand.high))
        far = limits((self.lowest, self.highest), (operand.lowest, operand.highest))
        return Interval(self.value / operand.value, *near, *far)

    @property
    def error(self) -> xr.DataArray:
        """Half the width of the interval over its standard errors; of one side if the other is unlimited."""
        sides = xr.concat([self.value - self.low, self.high - self.value], "side")
        return sides.where(np.isfinite(sides)).mean("side") / SIGMAS


def fraction(members: xr.DataArray, over: str = "seed", *, sigmas: float = SIGMAS) -> Interval:
    """The fraction of ``members`` that are true, with Clopper and Pearson's interval; NaNs are left out."""
    count, hits = members.notnull().sum(over), members.astype(float).sum(over)

    def limits(tail: float) -> _Limits:
        low, high = binomial_limits(hits, count, tail)
        return count.copy(data=low), count.copy(data=high)

    return Interval(hits / count.where(count > 0), *_near_and_far(limits, sigmas))


def median(
    samples: xr.DataArray, observed: xr.DataArray | None = None, over: str = "seed", *, sigmas: float = SIGMAS
) -> Interval:
    """The median over independent repetitions, between two of them in order; NaNs are left out.

    Args:
        samples: Numbers, or times of events; of a run that was censored its length.
        observed: Whether the event happened; a median of times of which too many are censored has no upper limit.
        over: The axis of repetitions.
        sigmas: Standard errors whose probability the interval has.
    """
    from scipy.stats import binom

    if observed is not None and set(observed.dims) != set(samples.dims):
        raise expected("observed", f"the axes {list(samples.dims)}", list(observed.dims))
    present = samples.notnull()
    above = samples if observed is None else samples.where(observed.astype(bool) | ~present, np.inf)
    count = present.sum(over)
    last = samples.get_axis_num(over)

    def limits(tail: float) -> _Limits:
        rank = count.copy(data=binom.ppf(tail, count, 0.5)).astype(int)
        # ppf is the least number whose probability reaches the tail: one less has at most that; this is k - 1, or k.
        rank = rank - (binom.cdf(rank, count, 0.5) > tail) + 1
        return ordered(samples, rank, rank - 1, -np.inf), ordered(above, rank, count - rank, np.inf)

    def ordered(values: xr.DataArray, rank: xr.DataArray, place: xr.DataArray, none: float) -> xr.DataArray:
        in_order = np.moveaxis(np.sort(values.to_numpy(), axis=last), last, -1)  # NaNs come last
        inside = (place >= 0) & (place < count)
        picked = np.take_along_axis(in_order, place.where(inside, 0).to_numpy().astype(int)[..., None], -1)[..., 0]
        return place.copy(data=np.where(inside & (rank > 0), picked, none))

    return Interval(samples.median(over), *_near_and_far(limits, sigmas))


def _near_and_far(limits: Callable[[float], _Limits], sigmas: float) -> tuple[xr.DataArray, ...]:
    """Limits at the tail of ``sigmas``, and limits for one of many comparisons."""
    near, far = (limits(float(ndtr(-s))) for s in (sigmas, max(sigmas, comparing_sigmas())))
    return *near, *far
