"""Limits of curves that are known: from exact free energies with noise, and none where there is none."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

from icllab.diagnostics.singular.extrapolation import (
    LOG_T,
    Sum,
    extrapolated,
    log_partition,
    log_partition_of_quadratic,
    sums,
)
from icllab.diagnostics.singular.minimum_geometry import SURE, Geometry

STEP, LOW, HIGH = 0.02, -200.0, 30.0
CROSSINGS = [(1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (1, 1, 1), (1, 1, 2), (1, 2, 3)]


def log_t(n=1e6):
    last = math.log(n / math.log(n))
    return np.linspace(last - 2.5 * math.log(10), last, 13)


def free_energy(powers, x):
    r"""-log E[exp(-t prod w_i^{2k_i})] of standard normal w, from the density of the logarithm of the product."""
    y = LOW + STEP * np.arange(round((HIGH - LOW) / STEP))
    density = None
    for k in powers:
        w = np.exp(np.clip(y / (2 * k), -300, 5))
        one = STEP * np.sqrt(2 / np.pi) * np.exp(-(w**2) / 2) * w / (2 * k)
        if density is None:
            density = one
        else:  # index i stands for LOW + i STEP: of two, for twice LOW
            both = np.fft.irfft(np.fft.rfft(density, 2 * len(y)) * np.fft.rfft(one, 2 * len(y)))
            first = round(-LOW / STEP)
            density = both[first : first + len(y)]
    return -np.log(np.exp(-np.exp(np.minimum(y + x[:, None], 6))) @ density)


def quadratic(h, x):
    return np.log1p(np.exp(x)[:, None] * np.asarray(h)).sum(1) / 2


def limit_of(energy, x, noise, seed, repeats=16, **known):
    """The limit of repeats of the slopes between points, each interval with noise of its own."""
    slopes = np.diff(energy) / np.diff(x)
    slopes = slopes + noise * math.sqrt(repeats) * np.random.default_rng(seed).normal(size=(repeats, len(slopes)))
    return extrapolated(np.stack([x[:-1], x[1:]], axis=1), slopes, **known)


def holds(limit, value):
    return limit.interval[0] - 1e-9 <= value <= limit.interval[1] + 1e-9


SIZES = [pytest.param(1e3, marks=pytest.mark.slow), 1e4, pytest.param(1e6, marks=pytest.mark.slow)]


@pytest.mark.parametrize("n", SIZES)
def test_intervals_hold_the_coefficients_of_crossings(n):
    """Most of whose ends are far below; the order may be known or not, and there may be parameters besides."""
    x, held, below, apart = log_t(n), [], [], []
    for seed, powers in enumerate(CROSSINGS):
        energy, value = free_energy(powers, x), 1 / (2 * max(powers))
        known = Geometry(np.zeros(0), 1 - SURE, 2 * sum(powers) if seed % 2 else None)
        limit = limit_of(energy, x, 0.006, seed, parameters=len(powers) + seed % 3, hypotheses=[known])
        held.append(holds(limit, value))
        below.append(limit.level + 3 * limit.level_error < value)
        apart.append((limit.value - value) / limit.error)
        assert limit.misfit > 1e-3
    assert np.mean(held) >= 0.95
    assert np.mean(below) > 0.7
    assert np.sqrt(np.mean(np.square(apart))) < 1.5


@pytest.mark.parametrize("n", [1e3, 1e4, 1e6])
def test_a_quadratic_has_its_rank(n):
    """Curvatures over two and a half decades, and four flat directions: lambda is 3, and its interval is narrow."""
    h, x = np.array([20, 6, 3, 1, 0.3, 0.08]), log_t(n)
    for seed in range(2):
        limit = limit_of(quadratic(h, x), x, 0.02, seed, parameters=10, hypotheses=[Geometry(h, SURE)])
        assert holds(limit, 3)
        assert limit.interval[0] == 3  # no less than half the rank
        assert limit.interval[1] < 3.15
        assert limit.regular > 0.9


@pytest.mark.parametrize(("powers", "m"), [((1, 1), 2), ((1, 1, 1), 3)])
def test_a_multiplicity_beside_squares(powers, m):
    """Two squares and a crossing: 3/2, and the multiplicity is told at n = 1e6, where errors are small."""
    h, x = np.array([1.0, 0.5]), log_t()
    energy = quadratic(h, x) + free_energy(powers, x)
    limit = limit_of(energy, x, 0.002, 0, parameters=5, hypotheses=[Geometry(h, 1 - SURE, 2 * len(powers))])
    assert holds(limit, 1.5)
    assert np.ptp(limit.interval) < 0.1
    assert np.argmax(limit.multiplicities) == m - 1
    assert limit.multiplicities.sum() == pytest.approx(1)
    assert limit.left == pytest.approx(1.5 - limit.level, abs=0.02)
    end = np.diff(free_energy(powers, x[-1] + np.array([-0.05, 0.05])))[0] / 0.1
    assert limit.level == pytest.approx(end + 1, abs=4 * limit.level_error)


def test_curvatures_that_change_along_a_flat_direction():
    """K = (1 + v)^2 (u_1^2 + 2 u_2^2) / 2 near v = 0: at high temperatures the curve is not that of the Hessian."""
    v, h = np.linspace(-0.9, 4, 2000), np.array([1.0, 2.0])
    weight = np.exp(-(v**2) / 2) / np.exp(-(v**2) / 2).sum()
    for n in (1e3, 1e6):
        x = log_t(n)
        z = ((1 + np.exp(x)[:, None, None] * h * (1 + v[:, None]) ** 2) ** -0.5).prod(2) @ weight
        limit = limit_of(-np.log(z), x, 0.01, 1, parameters=3, hypotheses=[Geometry(h, SURE)])
        assert holds(limit, 1)
        assert np.ptp(limit.interval) < 0.1


def test_a_curve_that_is_another_at_high_temperatures_is_fitted_from_later_on():
    """A step in the first quarter, of a part of the space that is left: the rest has lambda."""
    h, x = np.ones(4), log_t(1e4)
    energy = quadratic(h, x) - 0.8 * np.maximum(0, x[3] - x)
    limit = limit_of(energy, x, 0.01, 2, parameters=6, hypotheses=[Geometry(h, SURE)])
    assert holds(limit, 2)
    assert limit.misfit > 0.01


def test_slopes_at_points():
    """Short intervals around six points, of eight repeats, as of chains."""
    points = np.linspace(0, 5.5, 6)
    intervals = points[:, None] + np.array([-0.05, 0.05])
    slopes = np.diff(quadratic([3.0, 1.0], intervals.ravel()).reshape(-1, 2), axis=1)[:, 0] / 0.1
    slopes = slopes + 0.02 * np.random.default_rng(0).normal(size=(8, 6))
    limit = extrapolated(intervals, slopes, parameters=4, hypotheses=[Geometry(np.array([3.0, 1.0]), SURE)])
    assert holds(limit, 1)
    assert limit.level == pytest.approx(slopes[:, -1].mean(), abs=0.03)


def test_alternatives_that_the_curve_does_not_tell_apart_widen_the_interval():
    """A curvature that is not resolved: one half more, or not."""
    x, steep, small = log_t(1e3), np.ones(2), np.array([1.0, 1.0, 1e-7])
    both = [Geometry(small), Geometry(steep)]
    limit = limit_of(quadratic(small, x), x, 0.01, 3, parameters=3, hypotheses=both)
    assert limit.interval[0] <= 1
    assert limit.interval[1] == 1.5
    assert limit.error > 0.1


@pytest.mark.parametrize("seed", range(3, 11))
def test_no_more_than_half_the_parameters(seed):
    """To the bit, although the sum of the weights depends on rounding, which differs between versions."""
    x = log_t()
    limit = limit_of(quadratic(np.ones(3), x), x, 0.02, seed, parameters=3, hypotheses=[Geometry(np.ones(3))])
    assert limit.value == limit.interval[1] == 1.5


def test_a_curve_that_no_coefficient_has_is_told():
    """A slope that falls by a tenth over every decade, and one that goes to and fro."""
    x = log_t()
    for energy in (2 * x - 0.05 * (x - x[0]) ** 2, x + 0.2 * np.cos(2 * x)):
        assert limit_of(energy, x, 0.003, 4, parameters=6).misfit < 1e-3


def test_errors_are_those_of_repeats():
    """Twice the noise is twice the error of the level; its error is the scatter over seeds."""
    x, h = log_t(), np.ones(4)
    known = {"parameters": 8, "hypotheses": [Geometry(h, SURE)]}
    one, two = (limit_of(quadratic(h, x), x, noise, 5, **known) for noise in (0.01, 0.02))
    assert two.level_error == pytest.approx(2 * one.level_error, rel=0.1)
    assert two.interval[1] - 2 == pytest.approx(2 * (one.interval[1] - 2), rel=0.1)
    # The end of a line through six points with equal errors of 0.01: 0.01 sqrt(1/6 + 9/17.5).
    known["parameters"] = 4  # few curves to fit: the error is of the slopes alone
    errors = [limit_of(quadratic(h, x), x, 0.01, seed, **known).level_error for seed in range(100)]
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(0.01 * math.sqrt(1 / 6 + 9 / 17.5), rel=0.05)


@pytest.mark.parametrize("a", [0.5, 1.0, 3.5, 7.0])
def test_one_factor_of_power_one(a):
    """K = G of Gamma(a): (1 + t)^(-a)."""
    np.testing.assert_allclose(log_partition(((a, 1),)), -a * np.log1p(np.exp(LOG_T)), atol=1e-6)


@pytest.mark.parametrize(("a", "k"), [(0.5, 2), (0.5, 3), (1.0, 2), (1.5, 3)])
def test_one_factor_by_quadrature(a, k):
    for x in (0.0, 4.0, 12.0):
        value = quad(lambda y, x=x: math.exp(a * y - math.exp(x + k * y) - math.exp(y)), -60, 6, limit=500)[0]
        expected = math.log(value) - math.lgamma(a)
        assert np.interp(x, LOG_T, log_partition(((a, k),))) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("factors", [((0.5, 1), (0.5, 1)), ((0.5, 1), (0.5, 2)), ((0.5, 1), (1.0, 1), (0.5, 3))])
def test_a_product_by_draws(factors):
    """Half a million draws, at t where they suffice."""
    rng = np.random.default_rng(0)
    product = np.prod([rng.gamma(a, size=500_000) ** k for a, k in factors], axis=0)
    for x in (-2.0, 1.0, 4.0):
        values = np.exp(-math.exp(x) * product)
        error = values.std() / values.mean() / math.sqrt(len(values))
        assert np.interp(x, LOG_T, log_partition(factors)) == pytest.approx(
            math.log(values.mean()), abs=5 * error + 1e-4
        )


@pytest.mark.parametrize(
    ("products", "value", "m", "order"),
    [
        ((((0.5, 2), (0.5, 2)),), 0.25, 2, 8),
        ((((0.5, 1), (0.5, 1), (0.5, 2)),), 0.25, 1, 8),
        ((((0.5, 1),) * 3,), 0.5, 3, 6),
        ((((0.5, 1),) * 2, ((0.5, 1),) * 2), 1.0, 3, 4),
        ((((1.0, 1), (1.5, 1)),), 1.0, 1, 4),
        ((((0.5, 2),), ((0.5, 3),)), 5 / 12, 1, 4),
    ],
)
def test_the_coefficient_is_that_of_the_curve(products, value, m, order):
    """Far out: lambda - (m - 1) / (x + z) between x and 2 x says both."""
    made = Sum(products, (0.0,) * len(products), 0.0)
    assert made.value == pytest.approx(value)
    assert made.multiplicity == m
    assert made.order == order
    assert made.components == round(sum(2 * a for factors in products for a, _ in factors))
    ends = np.array([16.0, 32.0])
    width = 0.4
    slopes = -np.diff(made.log_partition(ends[:, None] + np.array([-width, width]) / 2, 2.0), axis=1)[:, 0] / width
    if m == 1:
        assert slopes[1] == pytest.approx(value, abs=0.01)
    else:
        inverse = (m - 1) / (value - slopes)  # x + z
        assert inverse[1] - inverse[0] == pytest.approx(16, rel=0.05)


def test_a_scale_of_the_prior_and_of_the_loss():
    """Of K = w1^2 w2^4 with weights of the precision gamma: t gamma^-3 counts; coefficients add to log t."""
    factors = ((0.5, 1), (0.5, 2))
    x = np.linspace(0, 10, 5)
    plain = Sum((factors,), (0.0,), 0.0)
    np.testing.assert_allclose(plain.log_partition(x, 2.0), np.interp(x, LOG_T, log_partition(factors)), atol=1e-12)
    np.testing.assert_allclose(plain.log_partition(x, 4.0), plain.log_partition(x - 3 * math.log(2), 2.0), atol=1e-12)
    np.testing.assert_allclose(
        Sum((factors,), (1.5,), 0.0).log_partition(x, 4.0), plain.log_partition(x + 1.5, 4.0), atol=1e-12
    )
    both = Sum((factors, factors), (0.0, 1.5), 0.0).log_partition(x, 4.0)
    np.testing.assert_allclose(both, plain.log_partition(x, 4.0) + plain.log_partition(x + 1.5, 4.0), atol=1e-12)


def test_a_quadratic():
    h, x = np.array([2.0, 0.5, 0.1]), np.array([0.0, 3.0])
    expected = [-0.5 * sum(math.log1p(math.exp(t) * a / 4) for a in h) for t in x]
    np.testing.assert_allclose(log_partition_of_quadratic(x, h, 4.0), expected, rtol=1e-12)
    assert log_partition_of_quadratic(x, h[:0], 4.0).tolist() == [0, 0]


@pytest.mark.parametrize("components", [1, 2, 3, 6, pytest.param(20, marks=pytest.mark.slow)])
def test_sums_have_room_and_are_of_order_four(components):
    """No quadratic part, at most a quarter of the variables, each once."""
    rows = sums(components)
    assert rows
    assert len({(row.products, row.scales) for row in rows}) == len(rows)
    for row in rows:
        assert row.components <= components
        assert row.order >= 4
        assert row.value <= components / 4
        assert row.multiplicity <= components
    assert sum(row.value == max(r.value for r in rows) for row in rows) >= 1
