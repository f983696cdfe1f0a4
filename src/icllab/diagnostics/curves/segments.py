r"""A curve cut into straight segments: the cuts of least residual sum of squares, and what they are worth."""

import math
from typing import NamedTuple

import numpy as np

PER_SEGMENT = 4  # records of a segment, at least
PER_BREAK = 3  # numbers that a break adds: its place, and a line's two


class Fit(NamedTuple):
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


class Segments:
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

    def fits(self, v: np.ndarray) -> list[Fit]:
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

    def _fit(self, v: np.ndarray, breaks: tuple[int, ...]) -> Fit:
        lines, fitted = [], np.empty_like(v)
        for a, b in zip((0, *breaks), (*breaks, len(v)), strict=True):
            slope, level = np.polyfit(self.x[a:b], v[a:b], 1)
            lines.append((float(level), float(slope)))
            fitted[a:b] = level + slope * self.x[a:b]
        return Fit(breaks, tuple(lines), fitted, v - fitted)


def bic(residuals: np.ndarray, numbers: int, floor: float) -> float:
    """The Bayesian information criterion of a fit of so many numbers."""
    count = len(residuals)
    return count * math.log(float(np.mean(residuals**2)) + floor**2) + numbers * math.log(count)
