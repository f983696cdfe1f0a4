"""The closed forms against routes that share no code with them.

The independent route integrates over the Marchenko-Pastur law itself and finds the effective ridge by
its own root search; the exact one repeats the textbook formulas in 80 digits, where cancellation is free.
"""

import subprocess
import sys
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy.optimize import brentq

from icllab.core.errors import InputError
from icllab.theory.linear_attention import effective_ridge, icl_error, idg_error, large_context_limit, ridge_error
from icllab.theory.wishart import stieltjes, stieltjes_derivative


def at(tau, alpha, kappa, rho, ridge=0.0):
    return {"tau": tau, "alpha": alpha, "kappa": kappa, "rho": rho, "ridge": ridge}


# Integrals over the spectrum.


def law(kappa, nodes=4000):
    """Eigenvalues and weights of the Marchenko-Pastur law of R_k, with its atom at zero where k < d."""
    r = 1 / kappa
    angle = np.pi * (np.arange(nodes) + 0.5) / nodes  # midpoints: periodic, so exponentially accurate
    values = 1 + r + 2 * np.sqrt(r) * np.cos(angle)
    weights = 2 / nodes * np.sin(angle) ** 2 / values
    return np.append(values, 0.0), np.append(weights, max(0.0, 1 - kappa))


def by_quadrature(tau, alpha, kappa, rho, ridge):
    """xi, e_IDG, e_ICL from the integrals that define them."""
    s, weights = law(kappa)
    q = (1 + rho) / alpha

    def mean(values):
        return float(weights @ values)

    def excess(u):
        return tau - mean((s + q) / (s + q + np.exp(u))) - tau * ridge * np.exp(-u)

    xi = 0.0 if ridge == 0 and tau > 1 else np.exp(brentq(excess, -60, 60, xtol=1e-15, rtol=1e-15))
    nu = q + xi
    m, d, r2 = mean(1 / (s + nu)), mean(((s + q) / (s + nu)) ** 2), mean((s / (s + nu)) ** 2)
    idg = tau * (rho + nu - nu**2 * m - xi * r2) / (tau - d)
    shrunk, spread = mean(s / (s + nu)), mean((s + q) / (s + nu) ** 2)
    return xi, idg, rho + 1 - 2 * shrunk + (1 + q) * (r2 + idg / tau * spread)


MODERATE = [
    at(tau, alpha, kappa, rho, ridge)
    for tau, alpha, kappa, rho in [(0.3, 2, 0.5, 0.1), (0.7, 30, 3, 0.01), (1.6, 0.4, 0.2, 2.0), (8, 10, 1.5, 0.25)]
    for ridge in (0.0, 1e-3, 1.0)
] + [at(1.0, 5, kappa, 0.0, 0.05) for kappa in (0.3, 1.0, 4.0)]


@pytest.mark.parametrize("point", MODERATE, ids=str)
def test_closed_forms_are_the_integrals(point):
    got = effective_ridge(**point), idg_error(**point), icl_error(**point)
    np.testing.assert_allclose(got, by_quadrature(**point), rtol=1e-10)


@pytest.mark.parametrize("point", MODERATE, ids=str)
@pytest.mark.parametrize("length", [0.3, 6.0, np.inf])
def test_another_length_in_the_test_is_the_integrals(point, length):
    """The mean and the variance of the fit from pretraining; the noise of a context from the test."""
    s, weights = law(point["kappa"])
    xi, idg, _ = by_quadrature(**point)
    q, other, tau = (1 + point["rho"]) / point["alpha"], (1 + point["rho"]) / length, point["tau"]
    nu = q + xi
    bias_idg, bias_icl = ((s * nu**2 + other * s**2) / (s + nu) ** 2, (nu**2 + other * s**2) / (s + nu) ** 2)
    noise = idg / tau * (s + q) / (s + nu) ** 2
    wanted = [
        point["rho"] + weights @ (bias_idg + (s + other) * noise),
        point["rho"] + weights @ (bias_icl + (1 + other) * noise),
    ]
    got = idg_error(**point, test_alpha=length), icl_error(**point, test_alpha=length)
    np.testing.assert_allclose(got, wanted, rtol=1e-10)


