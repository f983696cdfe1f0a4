"""Partition functions of products and sums against other routes: quadrature, convolution, draws."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

from icllab.diagnostics.singular.exact_curves import (
    LOG_T,
    Sum,
    log_partition,
    log_partition_of_quadratic,
    sums,
)


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


@pytest.mark.parametrize("components", [1, 2, 3, 6, 20])
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
