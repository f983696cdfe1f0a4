r"""Smooth curves that rival a curve with breaks, and how often their noise alone would be taken for breaks."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.signal import lfilter

from icllab.diagnostics.curves.segments import PER_SEGMENT, Segments, bic

DEGREES = 6  # of the polynomials in log t that count as smooth
CHANCE = 0.01  # of shuffled or of smooth curves that gain as much from breaks, up to which there are any
RHOS = (0.0, 0.25, 0.5, 0.7, 0.85, 0.95)  # correlations of the noise of neighbouring records that are tried
AGAIN = 8  # times as many smooth curves where few of the first gain as much
CALIBRATION = 100  # curves of each


class Smooth(NamedTuple):
    """A smooth curve at its best, its criterion, how many numbers it has, and what it leaves."""

    name: str
    bic: float
    numbers: int
    fitted: np.ndarray
    residuals: np.ndarray


class Rivals:
    """Curves without a break."""

    def __init__(self, x: np.ndarray, t: np.ndarray, widest: float, floor: float):
        self.t, self.widest, self.floor = t, widest, floor
        u = 2 * (x - x[0]) / (x[-1] - x[0]) - 1
        self.polynomials = np.linalg.qr(np.polynomial.chebyshev.chebvander(u, DEGREES))[0]

    def best(self, v: np.ndarray) -> Smooth:
        """The smooth curve with the least criterion, each at its best."""
        left = {}
        for degree in range(1, DEGREES + 1):
            basis = self.polynomials[:, : degree + 1]
            left[f"a polynomial of degree {degree}"] = degree + 1, v - basis @ (basis.T @ v)
        if self.t[0] > 0:
            for name, (shape, most) in _FALLS.items():
                left[name] = 4, _fall(self.t, v, shape, most(math.log(self.widest)))
        found = [Smooth(name, bic(e, k, self.floor), k, v - e, e) for name, (k, e) in left.items()]
        return min(found, key=lambda one: one.bic)

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

    def _again(self, smooth: Smooth, rho: float, rng: np.random.Generator, count: int) -> np.ndarray:
        """The smooth curve with other noise, of neighbours so correlated, that leaves as much on average."""
        basis = self.polynomials[:, : smooth.numbers]
        size = len(smooth.fitted)
        law = rho ** np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
        share = 1 - float(np.sum(basis * (law @ basis))) / size
        scale = math.sqrt(float(np.mean(smooth.residuals**2)) / share)
        noise = rng.normal(size=(count, size))
        noise[:, 1:] *= math.sqrt(1 - rho**2)
        return smooth.fitted + scale * np.asarray(lfilter([1.0], [1.0, -rho], noise, axis=1))

    def _criteria(self, curves: np.ndarray, smooth: Smooth) -> np.ndarray:
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