def test_the_integrals_notice_a_wrong_formula():
    point = at(1.6, 4.0, 0.6, 0.2)
    wanted = by_quadrature(**point)[2]
    slide_q = {**point, "alpha": point["rho"]}  # the slides' (1 + rho) / rho
    other_pool = {**point, "kappa": point["kappa"] / point["tau"]}
    assert abs(icl_error(**point) / wanted - 1) < 1e-10
    assert abs(icl_error(**slide_q) / wanted - 1) > 0.05
    assert abs(icl_error(**other_pool) / wanted - 1) > 0.05


@pytest.mark.parametrize("alpha", [0.3, 1.0, 7.0])
@pytest.mark.parametrize("rho", [1e-3, 0.5, 4.0])
def test_ridge_regression_is_its_integral(alpha, rho):
    s, weights = law(alpha)
    np.testing.assert_allclose(ridge_error(alpha=alpha, rho=rho), rho + weights @ (rho / (rho + alpha * s)), rtol=1e-10)


def test_ridge_regression_without_noise_misses_what_the_context_does_not_span():
    alpha = np.array([0.25, 1.0, 1 + 2**-52, 4.0])
    np.testing.assert_array_equal(ridge_error(alpha=alpha, rho=0), [0.75, 0, 0, 0])
    for rho in (1e-8, 1e-12):  # the limit, approached like rho, and like its root at alpha = 1
        limit = [0.75, np.sqrt(rho), 0.0]
        np.testing.assert_allclose(ridge_error(alpha=[0.25, 1.0, 4.0], rho=rho), limit, atol=2 * rho)


# The textbook forms in 80 digits.


def exactly(*point):
    """xi, e_IDG, e_ICL of a point (tau, alpha, kappa, rho, ridge), in decimals and uncancelled forms."""
    tau, alpha, kappa, rho, ridge = (Decimal(float(x)) for x in point)
    q = (1 + rho) / alpha

    def m(x, kappa):
        b = x + 1 - 1 / kappa
        return 2 / (b + (b * b + 4 * x / kappa).sqrt())

    def too_small(x):
        return x * m(q + x, kappa) < 1 - tau + tau * ridge / x

    if ridge == 0:
        xi = (1 - tau) / (tau * m(q, kappa / tau)) if tau < 1 else Decimal(0)
    else:
        low = high = ridge
        while too_small(high):
            high *= 16
        while high / low - 1 > Decimal(10) ** -40:
            middle = (low * high).sqrt()
            low, high = (middle, high) if too_small(middle) else (low, middle)
        xi = low
    nu = q + xi
    m_nu = m(nu, kappa)
    slope = -(m_nu**2 / kappa + m_nu) / (2 * nu * m_nu / kappa + nu + 1 - 1 / kappa)
    d, r2 = 1 - 2 * xi * m_nu - xi**2 * slope, 1 - 2 * nu * m_nu - nu**2 * slope
    idg = tau * (rho + nu - nu**2 * m_nu - xi * r2) / (tau - d)
    return xi, idg, rho + 1 - 2 * (1 - nu * m_nu) + (1 + q) * (r2 + idg / tau * (m_nu + xi * slope))


def wide(n, seed):
    """Points over many decades, half of them within 1e-15 to 0.1 of tau = 1, kappa = 1 or kappa = tau."""
    rng = np.random.default_rng(seed)

    def decades(low, high):
        return 10 ** rng.uniform(low, high, n)

    close, which = 1 + rng.choice([-1, 1], n) * decades(-15, -1), rng.integers(0, 6, n)
    tau = np.where(which == 0, np.where(close == 1, 2.0, close), decades(-2, 3))
    kappa = np.select([which == 1, which == 2], [close, tau * close], decades(-2, 3))
    rho = np.where(rng.random(n) < 0.2, 0.0, rng.uniform(0, 10, n))
    return at(tau, decades(-1, 4), kappa, rho, np.where(rng.random(n) < 0.3, 0.0, decades(-8, 2)))


def test_full_accuracy_over_a_wide_grid():
    point = wide(250, seed=0)
    got = np.stack([effective_ridge(**point), idg_error(**point), icl_error(**point)], axis=1)
    worst = 0.0
    with localcontext() as context:
        context.prec = 80
        for row, values in zip(np.stack(list(point.values()), axis=1), got, strict=True):
            for value, wanted in zip(values, exactly(*row), strict=True):
                worst = max(worst, float(abs(Decimal(float(value)) - wanted) / (wanted or 1)))
    assert worst < 3e-15


