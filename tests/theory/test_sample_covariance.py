"""Sample covariances that are not isotropic: against eighty digits, drawn matrices, and what a covariance may be."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from icllab.theory import wishart
from icllab.theory.sample_covariance import in_eigenbasis, power_law, resolvent_trace, shares


def exact_ridge(c, nu, kappa):
    """t of the fixed point, by bisection in the context's precision, in a form that is not the one of the library."""
    c, low, high = [Decimal(float(x)) for x in c], nu, nu * Decimal(2)

    def too_small(t):
        return t - t * sum(x / (x + t) for x in c) / (len(c) * kappa) < nu

    while too_small(high):
        high *= 16
    while high / low - 1 > Decimal(10) ** -45:
        middle = (low * high).sqrt()
        low, high = (middle, high) if too_small(middle) else (low, middle)
    return c, low


def exact(c, nu, kappa):
    """The five means of the shares, by the textbook forms: F = (sC + nu)^-1 and its derivative, in 90 digits."""
    nu, kappa = Decimal(float(nu)), Decimal(float(kappa))
    c, t = exact_ridge(c, nu, kappa)
    step = nu * Decimal(10) ** -20  # the derivative by a difference: in 90 digits there is room for one
    after = exact_ridge(c, nu + step, kappa)[1]
    missed = sum(t / (x + t) for x in c) / len(c)
    slope = (sum(after / (x + after) for x in c) / len(c) - missed) / step
    missed_twice = missed - nu * slope
    return 1 - missed, missed, 1 - 2 * missed + missed_twice, missed - missed_twice, missed_twice


def spectra():
    rng = np.random.default_rng(5)
    yield power_law(7, 1.0)
    yield power_law(6, 3.0)
    yield np.array([0.0, 0.0, 1.0, 4.0])
    yield 10.0 ** rng.uniform(-6, 2, 5)


@pytest.mark.parametrize("c", list(spectra()), ids=lambda c: f"{c.size} eigenvalues")
def test_shares_are_right_to_a_part_in_1e13_over_many_decades(c):
    rng, worst = np.random.default_rng(0), 0.0
    with localcontext() as context:
        context.prec = 90
        for _ in range(12):
            nu, kappa = 10 ** rng.uniform(-9, 5), 10 ** rng.uniform(-1.5, 1.5)
            got = shares(c, np.array(nu), np.array(kappa))
            means = (got.gain, got.shrinkage, got.gain_squared, got.cross, got.shrinkage_squared)
            for mine, wanted in zip((float(part.mean()) for part in means), exact(c, nu, kappa), strict=True):
                worst = max(worst, abs(float((Decimal(mine) - wanted) / wanted)))
    assert worst < 1e-13


def test_at_the_identity_it_is_the_marchenko_pastur_law():
    rng = np.random.default_rng(1)
    q, kappa = 10 ** rng.uniform(-12, 8, 2000), 10 ** rng.uniform(-3, 3, 2000)
    kappa[:600] = 1 + rng.choice([-1, 1], 600) * 10 ** rng.uniform(-15, -1, 600)
    np.testing.assert_allclose(resolvent_trace(1.0, q, kappa), wishart.stieltjes(q, kappa), rtol=3e-15)
    got, wanted = shares(np.ones(1), q, kappa), wishart.traces(q, kappa)
    for name in wanted._fields:
        np.testing.assert_allclose(getattr(got, name)[:, 0], getattr(wanted, name), rtol=1e-14)


def test_a_scale_is_a_change_of_units():
    c, q, kappa = power_law(9, 0.7), np.array([1e-3, 0.4, 7.0]), np.array([0.3, 1.0, 5.0])
    np.testing.assert_allclose(resolvent_trace(4 * c, 4 * q, kappa), resolvent_trace(c, q, kappa) / 4, rtol=1e-14)
    np.testing.assert_allclose(resolvent_trace(c, q, np.inf), np.mean(1 / (c + q[:, None]), axis=1), rtol=1e-14)


