r"""Where a curve of training changes its course, how well that is known, and when nothing is to be reported.

A curve v over the steps :math:`t_1 < \dots < t_T` is a straight line in :math:`x = \log t` between breaks,

.. math:: v(t) = a_k + b_k\log t + \text{noise}, \qquad \tau_k \le t < \tau_{k+1},

which may jump at a break. Any curve has a best fit of that kind, and a smooth one has the better fits the more breaks
there are. A break is reported only if a smooth curve does not do as well, with noise that is correlated as that of the
curve is, and its place is known to within a decade.

:func:`transitions <icllab.diagnostics.curves.transition_times.transitions>` asks another question: when each member
crosses a
level between a plateau and an end that are there by assumption, where a member that does not is censored. Here it is
asked whether a curve has such places at all.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from scipy.optimize import minimize
from scipy.signal import lfilter

from icllab.core.errors import expected, require_integer, unknown
from icllab.diagnostics.curves.transition_times import SCALES, member_curves

FEWEST = 12  # records of a curve in which a break is looked for
PER_SEGMENT = 4  # records of a segment, at least
DEGREES = 6  # of the polynomials in log t that count as smooth
PER_BREAK = 3  # numbers that a break adds: its place, and a line's two
CHANCE = 0.01  # of shuffled or of smooth curves that gain as much from breaks, up to which there are any
RHOS = (0.0, 0.25, 0.5, 0.7, 0.85, 0.95)  # correlations of the noise of neighbouring records that are tried
AGAIN = 8  # times as many smooth curves where few of the first gain as much
CALIBRATION = 100  # curves of each


def change_points(
    run_or_curve: Any,
    *,
    key: int = 0,
    variable: str | None = None,
    most: int = 4,
    resamples: int = 300,
    confidence: float = 0.95,
    widest: float = 10.0,
    resolution: float = 0.01,
    scale: str = "log",
    along: str = "step",
) -> xr.Dataset:
    r"""The breaks of a training curve, with bootstrap intervals, and which of them are to be reported.

    Of the mean over members. The number of breaks K has the least

    .. math:: \mathrm{BIC}_K = T\log\Bigl(\frac{\mathrm{RSS}_K}{T} + \epsilon^2\Bigr) + (3K + 2)\log T,

    with :math:`\epsilon` a share of the curve's range that nobody would look at: without it a curve without noise has a
    break wherever no smooth formula is exact. Their places have the least residual sum of squares RSS of all. None is
    reported

    - if a smooth curve has a BIC as low: a polynomial in x of a degree up to six, or a fall
      :math:`c + a\,f\bigl((t/\tau)^b\bigr)`, :math:`f(s) = (1+s)^{-1}` (a power law) or :math:`e^{-s}`, of which 10
      to 90 per cent take a factor of ``widest`` in time or more, if it lies within the curve;
    - if more than one in a hundred curves of the same values in another order gain as much from breaks: the
      order of the steps says nothing then;
    - if over more than one in a hundred curves that are that smooth curve with noise of its own, breaks lead a smooth
      curve as far. The criterion takes residuals for independent, and those of a training run are not: the noise is
      :math:`e_{i+1} = \rho e_i + \text{noise}` over the records, with :math:`\rho` estimated. At
      :math:`\rho = 0.7` one curve in forty is let through.

    The interval is the wider end, on each side, of two bootstraps: residuals resampled in circular blocks of about
    :math:`T^{1/3}` records, and whole members, if there are at least three. A break between two records lies
    anywhere between them. It is not reported where its interval spans ``widest``, or reaches an end of the curve.

    Args:
        run_or_curve: A run, or curves, as :func:`~icllab.diagnostics.curves.transition_times.transitions` takes it:
            over ``along`` and at most one other axis. Steps that are not recorded of all members are left out, and so
            is step 0 on a logarithmic scale.
        key: Seed of the resampling.
        variable: Of a Dataset or a run.
        most: Breaks, at most.
        resamples: Of each bootstrap, and reordered curves; at least 100.
        confidence: Of the intervals.
        widest: The ratio of the ends of an interval from which on a break is not reported.
        resolution: :math:`\epsilon`, over the difference of the curve's largest and least value.
        scale: ``"log"``, or ``"linear"``: of the steps that segments are straight in.
        along: The axis of time.

    Returns:
        Over ``change``, ascending: ``change_point`` (the geometric middle of the two records it lies between),
        ``change_interval`` (``bound``); ``jump``, the line after less the line before, there; ``slope_change``;
        ``reported``, and ``reason``, a sentence. ``bic`` over ``changes``, 0 to ``most``, and ``smooth_bic``. The
        attributes ``smooth``, the best smooth rival; ``chance``, the share of reordered curves; ``smooth_chance``, that
        of smooth ones with noise, or 1 where breaks do not lead; ``autocorrelation``, :math:`\rho`; ``noise``, the
        residual standard deviation; ``members``; ``records``.

    Raises:
        InputError: There are fewer than twelve records, or an argument is out of its range.

    Derived: docs/singular-training.md, Change points.
    """
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    require_integer("most", most)
    require_integer("resamples", resamples, least=100)
    if not 0 < confidence < 1:
        raise expected("confidence", "a number between 0 and 1", confidence)
    if not resolution >= 0:
        raise expected("resolution", "a share of at least 0", resolution)
    if not widest > 1:
        raise expected("widest", "a ratio above 1", widest)
    values, over = member_curves(run_or_curve, variable, along)
    t, members = np.asarray(values[along].values, float), np.asarray(values.transpose(over, along).values, float)
    kept = np.isfinite(members).all(0) & ((t > 0) | (scale == "linear"))
    order = np.argsort(t[kept])
    t, members = t[kept][order], members[:, kept][:, order]
    if len(t) < FEWEST:
        raise expected("curve", f"at least {FEWEST} steps that are recorded of all members", len(t))
    x = np.log(t) if scale == "log" else t
    most = min(most, len(t) // PER_SEGMENT - 1)
    curve = members.mean(0)
    floor = max(resolution * float(np.ptp(curve)), np.finfo(float).tiny ** 0.25)
    segments = _Segments(x, most, floor)
    fits = segments.fits(curve)
    bics = np.array([_bic(fit.residuals, PER_BREAK * k + 2, floor) for k, fit in enumerate(fits)])
    best = fits[int(np.argmin(bics))]
    rivals = _Rivals(x, t, widest, floor)
    smooth = rivals.best(curve)
    rng = np.random.default_rng(key)
    again = [_blocks(best, rng, resamples, segments)]
    if len(members) >= 3 and best.breaks:
        draws = rng.integers(len(members), size=(resamples, len(members)))
        again.append(np.array([segments.breaks(members[some].mean(0), len(best.breaks)) for some in draws]))
    chance = _chance(segments, curve, rng, resamples) if best.breaks else 1.0
    rho, smooth_chance = rivals.chance(
        smooth, segments, curve, len(best.breaks), smooth.bic - float(bics.min()), rng, resamples
    )
    none = ""
    if chance > CHANCE:
        none = f"of curves of the same values in another order {chance:.0%} gain as much from breaks"
    elif smooth.bic <= bics.min():
        none = f"{smooth.name} does as well without a break"
    elif smooth_chance > CHANCE:
        none = (
            f"of smooth curves with noise of its autocorrelation {rho:.2f} {smooth_chance:.0%} gain as much from breaks"
        )
    rows = [_judged(t, k, best, again, confidence, widest, none) for k in range(len(best.breaks))]
    changes = ("change", np.arange(len(rows)))
    columns = {
        "change_point": [math.sqrt(t[i - 1] * t[i]) if scale == "log" else (t[i - 1] + t[i]) / 2 for i in best.breaks],
        "jump": [best.jump(x, i) for i in range(len(rows))],
        "slope_change": [best.lines[i + 1][1] - best.lines[i][1] for i in range(len(rows))],
        "reported": [row.reason == "" for row in rows],
        "reason": [row.reason or "its place is known, and no smooth curve does as well" for row in rows],
    }
    return xr.Dataset(
        {name: ("change", np.asarray(column, dtype=_kind(name))) for name, column in columns.items()}
        | {
            "change_interval": (("change", "bound"), np.array([row.interval for row in rows]).reshape(-1, 2)),
            "bic": ("changes", bics),
            "smooth_bic": smooth.bic,
        },
        coords={"change": changes, "bound": ["low", "high"], "changes": np.arange(len(bics))},
        attrs={
            "smooth": smooth.name,
            "autocorrelation": rho,
            "chance": chance,
            "smooth_chance": smooth_chance,
            "noise": float(best.residuals.std()),
            "members": len(members),
            "records": len(t),
        },
    )


def _kind(name: str) -> Any:
    return {"reported": bool, "reason": str}.get(name, float)


class _Row(NamedTuple):
    interval: tuple[float, float]
    reason: str  # why it is not reported; empty if it is


class _Fit(NamedTuple):
    """Straight segments: where new ones begin, the lines (intercept, slope), and what they leave."""

    breaks: tuple[int, ...]
    lines: tuple[tuple[float, float], ...]
    fitted: np.ndarray
    residuals: np.ndarray

    def jump(self, x: np.ndarray, k: int) -> float:
        """Between the lines on both sides of a break."""
        middle = (x[self.breaks[k] - 1] + x[self.breaks[k]]) / 2
        (a, b), (c, d) = self.lines[k], self.lines[k + 1]
        return (c + d * middle) - (a + b * middle)


class _Segments:
    """Least squares over all ways to cut a curve, by dynamic programming."""

    def __init__(self, x: np.ndarray, most: int, floor: float):
        self.x, self.most, self.floor = x, most, floor

    def cuts(self, v: np.ndarray) -> tuple[np.ndarray, list[tuple[int, ...]]]:
        """The residual sums of squares and the places of the best 0, 1, ... breaks."""
        cost = self._costs(v)
        best, cut = [cost[0]], []
        for _ in range(self.most):
            # Of all i: the segments before i at their best, and one from i on to the end.
            total = best[-1][:-1, None] + cost[1:]
            cut.append(np.argmin(total, axis=0) + 1)
            best.append(np.min(total, axis=0))
        found = []
        for k in range(self.most + 1):
            breaks, end = [], len(v)
            for level in range(k - 1, -1, -1):
                end = int(cut[level][end - 1])
                breaks.append(end)
            found.append(tuple(reversed(breaks)))
        return np.array([row[-1] for row in best]), found

    def fits(self, v: np.ndarray) -> list[_Fit]:
        """The best of 0, 1, ... breaks."""
        return [self._fit(v, breaks) for breaks in self.cuts(v)[1]]

    def breaks(self, v: np.ndarray, k: int) -> tuple[int, ...]:
        """The places of the best k breaks."""
        return self.cuts(v)[1][k]

    def gain(self, v: np.ndarray) -> float:
        """How much lower breaks make the criterion than none."""
        bics = self._of(self.cuts(v)[0])
        return float(bics[0] - bics.min())

    def criterion(self, v: np.ndarray, k: int) -> float:
        """That of the best k breaks."""
        return float(self._of(self.cuts(v)[0])[k])

    def _of(self, left: np.ndarray) -> np.ndarray:
        """The criteria of 0, 1, ... breaks that leave so much."""
        count = len(self.x)
        numbers = PER_BREAK * np.arange(self.most + 1) + 2
        return count * np.log(left / count + self.floor**2) + numbers * math.log(count)

    def _costs(self, v: np.ndarray) -> np.ndarray:
        """[first, last] -> residual sum of squares of a line through the records from one to the other."""
        x, v = self.x - self.x.mean(), v - v.mean()
        sums = [np.concatenate([[0.0], np.cumsum(part)]) for part in (np.ones_like(x), x, v, x * x, x * v, v * v)]
        n, sx, sv, sxx, sxv, svv = (part[None, 1:] - part[:-1, None] for part in sums)
        with np.errstate(divide="ignore", invalid="ignore"):
            xx, xv, vv = sxx - sx**2 / n, sxv - sx * sv / n, svv - sv**2 / n
            cost = np.maximum(vv - xv**2 / xx, 0)
        return np.where(n >= PER_SEGMENT, cost, np.inf)

    def _fit(self, v: np.ndarray, breaks: tuple[int, ...]) -> _Fit:
        lines, fitted = [], np.empty_like(v)
        for a, b in zip((0, *breaks), (*breaks, len(v)), strict=True):
            slope, level = np.polyfit(self.x[a:b], v[a:b], 1)
            lines.append((float(level), float(slope)))
            fitted[a:b] = level + slope * self.x[a:b]
        return _Fit(breaks, tuple(lines), fitted, v - fitted)


def _bic(residuals: np.ndarray, numbers: int, floor: float) -> float:
    count = len(residuals)
    return count * math.log(float(np.mean(residuals**2)) + floor**2) + numbers * math.log(count)


class _Smooth(NamedTuple):
    """A smooth curve at its best, its criterion, how many numbers it has, and what it leaves."""

    name: str
    bic: float
    numbers: int
    fitted: np.ndarray
    residuals: np.ndarray


class _Rivals:
    """Curves without a break."""

    def __init__(self, x: np.ndarray, t: np.ndarray, widest: float, floor: float):
        self.t, self.widest, self.floor = t, widest, floor
        u = 2 * (x - x[0]) / (x[-1] - x[0]) - 1
        self.polynomials = np.linalg.qr(np.polynomial.chebyshev.chebvander(u, DEGREES))[0]

    def best(self, v: np.ndarray) -> _Smooth:
        """Of all at their best, the one with the least criterion."""
        left = {}
        for degree in range(1, DEGREES + 1):
            basis = self.polynomials[:, : degree + 1]
            left[f"a polynomial of degree {degree}"] = degree + 1, v - basis @ (basis.T @ v)
        if self.t[0] > 0:
            for name, (shape, most) in _FALLS.items():
                left[name] = 4, _fall(self.t, v, shape, most(math.log(self.widest)))
        found = [_Smooth(name, _bic(e, k, self.floor), k, v - e, e) for name, (k, e) in left.items()]
        return min(found, key=lambda one: one.bic)

    def chance(
        self,
        smooth: _Smooth,
        segments: "_Segments",
        v: np.ndarray,
        k: int,
        lead: float,
        rng: np.random.Generator,
        resamples: int,
    ) -> tuple[float, float]:
        """The autocorrelation of the noise, and how often breaks lead so far over a smooth curve with such noise.

        What a smooth curve leaves of a cliff is correlated without noise, and what a fit leaves of noise is less
        correlated than the noise. So polynomials of the degree that the smooth curve has numbers for are fitted with
        one break, and the correlation is that with which smooth curves leave as much as was found.
        """
        bases = self._with_a_break(max(smooth.numbers, 4))
        found = [float(np.mean(_lags(bases, self._again(smooth, rho, rng, CALIBRATION)))) for rho in RHOS]
        rho = float(np.interp(float(_lags(bases, v[None])[0]), np.maximum.accumulate(found), RHOS))
        if lead <= 0:
            return rho, 1.0
        as_far = drawn = 0
        while not drawn or (drawn < AGAIN * resamples and 0 < as_far <= 5 * CHANCE * drawn):
            curves = self._again(smooth, rho, rng, resamples)
            leads = self._criteria(curves, smooth) - np.array([segments.criterion(v, k) for v in curves])
            as_far, drawn = as_far + int(np.sum(leads >= lead)), drawn + resamples
        return rho, (1 + as_far) / (1 + drawn)

    def _with_a_break(self, numbers: int) -> np.ndarray:
        """Orthonormal polynomials together with a step and a change of slope, [place, record, number]."""
        size = len(self.polynomials)
        after = np.arange(size) >= np.arange(PER_SEGMENT, size - PER_SEGMENT + 1)[:, None]
        slope = after * self.polynomials[:, 1]
        smooth = np.broadcast_to(self.polynomials[:, :numbers], (len(after), size, numbers))
        return np.linalg.qr(np.concatenate([smooth, after[:, :, None], slope[:, :, None]], axis=2))[0]

    def _again(self, smooth: _Smooth, rho: float, rng: np.random.Generator, count: int) -> np.ndarray:
        """The smooth curve with other noise, of neighbours so correlated, that leaves as much on average."""
        basis = self.polynomials[:, : smooth.numbers]
        size = len(smooth.fitted)
        law = rho ** np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
        share = 1 - float(np.sum(basis * (law @ basis))) / size
        scale = math.sqrt(float(np.mean(smooth.residuals**2)) / share)
        noise = rng.normal(size=(count, size))
        noise[:, 1:] *= math.sqrt(1 - rho**2)
        return smooth.fitted + scale * np.asarray(lfilter([1.0], [1.0, -rho], noise, axis=1))

    def _criteria(self, curves: np.ndarray, smooth: _Smooth) -> np.ndarray:
        """The least of the polynomials, and of the curve that they were made with, of each."""
        count = curves.shape[1]
        curves = curves - curves.mean(1, keepdims=True)
        parts = np.cumsum((curves @ self.polynomials) ** 2, axis=1)[:, 1:]
        shape = smooth.fitted - smooth.fitted.mean()
        along = (curves @ shape) ** 2 / max(float(shape @ shape), np.finfo(float).tiny)
        parts = np.column_stack([parts, along])
        numbers = np.array([*range(2, DEGREES + 2), smooth.numbers])
        left = np.maximum(np.sum(curves**2, axis=1, keepdims=True) - parts, 0) / count
        return np.min(count * np.log(left + self.floor**2) + numbers * math.log(count), axis=1)


def _lags(bases: np.ndarray, curves: np.ndarray) -> np.ndarray:
    """The correlation of neighbours in what the best of some bases leaves, of each curve."""
    curves = curves - curves.mean(1, keepdims=True)
    best = np.argmax(np.sum((curves @ bases) ** 2, axis=2), axis=0)
    left = np.stack([v - bases[i] @ (v @ bases[i]) for v, i in zip(curves, best, strict=True)])
    square = np.sum(left**2, axis=1)
    return np.sum(left[:, 1:] * left[:, :-1], axis=1) / np.where(square > 0, square, 1)


# Falls from one level to another, of (t / tau)^b, and the largest b at which 10 to 90 per cent take a log ratio.
_FALLS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[float], float]]] = {
    "a power law": (lambda s: 1 / (1 + s), lambda ratio: 2 * math.log(9) / ratio),
    "an exponential": (lambda s: np.exp(-s), lambda ratio: math.log(math.log(10) / -math.log(0.9)) / ratio),
}


def _fall(t: np.ndarray, v: np.ndarray, shape: Callable[[np.ndarray], np.ndarray], most: float) -> np.ndarray:
    """What the best c + a shape((t / tau)^b) leaves, for b up to ``most``; beyond the ends of the curve for any b."""
    begin, end = math.log(t[0]), math.log(t[-1])

    def left(at: Sequence[float]) -> np.ndarray:
        log_tau, b = at
        if begin < log_tau < end:
            b = min(b, most)
        some = shape(np.exp(np.clip(b * (np.log(t) - log_tau), -50, 50)))
        some = some - some.mean()
        size = float(some @ some)
        return v - v.mean() - (some @ v / size * some if size > 0 else 0)

    grid = [(begin + share * (end - begin), b) for share in np.linspace(-1, 1, 17) for b in (most, most / 2, most / 5)]
    costs = [float(np.sum(left(at) ** 2)) for at in grid]
    solved: Any = minimize(
        lambda at: math.log(max(float(np.sum(left((at[0], math.exp(at[1]))) ** 2)), np.finfo(float).tiny)),
        [grid[int(np.argmin(costs))][0], math.log(grid[int(np.argmin(costs))][1])],
        method="Nelder-Mead",
        options={"xatol": 1e-4, "fatol": 1e-4},
    )
    return left((solved.x[0], math.exp(solved.x[1])))


def _chance(segments: _Segments, curve: np.ndarray, rng: np.random.Generator, resamples: int) -> float:
    """How often a curve of the same values in another order gains as much from breaks."""
    gain = segments.gain(curve)
    as_much = sum(segments.gain(rng.permutation(curve)) >= gain for _ in range(resamples))
    return (1 + as_much) / (1 + resamples)


def _blocks(fit: _Fit, rng: np.random.Generator, resamples: int, segments: _Segments) -> np.ndarray:
    """Breaks of curves with resampled residuals, [resample, change]."""
    count, k = len(fit.fitted), len(fit.breaks)
    if not k:
        return np.empty((resamples, 0), int)
    length = max(round(count ** (1 / 3)), 1)
    # Lines take a part of the noise with them.
    left = fit.residuals * math.sqrt(count / max(count - PER_BREAK * k - 2, 1))
    starts = rng.integers(count, size=(resamples, -(-count // length)))
    places = (starts[:, :, None] + np.arange(length)).reshape(resamples, -1)[:, :count] % count
    more = segments.floor * rng.normal(size=places.shape)
    return np.array([segments.breaks(fit.fitted + left[row] + some, k) for row, some in zip(places, more, strict=True)])


def _judged(
    t: np.ndarray,
    k: int,
    fit: _Fit,
    again: list[np.ndarray],
    confidence: float,
    widest: float,
    none: str,
) -> _Row:
    at = fit.breaks[k]
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    low = high = at
    for breaks in again:
        # Of each resampled curve the break that is nearest: another one of its breaks may be another change.
        nearest = (
            breaks[np.arange(len(breaks)), np.argmin(np.abs(np.log(t[breaks] / t[at])), axis=1)]
            if t[0] > 0
            else breaks[:, k]
        )
        ends = np.quantile(nearest, tails, method="inverted_cdf").astype(int)
        low, high = min(low, int(ends[0])), max(high, int(ends[1]))
    interval = (float(t[low - 1]), float(t[high]))
    ratio = interval[1] / interval[0] if interval[0] > 0 else math.inf
    if none:
        reason = none
    elif ratio >= widest:
        reason = f"its interval, {interval[0]:.3g} to {interval[1]:.3g}, spans a factor of {widest:g}"
    elif low <= PER_SEGMENT or high >= len(t) - PER_SEGMENT:
        reason = "its interval reaches an end of the curve"
    else:
        reason = ""
    return _Row(interval, reason)