# The published forms.


def slides(tau, alpha, kappa, rho, *, q=None, mu_kappa=None):
    """The slides' ridgeless e_ICL, branch by branch as printed, with q* corrected to (1 + rho) / alpha."""
    q = (1 + rho) / alpha if q is None else q
    if tau < 1:
        mu = q * stieltjes(q, kappa / tau if mu_kappa is None else mu_kappa)
        bracket = 1 - tau * (1 - mu) ** 2 + mu * (rho / q - 1)
        return tau * (1 + q) / (1 - tau) * bracket - 2 * tau * (1 - mu) + 1 + rho
    m, slope = stieltjes(q, kappa), stieltjes_derivative(q, kappa)
    bracket = 1 - 2 * q * m - q**2 * slope + (rho + q - q**2 * m) * m / (tau - 1)
    return (q + 1) * bracket - 2 * (1 - q * m) + 1 + rho


BELOW = [(0.3, 10.0, 0.5, 0.1), (0.8, 20.0, 2.0, 0.5), (0.99, 3.0, 1.0, 0.01)]
ABOVE = [(1.1, 3.0, 0.3, 1.0), (6.0, 9.0, 4.0, 0.2)]


@pytest.mark.parametrize("point", BELOW + ABOVE, ids=str)
def test_ridgeless_is_the_slides_formula_with_its_misprint_corrected(point):
    ours, rho = icl_error(**at(*point)), point[-1]
    np.testing.assert_allclose(ours, slides(*point), rtol=1e-11)
    assert abs(slides(*point, q=(1 + rho) / rho) / ours - 1) > 0.01  # as printed


@pytest.mark.parametrize("point", BELOW, ids=str)
def test_the_slides_mu_takes_kappa_over_tau(point):
    tau, _, kappa, _ = point
    ours = icl_error(**at(*point))
    np.testing.assert_allclose(slides(*point, mu_kappa=kappa / tau), ours, rtol=1e-11)
    assert abs(slides(*point, mu_kappa=kappa) / ours - 1) > 1e-3


@pytest.mark.parametrize("point", BELOW, ids=str)
def test_ridgeless_idg_below_one_in_the_form_of_the_authors_code(point):
    tau, alpha, kappa, rho = point
    q, xi = (1 + rho) / alpha, effective_ridge(**at(*point))
    c = 1 / (1 - kappa / (1 + kappa * xi / (1 - tau)) ** 2)
    bracket = (rho + q - 2 * q * (1 - tau) * (q / xi + 1)) / (1 - tau - c * (1 - tau) ** 2)
    np.testing.assert_allclose(idg_error(**at(*point)), tau * ((q + xi) ** 2 / xi + bracket), rtol=1e-11)


@pytest.mark.parametrize("point", ABOVE, ids=str)
def test_ridgeless_idg_above_one(point):
    tau, alpha, kappa, rho = point
    q = (1 + rho) / alpha
    wanted = tau / (tau - 1) * (rho + q * (1 - q * stieltjes(q, kappa)))
    np.testing.assert_allclose(idg_error(**at(*point)), wanted, rtol=1e-13)


# Inequalities that hold everywhere, on the wide grid.


def test_no_error_is_below_the_noise_nor_icl_below_the_bayes_error():
    point = wide(4000, seed=1)
    icl, idg, slack = icl_error(**point), idg_error(**point), 1 - 1e-14
    assert np.all(icl >= point["rho"] * slack)
    assert np.all(idg >= point["rho"] * slack)
    assert np.all(icl >= ridge_error(alpha=point["alpha"], rho=point["rho"]) * slack)


def test_pretraining_tasks_are_easier_where_the_effective_ridge_is_below_q():
    point = wide(4000, seed=2)
    icl, idg = icl_error(**point), idg_error(**point)
    low = effective_ridge(**point) <= (1 + point["rho"]) / point["alpha"]
    assert low.sum() > 500
    assert np.all(icl[low] >= idg[low] * (1 - 1e-14))
    assert np.any(icl[~low] < idg[~low])  # and the condition is needed