@pytest.mark.parametrize("exponent", [0.4, 1.0])
@pytest.mark.parametrize("kappa", [0.5, 2.0])
def test_traces_of_drawn_matrices(exponent, kappa):
    """First and second traces, weighted against the order of the eigenvalues, within 4 standard errors of 1/d -> 0."""
    rng, nu, q, draws, measured = np.random.default_rng(2), 0.9, 0.7, 60, []

    def predicted(c, kappa):
        s = shares(c, np.array(nu), np.array(kappa))
        noise = c[::-1] * (s.cross + q / nu * s.shrinkage_squared) / nu
        return np.array(
            [np.mean(part) for part in (s.shrinkage, c[::-1] * s.shrinkage_squared, s.gain_squared, s.cross, noise)]
        )

    for d in (60, 120):
        c, rows = power_law(d, exponent), []
        for _ in range(draws):
            w = rng.standard_normal((round(kappa * d), d)) * np.sqrt(c)
            r = w.T @ w / len(w)
            g = np.linalg.inv(r + nu * np.eye(d))
            kept, square = r @ g, g @ g
            noise = (r + q * np.eye(d)) @ square
            along = (nu * g, c[::-1] * nu**2 * square, kept @ kept, kept @ g * nu, c[::-1] * noise)
            rows.append([np.trace(part) / d for part in along])
        measured.append(np.array(rows) / predicted(c, kappa))
    limit = 2 * measured[1].mean(0) - measured[0].mean(0)
    error = np.sqrt((4 * measured[1].var(0, ddof=1) + measured[0].var(0, ddof=1)) / draws)
    assert np.all(error < 0.01)
    assert np.all(np.abs(limit - 1) < 4 * error)
    # The spectrum of another pool, and that of an isotropic one, are told apart.
    other, isotropic = predicted(c, 1.3 * kappa), predicted(np.ones(d), kappa)
    for wrong in (other, isotropic):
        assert np.any(np.abs(limit - wrong / predicted(c, kappa)) > 5 * error)


def test_what_matters_of_two_covariances():
    rng = np.random.default_rng(3)
    basis, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    values, other = np.array([0.5, 1.0, 2.0, 4.0]), np.array([3.0, 0.0, 1.0, 2.0])
    c, moments = in_eigenbasis(basis * values @ basis.T, basis * other @ basis.T)
    np.testing.assert_allclose(c, values, rtol=1e-14)
    np.testing.assert_allclose(moments, other, atol=1e-14)
    twisted = basis * other @ basis.T + 0.7 * (np.outer(basis[:, 0], basis[:, 3]) + np.outer(basis[:, 3], basis[:, 0]))
    # (positive semidefinite still: 3 * 2 > 0.7^2)
    np.testing.assert_allclose(in_eigenbasis(basis * values @ basis.T, twisted)[1], other, atol=1e-14)
    np.testing.assert_array_equal(in_eigenbasis([2.0, 1.0], [5.0, 7.0]), [[1.0, 2.0], [7.0, 5.0]])
    np.testing.assert_array_equal(in_eigenbasis([2.0, 1.0], 3), [[1.0, 2.0], [3.0, 3.0]])
    np.testing.assert_array_equal(in_eigenbasis(2, [[1.0, 0.5], [0.5, 4.0]])[0], [2.0, 2.0])
    assert in_eigenbasis(2, [[1.0, 0.5], [0.5, 4.0]])[1].sum() == pytest.approx(5.0, rel=1e-15)
    singular = np.ones((3, 3))
    assert np.count_nonzero(in_eigenbasis(singular, 1.0)[0]) == 1


def test_power_laws_have_mean_one_and_a_limit_below_one():
    for p in (0.0, 0.4, 1.0, 1.5):
        c = power_law(50, p)
        np.testing.assert_allclose(c.mean(), 1, rtol=1e-14)
        np.testing.assert_allclose(c[0] / c[-1], 50.0**p, rtol=1e-13)
    np.testing.assert_array_equal(power_law(5, 0), np.ones(5))
    for p in (0.4, 0.7):  # the quantile function of (1 - p) U^-p
        # The mean of j^-p is its integral up to a relative correction of order d^(p-1), which is the tolerance.
        np.testing.assert_allclose(power_law(10**6, p)[250_000], (1 - p) * 0.25**-p, rtol=10.0 ** (6 * (p - 1)))
    assert power_law(10**6, 1.0)[250_000] < 0.5 * power_law(100, 1.0)[25]


def test_newton_never_overshoots():
    """The lower bound it starts from is one, and the root satisfies the equation it is the root of."""
    rng = np.random.default_rng(4)
    for c in spectra():
        nu, kappa = 10 ** rng.uniform(-8, 4, 300), 10 ** rng.uniform(-2, 2, 300)
        t = shares(c, nu, kappa).ridge
        assert np.all(t >= nu * (1 - 1e-15))
        left = t - t * np.mean(c / (c + t[:, None]), axis=1) / kappa
        np.testing.assert_allclose(left, nu, rtol=1e-12, atol=1e-15 * t.max())


def test_a_power_law_by_hand():
    """What simulations and closed forms are both given: i^(-p) over its mean, largest first."""
    np.testing.assert_allclose(power_law(3, 1.0), [18 / 11, 9 / 11, 6 / 11], rtol=1e-15)
    np.testing.assert_allclose(
        power_law(4, 0.5), np.array([12, 72**0.5, 48**0.5, 6]) / (12 + 72**0.5 + 48**0.5 + 6) * 4
    )
    np.testing.assert_array_equal(power_law(5, 0.0), 1)
