"""Where the closed forms end: no ridge, the pole at tau = 1, and infinite tau, kappa and alpha.

Each limit is tested with its rate: the number of data it takes to halve the distance is part of the formula.
"""

import numpy as np
import pytest

from icllab.theory.linear_attention import effective_ridge, icl_error, idg_error, large_context_limit
from icllab.theory.wishart import stieltjes

POINTS = [(2.0, 0.5, 0.1), (0.4, 3.0, 1.0), (25.0, 1.0, 0.01)]  # alpha, kappa, rho


def at(tau, alpha, kappa, rho, ridge=0.0):
    return {"tau": tau, "alpha": alpha, "kappa": kappa, "rho": rho, "ridge": ridge}


def residue(alpha, kappa, rho):
    """The coefficients of 1/|tau - 1| in e_IDG and e_ICL, the same on both sides."""
    q = (1 + rho) / alpha
    m = stieltjes(q, kappa)
    strength = rho + q * (1 - q * m)
    return np.array([strength, (1 + q) * m * strength])


@pytest.mark.parametrize("tau", [0.3, 0.8, 1.5, 7.0])
@pytest.mark.parametrize("point", POINTS, ids=str)
def test_away_from_the_pole_the_ridge_leaves_in_first_order(tau, point):
    for function in (effective_ridge, idg_error, icl_error):
        at_zero = function(**at(tau, *point))
        change = [function(**at(tau, *point, ridge)) - at_zero for ridge in (1e-4, 5e-5)]
        assert 1.9 < change[0] / change[1] < 2.1
        np.testing.assert_allclose(function(**at(tau, *point, 1e-14)), at_zero, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_at_the_pole_the_ridge_leaves_like_its_root(point):
    alpha, kappa, rho = point
    m = stieltjes((1 + rho) / alpha, kappa)
    ridge = 1e-14
    got = np.array([idg_error(**at(1.0, *point, ridge)), icl_error(**at(1.0, *point, ridge))])
    np.testing.assert_allclose(np.sqrt(ridge) * got, residue(*point) / (2 * np.sqrt(m)), rtol=1e-5)
    np.testing.assert_allclose(effective_ridge(**at(1.0, *point, ridge)), np.sqrt(ridge / m), rtol=1e-5)


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_the_pole(point):
    assert idg_error(**at(1.0, *point)) == np.inf
    assert icl_error(**at(1, *point)) == np.inf
    assert icl_error(**at(1.0, point[0], point[1], 0.0)) == np.inf  # without noise too
    assert effective_ridge(**at(1.0, *point)) == 0
    for sign in (-1, 1):
        scaled = []
        for distance in (2.0**-20, 2.0**-21, 2.0**-50):
            tau = 1 + sign * distance
            scaled.append(distance * np.array([idg_error(**at(tau, *point)), icl_error(**at(tau, *point))]))
        np.testing.assert_allclose(scaled[2], residue(*point), rtol=1e-11)
        order = np.log2((scaled[0] - scaled[2]) / (scaled[1] - scaled[2]))
        np.testing.assert_allclose(order, 1, atol=0.01)


@pytest.mark.parametrize("ridge", [0.0, 0.1])
@pytest.mark.parametrize("point", POINTS, ids=str)
def test_infinitely_many_contexts(point, ridge):
    for function in (idg_error, icl_error):
        limit = function(**at(np.inf, *point, ridge))
        distance = [function(**at(tau, *point, ridge)) - limit for tau in (1e4, 2e4)]
        assert np.isfinite(limit)
        np.testing.assert_allclose(distance[0] / distance[1], 2, rtol=1e-3)
    assert effective_ridge(**at(np.inf, *point, ridge)) == ridge
    alpha, kappa, rho = point
    q = (1 + rho) / alpha
    best = rho + q * (1 - q * stieltjes(q, kappa))  # the best linear map knows R_k
    np.testing.assert_allclose(idg_error(**at(np.inf, *point)), best, rtol=1e-14)


@pytest.mark.parametrize("tau", [0.3, 1.5, np.inf])
@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_a_fresh_task_in_every_context(tau, ridge):
    point = at(tau, np.array([0.4, 2.0, 25.0]), np.inf, np.array([1.0, 0.1, 0.0]), ridge)
    np.testing.assert_allclose(icl_error(**point), idg_error(**point), rtol=1e-14)
    for function in (icl_error, idg_error):
        near, far = (function(**{**point, "kappa": kappa}) / function(**point) - 1 for kappa in (2e4, 1e4))
        np.testing.assert_allclose(far / near, 2, rtol=0.01)
    assert np.all(icl_error(**{**point, "kappa": 1e4}) > idg_error(**{**point, "kappa": 1e4}))


def test_no_data_leaves_the_zero_predictor():
    for alpha, kappa, rho in POINTS:
        for function in (icl_error, idg_error):
            np.testing.assert_allclose(function(**at(1e-12, alpha, kappa, rho)), 1 + rho, rtol=1e-10)


def test_with_few_contexts_and_strong_noise_a_fresh_task_can_be_the_easier_one():
    # To first order in tau the gap is tau (2 - (1 + rho) / (1 + q)) / (kappa (1 + q)): of either sign.
    alpha, kappa, rho, tau = np.array([1.0, 50.0, 50.0]), 0.4, np.array([3.0, 3.0, 0.5]), 1e-5
    q = (1 + rho) / alpha
    gap = (icl_error(**at(tau, alpha, kappa, rho)) - idg_error(**at(tau, alpha, kappa, rho))) / tau
    np.testing.assert_allclose(gap, (2 - (1 + rho) / (1 + q)) / (kappa * (1 + q)), rtol=1e-3)
    np.testing.assert_array_equal(np.sign(gap), [1, -1, 1])


@pytest.mark.parametrize("kappa", [0.3, 0.8, 2.0, np.inf])
@pytest.mark.parametrize("ratio", [0.0, 0.2, 5.0])
def test_long_contexts_and_many_of_them(kappa, ratio):
    rho = 0.25
    limit = large_context_limit(kappa=kappa, rho=rho, alpha_over_tau=ratio)

    def distance(alpha):
        return icl_error(**at(alpha / ratio if ratio else np.inf, alpha, kappa, rho)) - limit

    assert abs(distance(1e8)) < 1e-5
    np.testing.assert_allclose(distance(1e5) / distance(2e5), 2, rtol=0.01)
    if kappa < 1 and ratio:
        misprinted = large_context_limit(kappa=kappa, rho=rho, alpha_over_tau=1 / ratio)  # the slides' tau / alpha
        assert abs(misprinted - limit) > 0.1


def test_long_contexts_at_one_task_per_dimension():
    rho, ratio, alpha = 0.25, 3.0, np.array([1e8, 1e10])
    excess = icl_error(**at(alpha / ratio, alpha, 1.0, rho)) - rho
    assert large_context_limit(kappa=1, rho=rho, alpha_over_tau=ratio) == rho
    root = np.sqrt((1 + rho) / alpha)
    np.testing.assert_allclose(excess / root, 0.5 + rho / (1 + rho) * ratio, rtol=1e-3)


def test_long_contexts_at_a_fixed_number_of_them():
    rho, tau, alpha = 0.25, 3.0, 1e9
    for kappa in (1.5, 4.0):
        limit = rho * (1 + kappa / ((kappa - 1) * (tau - 1)))
        np.testing.assert_allclose(icl_error(**at(tau, alpha, kappa, rho)), limit, rtol=1e-6)
    for kappa in (0.2, 0.7):
        slope = (1 - kappa) * rho / ((1 + rho) * (tau - 1))
        np.testing.assert_allclose(icl_error(**at(tau, alpha, kappa, rho)) / alpha, slope, rtol=1e-6)


def test_long_contexts_open_a_second_peak_where_contexts_match_tasks():
    # At tau = kappa < 1 the pool itself is interpolated: e_IDG grows like rho sqrt(alpha) / 2, and only there.
    rho, alpha = 0.1, 1e10
    for kappa in (0.2, 0.5, 0.9):
        peak, beside = (idg_error(**at(tau, alpha, kappa, rho)) for tau in (kappa, 0.9 * kappa))
        np.testing.assert_allclose(peak, rho / 2 * np.sqrt(alpha / (1 + rho)), rtol=1e-3)
        assert beside < 2
