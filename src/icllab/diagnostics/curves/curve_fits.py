r"""Fits of a curve: piecewise linear with breaks, and smooth, whose noise may mimic breaks."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.signal import lfilter

DEGREES = 6  # of the polynomials in log t that count as smooth
CHANCE = 0.01  # largest share of shuffled or smooth curves that breaks may improve as much
RHOS = (0.0, 0.25, 0.5, 0.7, 0.85, 0.95)  # simulated correlations of the noise of neighbouring records
AGAIN = 8  # factor on the number of simulations if few of the first gain as much
CALIBRATION = 100  # simulated curves of each correlation
PER_SEGMENT = 4  # smallest number of records in a segment
PER_BREAK = 3  # parameters that a break adds: its place, and a line's two


class SegmentFit(NamedTuple):
    """Piecewise linear fit: first records of new segments, lines (intercept, slope), values and residuals."""

    breaks: tuple[int, ...]
    lines: tuple[tuple[float, float], ...]
    values: np.ndarray
    residuals: np.ndarray

    def jump(self, x: np.ndarray, k: int) -> float:
        """Difference of the lines on both sides of a break."""
        middle = (x[self.breaks[k] - 1] + x[self.breaks[k]]) / 2
        (a, b), (c, d) = self.lines[k], self.lines[k + 1]
        return (c + d * middle) - (a + b * middle)


class Segments:
    """Least squares over all segmentations of a curve, by dynamic programming."""

    def __init__(self, x: np.ndarray, max_breaks: int, floor: float):
        self.x, self.max_breaks, self.floor = x, max_breaks, floor

    def cuts(self, v: np.ndarray) -> tuple[np.ndarray, list[tuple[int, ...]]]:
        """Residual sums of squares and places of the best 0, 1, ... breaks."""
        cost = self._costs(v)
        best, cut = [cost[0]], []
        for _ in range(self.max_breaks):
            # For all i: the best segments before i, and one from i to the end.
            total = best[-1][:-1, None] + cost[1:]
            cut.append(np.argmin(total, axis=0) + 1)
            best.append(np.min(total, axis=0))
        cut_lists = []
        for k in range(self.max_breaks + 1):
            breaks, end = [], len(v)
            for level in range(k - 1, -1, -1):
                end = int(cut[level][end - 1])
                breaks.append(end)
            cut_lists.append(tuple(reversed(breaks)))
        return np.array([row[-1] for row in best]), cut_lists

    def fits(self, v: np.ndarray) -> list[SegmentFit]:
        """The best fits with 0, 1, ... breaks."""
        return [self._fit(v, breaks) for breaks in self.cuts(v)[1]]

    def breaks(self, v: np.ndarray, k: int) -> tuple[int, ...]:
        """Places of the best k breaks."""
        return self.cuts(v)[1][k]

    def gain(self, v: np.ndarray) -> float:
        """Decrease of the criterion by breaks."""
        bics = self._criteria(self.cuts(v)[0])
        return float(bics[0] - bics.min())

    def criterion(self, v: np.ndarray, k: int) -> float:
        """Criterion of the best k breaks."""
        return float(self._criteria(self.cuts(v)[0])[k])

    def _criteria(self, residual_squares: np.ndarray) -> np.ndarray:
        """Criteria of 0, 1, ... breaks with these residual sums of squares."""
        count = len(self.x)
        numbers = PER_BREAK * np.arange(self.max_breaks + 1) + 2
        return count * np.log(residual_squares / count + self.floor**2) + numbers * math.log(count)

    def _costs(self, v: np.ndarray) -> np.ndarray:
        """Residual sums of squares of lines through the records first to last, [first, last]."""
        x, v = self.x - self.x.mean(), v - v.mean()
        sums = [np.concatenate([[0.0], np.cumsum(part)]) for part in (np.ones_like(x), x, v, x * x, x * v, v * v)]
        n, sx, sv, sxx, sxv, svv = (part[None, 1:] - part[:-1, None] for part in sums)
        with np.errstate(divide="ignore", invalid="ignore"):
            xx, xv, vv = sxx - sx**2 / n, sxv - sx * sv / n, svv - sv**2 / n
            cost = np.maximum(vv - xv**2 / xx, 0)
        return np.where(n >= PER_SEGMENT, cost, np.inf)

    def _fit(self, v: np.ndarray, breaks: tuple[int, ...]) -> SegmentFit:
        lines, values = [], np.empty_like(v)
        for a, b in zip((0, *breaks), (*breaks, len(v)), strict=True):
            slope, level = np.polyfit(self.x[a:b], v[a:b], 1)
            lines.append((float(level), float(slope)))
            values[a:b] = level + slope * self.x[a:b]
        return SegmentFit(breaks, tuple(lines), values, v - values)


def bic(residuals: np.ndarray, numbers: int, floor: float) -> float:
    """Bayesian information criterion of a fit; ``numbers`` is its number of parameters."""
    count = len(residuals)
    return count * math.log(float(np.mean(residuals**2)) + floor**2) + numbers * math.log(count)


class Smooth(NamedTuple):
    """Best fit of a smooth curve: criterion, number of parameters, values and residuals."""

    name: str
    bic: float
    numbers: int
    values: np.ndarray
    residuals: np.ndarray


class SmoothCurves:
    """Fits of curves without a break."""

    def __init__(self, x: np.ndarray, t: np.ndarray, widest: float, floor: float):
        self.t, self.widest, self.floor = t, widest, floor
        u = 2 * (x - x[0]) / (x[-1] - x[0]) - 1
        self.polynomials = np.linalg.qr(np.polynomial.chebyshev.chebvander(u, DEGREES))[0]

    def best(self, v: np.ndarray) -> Smooth:
        """The smooth curve of least criterion."""
        residuals = {}
        for degree in range(1, DEGREES + 1):
            basis = self.polynomials[:, : degree + 1]
            residuals[f"a polynomial of degree {degree}"] = degree + 1, v - basis @ (basis.T @ v)
        if self.t[0] > 0:
            for name, (shape, steepest) in _FALLS.items():
                residuals[name] = 4, _fall(self.t, v, shape, steepest(math.log(self.widest)))
        candidates = [Smooth(name, bic(e, k, self.floor), k, v - e, e) for name, (k, e) in residuals.items()]
        return min(candidates, key=lambda curve: curve.bic)

    def chance(
        self,
        smooth: Smooth,
        segments: Segments,
        v: np.ndarray,
        k: int,
        lead: float,
        rng: np.random.Generator,
        resamples: int,
    ) -> tuple[float, float]:
        """Autocorrelation of the noise, and share of simulated smooth curves on which breaks lead by ``lead``.

        Residuals of a smooth fit to a cliff are correlated without noise, and residuals of a fit to noise are less
        correlated than the noise. Therefore the fit is a polynomial with one break and as many parameters as the smooth
        curve, and the estimate is the correlation at which simulated smooth curves give the same residual correlation.
        """
        bases = self._bases_with_break(max(smooth.numbers, 4))
        lags = [float(np.mean(_lags(bases, self._simulate(smooth, rho, rng, CALIBRATION)))) for rho in RHOS]
        rho = float(np.interp(float(_lags(bases, v[None])[0]), np.maximum.accumulate(lags), RHOS))
        if lead <= 0:
            return rho, 1.0
        exceedances = trials = 0
        while not trials or (trials < AGAIN * resamples and 0 < exceedances <= 5 * CHANCE * trials):
            curves = self._simulate(smooth, rho, rng, resamples)
            leads = self._criteria(curves, smooth) - np.array([segments.criterion(v, k) for v in curves])
            exceedances, trials = exceedances + int(np.sum(leads >= lead)), trials + resamples
        return rho, (1 + exceedances) / (1 + trials)

    def _bases_with_break(self, numbers: int) -> np.ndarray:
        """Orthonormal polynomials together with a step and a change of slope, [place, record, number]."""
        size = len(self.polynomials)
        after = np.arange(size) >= np.arange(PER_SEGMENT, size - PER_SEGMENT + 1)[:, None]
        slope = after * self.polynomials[:, 1]
        smooth = np.broadcast_to(self.polynomials[:, :numbers], (len(after), size, numbers))
        return np.linalg.qr(np.concatenate([smooth, after[:, :, None], slope[:, :, None]], axis=2))[0]

    def _simulate(self, smooth: Smooth, rho: float, rng: np.random.Generator, count: int) -> np.ndarray:
        """Smooth curve plus noise of correlation ``rho``, with the same residual variance on average."""
        basis = self.polynomials[:, : smooth.numbers]
        size = len(smooth.values)
        correlations = rho ** np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
        share = 1 - float(np.sum(basis * (correlations @ basis))) / size
        scale = math.sqrt(float(np.mean(smooth.residuals**2)) / share)
        noise = rng.normal(size=(count, size))
        noise[:, 1:] *= math.sqrt(1 - rho**2)
        return smooth.values + scale * np.asarray(lfilter([1.0], [1.0, -rho], noise, axis=1))

    def _criteria(self, curves: np.ndarray, smooth: Smooth) -> np.ndarray:
        """Least criterion of the polynomials and of the simulated smooth curve, for each curve."""
        count = curves.shape[1]
        curves = curves - curves.mean(1, keepdims=True)
        parts = np.cumsum((curves @ self.polynomials) ** 2, axis=1)[:, 1:]
        shape = smooth.values - smooth.values.mean()
        along = (curves @ shape) ** 2 / max(float(shape @ shape), np.finfo(float).tiny)
        parts = np.column_stack([parts, along])
        numbers = np.array([*range(2, DEGREES + 2), smooth.numbers])
        residual_squares = np.maximum(np.sum(curves**2, axis=1, keepdims=True) - parts, 0) / count
        return np.min(count * np.log(residual_squares + self.floor**2) + numbers * math.log(count), axis=1)


def _lags(bases: np.ndarray, curves: np.ndarray) -> np.ndarray:
    """Correlation of neighbouring residuals of the best basis, for each curve."""
    curves = curves - curves.mean(1, keepdims=True)
    best = np.argmax(np.sum((curves @ bases) ** 2, axis=2), axis=0)
    residuals = np.stack([v - bases[i] @ (v @ bases[i]) for v, i in zip(curves, best, strict=True)])
    square = np.sum(residuals**2, axis=1)
    return np.sum(residuals[:, 1:] * residuals[:, :-1], axis=1) / np.where(square > 0, square, 1)


# Falls from one level to another in (t / tau)^b, and the largest b for which 10 to 90 per cent take a log ratio.
_FALLS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[float], float]]] = {
    "a power law": (lambda s: 1 / (1 + s), lambda ratio: 2 * math.log(9) / ratio),
    "an exponential": (lambda s: np.exp(-s), lambda ratio: math.log(math.log(10) / -math.log(0.9)) / ratio),
}


def _fall(t: np.ndarray, v: np.ndarray, shape: Callable[[np.ndarray], np.ndarray], steepest: float) -> np.ndarray:
    """Residuals of the best c + a shape((t / tau)^b), b <= ``steepest`` if tau is within the curve."""
    begin, end = math.log(t[0]), math.log(t[-1])

    def residuals(at: Sequence[float]) -> np.ndarray:
        log_tau, b = at
        if begin < log_tau < end:
            b = min(b, steepest)
        profile = shape(np.exp(np.clip(b * (np.log(t) - log_tau), -50, 50)))
        profile = profile - profile.mean()
        size = float(profile @ profile)
        return v - v.mean() - (profile @ v / size * profile if size > 0 else 0)

    grid = [
        (begin + share * (end - begin), b)
        for share in np.linspace(-1, 1, 17)
        for b in (steepest, steepest / 2, steepest / 5)
    ]
    costs = [float(np.sum(residuals(at) ** 2)) for at in grid]
    solution: Any = minimize(
        lambda at: math.log(max(float(np.sum(residuals((at[0], math.exp(at[1]))) ** 2)), np.finfo(float).tiny)),
        [grid[int(np.argmin(costs))][0], math.log(grid[int(np.argmin(costs))][1])],
        method="Nelder-Mead",
        options={"xatol": 1e-4, "fatol": 1e-4},
    )
    return residuals((solution.x[0], math.exp(solution.x[1])))
