from decimal import Decimal, localcontext

import numpy as np
import pytest

from icllab.theory.wishart import resolvent, stieltjes, stieltjes_derivative, traces


def exact(q, kappa):
    """M, M' and the five traces from the textbook formulas, in 80 digits: cancellation costs nothing there."""
    with localcontext() as context:
        context.prec = 80
        q, r = Decimal(q), 1 / Decimal(kappa)
        b = q + 1 - r
        m = 2 / (b + (b * b + 4 * q * r).sqrt())
        slope = -(r * m * m + m) / (2 * q * r * m + b)
        return m, slope, 1 - q * m, q * m, 1 - 2 * q * m - q * q * slope, q * m + q * q * slope, -q * q * slope


def relative_error(got, wanted):
    with localcontext() as context:
        context.prec = 80
        return float(max(abs(Decimal(float(g)) / w - 1) for g, w in zip(got, wanted, strict=True)))


def points(n, rng):
    """q in [1e-14, 1e14], kappa in [1e-3, 1e3]; half of the kappa are within 1e-15 .. 0.1 of 1."""
    q, kappa = 10 ** rng.uniform(-14, 14, n), 10 ** rng.uniform(-3, 3, n)
    near = 1 + rng.choice([-1, 1], n) * 10 ** rng.uniform(-15, -1, n)
    return q, np.where(rng.random(n) < 0.5, near, kappa)


def test_accurate_to_the_last_digits_against_eighty():
    q, kappa = points(600, np.random.default_rng(0))
    got = np.stack([stieltjes(q, kappa), stieltjes_derivative(q, kappa), *traces(q, kappa)])
    worst = max(relative_error(got[:, i], exact(q[i], kappa[i])) for i in range(q.size))
    assert worst < 3e-15


def test_the_textbook_form_in_float64_would_not_pass():
    q, kappa = 1e-10, 0.5
    b = q + 1 - 1 / kappa
    naive = 2 / (b + np.sqrt(b**2 + 4 * q / kappa))
    assert relative_error([naive], exact(q, kappa)[:1]) > 1e-8
    assert relative_error([stieltjes(q, kappa)], exact(q, kappa)[:1]) < 1e-15


def test_traces_of_a_partition_of_the_identity():
    q, kappa = points(1000, np.random.default_rng(1))
    t = traces(q, kappa)
    np.testing.assert_allclose(t.gain + t.shrinkage, 1, rtol=1e-14)
    np.testing.assert_allclose(t.gain_squared + t.cross, t.gain, rtol=1e-14)
    np.testing.assert_allclose(t.shrinkage_squared + t.cross, t.shrinkage, rtol=1e-14)


def test_the_derivative_is_the_slope():
    q, kappa = np.array([0.01, 0.3, 1.0, 20.0])[:, None], np.array([0.2, 1.0, 1.7, np.inf])
    errors = []
    for h in (1e-2, 5e-3):
        centred = (stieltjes(q * (1 + h), kappa) - stieltjes(q * (1 - h), kappa)) / (2 * q * h)
        errors.append(np.abs(centred - stieltjes_derivative(q, kappa)))
    order = np.log2(errors[0] / errors[1])
    np.testing.assert_allclose(order, 2, atol=0.01)  # centred differences: second order, to the right limit


@pytest.mark.parametrize("kappa", [0.4, 1.0, 2.5])
def test_the_resolvent_of_drawn_wishart_matrices(kappa):
    # Real matrices carry a bias of order 1/d; twice the mean at 2d minus the mean at d removes it.
    rng, q, draws, dim = np.random.default_rng(2), np.array([0.1, 1.0]), 40, 80

    def drawn(d):
        k = round(kappa * d)
        w = rng.standard_normal((draws, k, d))
        spectrum = np.linalg.eigvalsh(np.swapaxes(w, 1, 2) @ w / k)[..., None]
        return np.stack([(1 / (spectrum + q)).mean(1), -(1 / (spectrum + q) ** 2).mean(1)], axis=-1)

    small, large = drawn(dim), drawn(2 * dim)
    measured = 2 * large.mean(0) - small.mean(0)
    error = np.sqrt((4 * large.var(0, ddof=1) + small.var(0, ddof=1)) / draws)

    def z(kappa):
        predicted = np.stack([stieltjes(q, kappa), stieltjes_derivative(q, kappa)], axis=-1)
        assert np.all(error < 0.01 * np.abs(predicted))
        return np.abs(measured - predicted) / error

    assert np.all(z(kappa) < 4)
    assert np.any(z(1.1 * kappa) > 5)  # the spectrum of another pool is told apart


def test_at_zero_the_resolvent_is_finite_only_above_one_task_per_dimension():
    kappa = np.array([0.5, 1.0, 1 + 2**-52, 3.0, np.inf])
    np.testing.assert_allclose(stieltjes(0.0, kappa), [np.inf, np.inf, 2.0**52 + 1, 1.5, 1.0], rtol=1e-15)
    slope = [-np.inf, -np.inf, -((2.0**52 + 1) ** 3), -(1.5**3), -1.0]
    np.testing.assert_allclose(stieltjes_derivative(0, kappa), slope, rtol=1e-15)


def test_infinitely_many_tasks_make_the_identity():
    q = np.geomspace(1e-14, 1e14, 29)
    np.testing.assert_allclose(stieltjes(q, np.inf), 1 / (1 + q), rtol=1e-15)
    np.testing.assert_allclose(stieltjes_derivative(q, np.inf), -1 / (1 + q) ** 2, rtol=1e-15)
    for kappa in (1e4, 1e6):  # with a first correction of order 1/kappa
        departure = (stieltjes(q, kappa) * (1 + q) - 1) * kappa
        # The second correction is of order 1/kappa relative to it; rounding is multiplied by kappa.
        np.testing.assert_allclose(departure, 1 / (1 + q) ** 2, rtol=10 / kappa, atol=1e-15 * kappa)


def test_a_quotient_of_parameters_is_not_rounded_first():
    # kappa/tau within rounding of 1: the gap kappa - tau is exact, 1 - tau/kappa would not be.
    q, tau, kappa = np.float64(1e-12), np.float64(0.7), np.float64(0.7 * (1 + 3e-15))
    with localcontext() as context:
        context.prec = 80
        wanted = exact(q, Decimal(float(kappa)) / Decimal(float(tau)))[0]
    assert relative_error([resolvent(q, kappa, tau)], [wanted]) < 1e-15


def test_extreme_arguments_neither_overflow_nor_cancel():
    for q in (1e-300, 1e300):
        for kappa in (1e-300, 1.0, 1e300):
            assert relative_error([stieltjes(q, kappa)], _far(q, kappa)) < 1e-14


def _far(q, kappa):
    with localcontext() as context:
        context.prec = 1400
        q, r = Decimal(q), 1 / Decimal(kappa)
        b = q + 1 - r
        return [2 / (b + (b * b + 4 * q * r).sqrt())]


def test_shapes_and_types():
    assert type(stieltjes(1, 2)) is float
    assert type(stieltjes_derivative(1.0, np.inf)) is float
    assert stieltjes(np.ones((3, 1)), np.ones(4)).shape == (3, 4)
    assert stieltjes_derivative([], 1.0).shape == (0,)
