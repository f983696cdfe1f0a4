"""Moments against known polynomials, a symmetry and drawn matrices; rules against the moments they were made of."""

from fractions import Fraction

import numpy as np
import pytest

from icllab.theory import wishart
from icllab.theory.finite_wishart import gauss_rule, moments, recurrence, sample_rule


@pytest.mark.parametrize(("d", "n"), [(1, 1), (3, 7), (7, 3), (5, 20), (10, 10)])
def test_the_first_moments_are_the_known_polynomials(d, n):
    known = [1, 1, Fraction(n + d + 1, n), Fraction(n**2 + 3 * n * d + d**2 + 3 * n + 3 * d + 4, n**2)]
    assert list(moments(d, n, 3)) == known


def test_of_one_dimension_they_are_those_of_a_chi_square():
    wanted = [Fraction(np.prod([6 + 2 * j for j in range(k)], dtype=object), 6**k) for k in range(8)]
    assert list(moments(1, 6, 7)) == wanted


def test_rows_and_columns_may_change_places():
    """tr (X X')^k = tr (X' X)^k: d n^k m_k is symmetric in d and n."""
    for k, (a, b) in enumerate(zip(moments(4, 9, 12)[1:], moments(9, 4, 12)[1:], strict=True), start=1):
        assert 4 * 9**k * a == 9 * 4**k * b


@pytest.mark.parametrize(("d", "n"), [(4, 6), (5, 3)])
def test_drawn_matrices_have_these_moments(d, n):
    x = np.random.default_rng(0).normal(size=(20000, d, n))
    values = np.linalg.eigvalsh(x @ x.transpose(0, 2, 1) / n)
    for k in range(1, 5):
        sample = (values**k).mean(axis=1)
        error = sample.std() / len(sample) ** 0.5
        assert error < 0.03 * sample.mean()
        assert abs(sample.mean() - float(moments(d, n, k)[k])) < 4 * error


def test_many_dimensions_are_marchenko_pastur():
    """The trace of the resolvent by quadrature, at d = 100, against its limit: the difference is O(1/d)."""
    off = []
    for d in (20, 40):
        points, weights = gauss_rule(d, 2 * d, 12)
        off.append(weights @ (1 / (points + 1.0)) - wishart.stieltjes(1.0, 2.0))
    assert abs(off[0]) < 0.02
    assert 1.8 < off[0] / off[1] < 2.2


@pytest.mark.parametrize(("d", "n", "nodes"), [(5, 20, 14), (3, 2, 6), (10, 20, 25)])
@pytest.mark.parametrize("tilt", [0, 1])
def test_a_rule_has_the_moments_it_was_made_of(d, n, nodes, tilt):
    points, weights = gauss_rule(d, n, nodes, tilt)
    assert np.all(points > 0)
    assert np.all(weights > 0)
    exact = moments(d, n, 2 * nodes - 1 + tilt)[tilt:]
    for k in range(2 * nodes):
        np.testing.assert_allclose(weights @ points**k, float(exact[k]), rtol=1e-13)


def test_the_recurrence_is_that_of_known_polynomials():
    """Laguerre: moments k!, alpha_k = 2k + 1, beta_k = k^2, to the last digit."""
    factorials = [Fraction(1)]
    for k in range(1, 40):
        factorials.append(factorials[-1] * k)
    mass, alpha, beta = recurrence(tuple(factorials))
    assert mass == 1
    np.testing.assert_array_equal(alpha, 2 * np.arange(20) + 1)
    np.testing.assert_array_equal(beta, np.arange(1, 20) ** 2)


def test_the_rule_of_a_sample_has_its_moments():
    values = np.random.default_rng(1).gamma(3.0, size=400)
    points, weights = sample_rule(values, 9)
    for k in range(18):
        np.testing.assert_allclose(weights @ points**k, np.mean(values**k), rtol=1e-11)