def test_the_effective_ridge_exceeds_the_ridge_and_orders_like_it():
    point = wide(4000, seed=3)
    xi = effective_ridge(**point)
    more = effective_ridge(**{**point, "ridge": 1.1 * point["ridge"] + 1e-9})
    longer = effective_ridge(**{**point, "tau": 1.1 * point["tau"]})
    assert np.all(xi >= point["ridge"] * (1 - 1e-15))
    assert np.all(more > xi)
    assert np.all(longer[xi > 0] < xi[xi > 0])
    assert np.all((xi == 0) == ((point["ridge"] == 0) & (point["tau"] >= 1)))


def test_more_data_and_less_noise_help_where_they_must():
    tau = np.geomspace(1.001, 1e3, 200)
    for error in (icl_error, idg_error):
        assert np.all(np.diff(error(**at(tau, 3.0, 0.7, 0.2))) < 0)
    rho, alpha = np.linspace(0, 5, 200), np.geomspace(0.1, 1e3, 200)
    assert np.all(np.diff(idg_error(**at(1.7, 3.0, 0.7, rho))) > 0)
    assert np.all(np.diff(ridge_error(alpha=0.8, rho=rho)) > 0)
    assert np.all(np.diff(ridge_error(alpha=alpha, rho=0.3)) < 0)


# What may be asked, and what it costs.


def test_shapes_and_types():
    point = at(np.array([0.5, 1.0, 2.0])[:, None], 2, np.array([0.5, 1.0, np.inf, 3.0]), 0.1)
    for function in (icl_error, idg_error, effective_ridge):
        together = function(**point)
        assert together.shape == (3, 4)
        alone = function(**{**point, "tau": 2.0, "kappa": 0.5})
        assert type(alone) is float
        assert alone == together[2, 0]
        assert function(**{**point, "rho": np.ones((0, 1, 1))}).shape == (0, 3, 4)
    assert type(ridge_error(alpha=1, rho=1)) is float
    assert type(large_context_limit(kappa=1, rho=1, alpha_over_tau=1)) is float
    assert ridge_error(alpha=[1, 2], rho=[[0], [1], [2]]).shape == (3, 2)


def test_the_length_of_the_test_enters_nowhere_but_in_the_noise_of_a_context():
    point = wide(2000, seed=5)
    for function in (icl_error, idg_error):
        np.testing.assert_allclose(function(**point, test_alpha=point["alpha"]), function(**point), rtol=3e-15)
        endless, one, two = (function(**point, test_alpha=length) for length in (np.inf, 1.0, 2.0))
        np.testing.assert_allclose(one + endless, 2 * two, rtol=1e-14)  # linear in 1 / test_alpha
        assert np.all((one > two) & (two > endless) & (endless >= point["rho"] * (1 - 1e-15)))
        assert function(tau=1, alpha=1, kappa=1, rho=0.1, test_alpha=np.inf) == np.inf
        assert function(**{**at(2.0, 1.0, 1.0, 0.1), "test_alpha": np.ones((3, 1))}).shape == (3, 1)
        with pytest.raises(InputError, match=r"^test_alpha: expected a number > 0 \(inf is allowed\), got 0$"):
            function(**at(2.0, 1.0, 1.0, 0.1), test_alpha=0)
    # In endless contexts the pool is known but for the shrinkage: more contexts of pretraining leave the bias alone.
    alpha, kappa, rho = 3.0, 0.7, 0.2
    q = (1 + rho) / alpha
    wanted = rho - q**2 * stieltjes_derivative(q, kappa)
    np.testing.assert_allclose(
        icl_error(tau=np.inf, alpha=alpha, kappa=kappa, rho=rho, test_alpha=np.inf), wanted, rtol=1e-14
    )


def test_no_jax_in_a_fresh_process():
    code = """if True:
        import sys
        import icllab.theory.linear_attention as theory
        theory.icl_error(tau=0.5, alpha=1.0, kappa=1.0, rho=0.1, ridge=0.1)
        theory.large_context_limit(kappa=0.5, rho=0.1, alpha_over_tau=1.0)
        heavy = {"jax", "jaxlib", "equinox", "optax", "xarray", "matplotlib"} & {m.split(".")[0] for m in sys.modules}
        sys.exit(f"imported {sorted(heavy)}" if heavy else 0)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
