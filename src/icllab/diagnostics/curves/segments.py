r"""Piecewise linear fits of a curve: breaks of least residual sum of squares, and their criterion."""

import math
from typing import NamedTuple

import numpy as np

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
