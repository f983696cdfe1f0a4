"""Cuts of a curve into straight segments, against all the cuts there are."""

import itertools

import numpy as np
import pytest

from icllab.diagnostics.curves.segments import PER_SEGMENT, Segments, bic


def residual_sum(x, v, breaks):
    ends = (0, *breaks, len(v))
    return sum(np.polyfit(x[a:b], v[a:b], 1, full=True)[1].sum() for a, b in itertools.pairwise(ends))


def all_cuts(count, breaks):
    for part in itertools.combinations(range(1, count), breaks):
        if min(np.diff((0, *part, count))) >= PER_SEGMENT:
            yield part


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_cuts_are_the_best_of_all(seed):
    """Of 16 records with up to three breaks: 286 cuts at most, each fitted by itself."""
    rng = np.random.default_rng(seed)
    x, v = np.sort(rng.uniform(0, 5, 16)), rng.normal(size=16) + 1e3
    left, result = Segments(x, 3, 0.0).cuts(v)
    for count in range(4):
        best = min(all_cuts(16, count), key=lambda part: residual_sum(x, v, part))
        assert result[count] == best
        assert left[count] == pytest.approx(residual_sum(x, v, best), rel=1e-6)


def test_a_fit_is_its_lines_and_a_jump_is_between_them():
    """Two lines without noise: levels 1 and 5, slopes 2 and -1, from the ninth of 20 records on."""
    x = np.linspace(0, 3, 20)
    v = np.where(np.arange(20) < 8, 1 + 2 * x, 5 - x)
    segments = Segments(x, 2, 1e-3)
    fit = segments.fits(v)[1]
    assert fit.breaks == (8,) == segments.breaks(v, 1)
    np.testing.assert_allclose(fit.lines, [(1, 2), (5, -1)], rtol=1e-9)
    np.testing.assert_allclose(fit.values, v, rtol=1e-12)
    middle = (x[7] + x[8]) / 2
    assert fit.jump(x, 0) == pytest.approx(5 - middle - 1 - 2 * middle, rel=1e-9)


def test_the_criterion_is_that_of_what_is_left():
    x, v = np.linspace(0, 1, 20), np.random.default_rng(0).normal(size=20)
    segments = Segments(x, 2, 0.1)
    result = [bic(fit.residuals, 3 * k + 2, 0.1) for k, fit in enumerate(segments.fits(v))]
    np.testing.assert_allclose([segments.criterion(v, k) for k in range(3)], result, rtol=1e-9)
    assert segments.gain(v) == pytest.approx(result[0] - min(result), abs=1e-9)
    mean = np.mean(segments.fits(v)[0].residuals ** 2)
    assert result[0] == pytest.approx(20 * np.log(mean + 0.01) + 2 * np.log(20), rel=1e-12)
