"""Task alignment against routes that share no code with it: random matrices, eighty digits, the isotropic formulas."""

import itertools
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy.optimize import brentq

from icllab.theory import linear_attention
from icllab.theory.sample_covariance import power_law, resolvent_trace
from icllab.theory.task_alignment import effective_ridge, gamma_noise, icl_error, idg_error

SETS = [
    {"tau": 2.0, "alpha": 5.0, "kappa": 0.5, "rho": 0.05, "ridge": 0.0},
    {"tau": 0.5, "alpha": 2.0, "kappa": 1.5, "rho": 0.05, "ridge": 0.0},
    {"tau": 1.5, "alpha": 5.0, "kappa": 2.0, "rho": 0.05, "ridge": 0.05},
    {"tau": 1.0, "alpha": 3.0, "kappa": 0.8, "rho": 0.5, "ridge": 0.2},
]


def wide(n, seed):
    """Points over many decades, half of them within 1e-15 to 0.1 of tau = 1, kappa = 1 or kappa = tau."""
    rng = np.random.default_rng(seed)

    def decades(low, high):
        return 10 ** rng.uniform(low, high, n)

    close, which = 1 + rng.choice([-1, 1], n) * decades(-15, -1), rng.integers(0, 6, n)
    tau = np.where(which == 0, np.where(close == 1, 2.0, close), decades(-2, 3))
    kappa = np.select([which == 1, which == 2], [close, tau * close], decades(-2, 3))
    rho = np.where(rng.random(n) < 0.2, 0.0, rng.uniform(0, 10, n))
    ridge = np.where(rng.random(n) < 0.3, 0.0, decades(-8, 2))
    return {"tau": tau, "alpha": decades(-1, 4), "kappa": kappa, "rho": rho, "ridge": ridge}


# The isotropic formulas.


def test_isotropic_tasks_have_the_isotropic_errors():
    point, length = wide(3000, seed=0), 10 ** np.random.default_rng(9).uniform(-1, 4, 3000)
    for other in ({}, {"test_alpha": length}):
        np.testing.assert_allclose(
            icl_error(1, 1, **point, **other), linear_attention.icl_error(**point, **other), rtol=1e-14
        )
        np.testing.assert_allclose(
            idg_error(1, **point, **other), linear_attention.idg_error(**point, **other), rtol=1e-14
        )
    np.testing.assert_allclose(effective_ridge(1, **point), linear_attention.effective_ridge(**point), rtol=1e-14)


@pytest.mark.parametrize("law", SETS, ids=str)
def test_a_number_a_vector_and_a_matrix_are_one_covariance(law):
    rng = np.random.default_rng(1)
    basis, _ = np.linalg.qr(rng.standard_normal((6, 6)))
    c, other = power_law(6, 1.0), rng.uniform(0, 2, 6)
    wanted = icl_error(c, other, **law)
    np.testing.assert_allclose(icl_error(np.diag(c), other, **law), wanted, rtol=1e-13)
    np.testing.assert_allclose(icl_error(basis * c @ basis.T, basis * other @ basis.T, **law), wanted, rtol=1e-12)
    np.testing.assert_allclose(idg_error(basis * c @ basis.T, **law), idg_error(c, **law), rtol=1e-12)
    np.testing.assert_allclose(icl_error(c, 1.5, **law), icl_error(c, np.full(6, 1.5), **law), rtol=1e-15)
    # Each eigenvalue twice is the same distribution.
    np.testing.assert_allclose(icl_error(np.repeat(c, 2), np.repeat(other, 2), **law), wanted, rtol=1e-14)


# The textbook form of the reference, in eighty digits.


def exactly(c, others, tau, alpha, kappa, rho, ridge, test_alpha):
    """e_IDG and e of each test from F = (s C + nu)^-1, F2 = -dF/dnu and differences, with bisections for s and xi."""
    c, *others = [[Decimal(float(x)) for x in values] for values in (c, *others)]
    tau, alpha, kappa, rho, ridge, test_alpha = (Decimal(x) for x in (tau, alpha, kappa, rho, ridge, test_alpha))
    d, one = len(c), Decimal(1)
    q = (sum(c) / d + rho) / alpha

    def bisect(above, low, high):
        for _ in range(130):  # to 1e-39; a difference quotient over 1e-22 then has seventeen digits
            middle = (low + high) / 2
            low, high = (low, middle) if above(middle) else (middle, high)
        return low

    def weights(nu):
        s = bisect(lambda s: s - 1 + 1 / kappa - nu / kappa * sum(1 / (s * x + nu) for x in c) / d > 0, Decimal(0), one)
        return [1 / (s * x + nu) for x in c]

    def m(nu):
        return sum(weights(nu)) / d

    def excess(xi):
        return xi * m(q + xi) - (1 - tau) - (tau * ridge / xi if ridge else 0)

    xi = Decimal(0)
    if ridge or tau < 1:
        high = one
        while excess(high) < 0:
            high *= 4
        xi = bisect(lambda x: excess(x) > 0, Decimal(10) ** -30, high)
    nu, h = q + xi, Decimal(10) ** -22
    f, after = weights(nu), weights(nu + h)
    f2 = [(a - b) / h for a, b in zip(f, after, strict=True)]
    trace, slope = sum(f) / d, -sum(f2) / d
    dd, r2 = 1 - 2 * xi * trace - xi**2 * slope, 1 - 2 * nu * trace - nu**2 * slope
    idg = tau * (rho + nu - nu**2 * trace - xi * r2) / (tau - dd)

    def error(other):
        test_q = (sum(other) / d + rho) / test_alpha
        terms = (
            x
            - 2 * x * (1 - nu * a)
            + (x + test_q) * (1 - 2 * nu * a + nu**2 * b)
            + idg / tau * (x + test_q) * (a - xi * b)
            for x, a, b in zip(other, f, f2, strict=True)
        )
        return rho + sum(terms) / d

    return idg, [error(other) for other in others]


@pytest.mark.parametrize("law", [*SETS, {"tau": 0.7, "alpha": 40.0, "kappa": 0.7, "rho": 1e-3, "ridge": 1e-4}], ids=str)
@pytest.mark.parametrize("exponent", [0.5, 1.5])
def test_the_papers_form_in_eighty_digits(law, exponent):
    c = power_law(4, exponent)
    others = (c, np.ones(4), c[::-1], np.array([0.0, 0.0, 0.0, 3.0]))
    with localcontext() as context:
        context.prec = 80
        idg, errors = exactly(c, others, **law, test_alpha=7.0)
    np.testing.assert_allclose(idg_error(c, **law), float(idg), rtol=1e-13)
    for other, error in zip(others, errors, strict=True):
        np.testing.assert_allclose(icl_error(c, other, **law, test_alpha=7.0), float(error), rtol=1e-13)


# Random matrices: no equivalent of a resolvent, and a root search of its own.


@pytest.mark.parametrize("law", SETS[:3], ids=str)
def test_averages_over_drawn_pools(law):
    """Given a pool of finite d the errors are exact traces; their means tend to the closed forms."""
    rng, draws, ratios = np.random.default_rng(2), 24, []
    tau, alpha, kappa, rho, ridge = law.values()
    for d in (60, 120, 240):
        c, rows = power_law(d, 0.4), []
        tests = (c, np.ones(d), c[::-1])
        q = (1 + rho) / alpha
        for _ in range(draws):
            w = rng.standard_normal((round(kappa * d), d)) * np.sqrt(c)
            r, vectors = np.linalg.eigh(w.T @ w / len(w))

            def excess(u, a=r + q):
                return tau - np.mean(a / (a + np.exp(u))) - tau * ridge * np.exp(-u)

            xi = 0.0 if ridge == 0 and tau > 1 else np.exp(brentq(excess, -40, 40, xtol=1e-14))
            nu, a = q + xi, r + q
            idg = rho + np.mean(nu**2 * r / (r + nu) ** 2 + q * r**2 / (r + nu) ** 2)
            idg /= 1 - np.mean((a / (r + nu)) ** 2) / tau
            errors = []
            for test in tests:
                moments = vectors.T**2 @ test
                bias = np.mean(moments * nu**2 / (r + nu) ** 2) + q * np.mean(r**2 / (r + nu) ** 2)
                errors.append(rho + bias + idg / tau * np.mean((moments + q) * a / (r + nu) ** 2))
            rows.append([idg, *errors])
        ratios.append(np.array(rows) / [idg_error(c, **law), *(icl_error(c, test, **law) for test in tests)])
    limit = 2 * ratios[2].mean(0) - ratios[1].mean(0)
    error = np.sqrt((4 * ratios[2].var(0, ddof=1) + ratios[1].var(0, ddof=1)) / draws)
    assert np.all(error < 0.02)
    assert np.all(np.abs(limit - 1) < 4 * error)


# What follows from the formulas.


def test_matched_isotropic_reversed_is_the_order_wherever_the_effective_ridge_is_below_q():
    point, c = wide(1000, seed=3), power_law(12, 0.8)
    errors = [icl_error(c, test, **point) for test in (c, np.ones(12), c[::-1])]
    low = effective_ridge(c, **point) <= (1 + point["rho"]) / point["alpha"]
    assert low.sum() > 150
    for less, more in itertools.pairwise(errors):
        assert np.all(more[low] >= less[low] * (1 - 1e-14))
    first, last = (icl_error(c, 12.0 * np.eye(12)[i], **point) for i in (0, -1))
    assert np.all(first[low] <= errors[0][low] * (1 + 1e-14))
    assert np.all(last[low] >= errors[2][low] * (1 - 1e-14))
    # Few contexts, long ones and strong noise turn the order round: the condition is needed.
    odd = {"tau": 0.05, "alpha": 200.0, "kappa": 4.0, "rho": 5.0}
    matched, isotropic, opposite = (
        icl_error(power_law(80, 1.0), test, **odd) for test in (power_law(80, 1.0), 1.0, power_law(80, 1.0)[::-1])
    )
    assert matched > isotropic > opposite


def test_the_error_is_linear_in_the_test_covariance_and_in_the_inverse_length():
    c, a, b = power_law(6, 1.0), np.arange(6.0), np.array([3.0, 0, 0, 1, 0, 2])
    for law in SETS:
        law = {**law, "test_alpha": 4.0}
        middle = icl_error(c, (a + b) / 2, **law)
        np.testing.assert_allclose(middle, (icl_error(c, a, **law) + icl_error(c, b, **law)) / 2, rtol=1e-13)
        for error in (
            lambda length, law=law: icl_error(c, a, **{**law, "test_alpha": length}),
            lambda length, law=law: idg_error(c, **{**law, "test_alpha": length}),
        ):
            two, four, endless = error(np.array([2.0, 4.0, np.inf]))
            np.testing.assert_allclose(two, 2 * four - endless, rtol=1e-13)
            assert two > four > endless


def test_no_test_has_less_error_than_noise_and_endless_pools_are_their_law():
    point, c = wide(1000, seed=4), power_law(9, 1.2)
    assert np.all(icl_error(c, 0.0, **point) >= point["rho"] * (1 - 1e-14))
    assert np.all(idg_error(c, **point) >= point["rho"] * (1 - 1e-14))
    endless = {**point, "kappa": np.inf}
    np.testing.assert_allclose(icl_error(c, c, **endless), idg_error(c, **endless), rtol=1e-13)
    xi = effective_ridge(c, **point)
    assert np.all(xi >= point["ridge"] * (1 - 1e-15))
    assert np.all((xi == 0) == ((point["ridge"] == 0) & (point["tau"] >= 1)))


def test_the_pole_and_endless_contexts():
    c, law = power_law(5, 1.0), {"alpha": 2.0, "kappa": 0.7, "rho": 0.1}
    assert icl_error(c, 1, tau=1, **law) == np.inf
    assert idg_error(c, tau=1.0, **law, test_alpha=np.inf) == np.inf
    near = [abs(t - 1) * idg_error(c, tau=t, **law) for t in (1 - 1e-7, 1 + 1e-7)]
    q = 1.1 / 2
    strength = 0.1 + q * (1 - q * resolvent_trace(c, q, 0.7))
    np.testing.assert_allclose(near, strength, rtol=1e-5)
    np.testing.assert_allclose(idg_error(c, tau=np.inf, **law), strength, rtol=1e-14)


def test_singular_covariances_leave_what_was_never_asked_for():
    """Along directions without pretraining tasks nothing is learned: they are missed whole."""
    c, law = np.array([0.0, 0.0, 2.0, 2.0]), {"tau": np.inf, "alpha": 3.0, "kappa": 0.9, "rho": 0.0}
    np.testing.assert_allclose(icl_error(c, [2.0, 2.0, 0.0, 0.0], **law, test_alpha=np.inf), 1.0, rtol=1e-14)
    for law in SETS:
        near = icl_error(c + 1e-13, 1.0, **law)
        np.testing.assert_allclose(icl_error(c, 1.0, **law), near, rtol=1e-10)


@pytest.mark.parametrize("law", SETS, ids=str)
def test_the_noise_of_the_matrix_is_the_variance_part_of_the_error(law):
    """Doubling the test's isotropic second moment adds the bias once more and the noise once more: solve for it."""
    c = power_law(7, 0.8)
    base, wider = (icl_error(c, size, **law, test_alpha=np.inf) for size in (1.0, 2.0))
    q, xi = (1 + law["rho"]) / law["alpha"], effective_ridge(c, **law)
    h = 1e-5 * (q + xi)
    m = [resolvent_trace(c, q + xi + i * h, law["kappa"]) for i in (-1, 1)]
    bias = -((q + xi) ** 2) * (m[1] - m[0]) / (2 * h)
    np.testing.assert_allclose(gamma_noise(c, **law).square, wider - base - bias, rtol=1e-6)
    assert gamma_noise(c, **{**law, "tau": np.inf}).square == 0


def test_the_last_column_of_drawn_pools():
    """Its squared mean and variance from the full matrix of moments of finite d, last feature included."""
    law, d, rng, rows = SETS[1], 400, np.random.default_rng(6), []
    tau, alpha, kappa, rho, _ = law.values()
    c = power_law(d, 0.4)
    idg, xi, q = idg_error(c, **law), effective_ridge(c, **law), (1 + rho) / alpha
    for _ in range(12):
        w = rng.standard_normal((round(kappa * d), d)) * np.sqrt(c)
        r, side = w.T @ w / len(w), (1 + rho) * w.mean(0)
        b = np.block([[r + q * np.eye(d), side[:, None]], [side[None], np.array([[(1 + rho) ** 2]])]])
        inverse = np.linalg.inv(b + xi * np.eye(d + 1))
        mean = np.concatenate([r, side[:, None]], axis=1) @ inverse[:, -1]
        rows.append(mean @ mean + idg / tau * (inverse @ b @ inverse)[-1, -1])
    mean, error = np.mean(rows), np.std(rows, ddof=1) / np.sqrt(12)
    predicted = gamma_noise(c, **law).last_column
    assert error < 0.02 * predicted
    assert abs(mean - predicted) < 3 * error + predicted * 2 / d
    assert abs(mean - gamma_noise(c, **{**law, "kappa": np.inf}).last_column) > 5 * error


# Tasks of low rank: a quarter of the eigenvalues is 4, the others are zero.

INSIDE, OUTSIDE = np.repeat([4.0, 0.0], [5, 15]), np.repeat([0.0, 4 / 3], [5, 15])


@pytest.mark.parametrize("near", [1.0, 1 + 1e-9])
@pytest.mark.parametrize("threshold", ["tau", "kappa"])
def test_both_thresholds_of_low_rank_in_eighty_digits(threshold, near):
    law = {"tau": 0.6, "kappa": 0.7, "alpha": 1e4, "rho": 0.1, "ridge": 0.0} | {threshold: 0.25 * near}
    with localcontext() as context:
        context.prec = 80
        idg, errors = exactly(INSIDE[::5], (INSIDE[::5], OUTSIDE[::5]), **law, test_alpha=7.0)
    np.testing.assert_allclose(idg_error(INSIDE, **law), float(idg), rtol=1e-12)
    for other, error in zip((INSIDE, OUTSIDE), errors, strict=True):
        np.testing.assert_allclose(icl_error(INSIDE, other, **law, test_alpha=7.0), float(error), rtol=1e-12)


@pytest.mark.parametrize("tau", [0.1, 0.25, 0.6, 0.9])
def test_the_implicit_ridge_of_fresh_low_rank_tasks_is_the_root_of_a_quadratic_equation(tau):
    s, q = 0.25, 1.1 / 3
    half = (s + s * q - tau) / 2
    nu = (half + np.sqrt(half**2 + s * tau * q * (1 - s))) / (s * tau)
    np.testing.assert_allclose(effective_ridge(INSIDE, tau=tau, alpha=3, kappa=np.inf, rho=0.1), nu - q, rtol=1e-13)


@pytest.mark.parametrize("kappa", [0.15, 0.4, 2.0, np.inf])
@pytest.mark.parametrize("tau", [0.05, 0.2, 0.3, 0.8])
def test_the_implicit_ridge_at_long_contexts_ends_at_the_rank_and_at_the_pool(tau, kappa):
    expected = max(1 - tau / 0.25, 0) * max(1 - tau / kappa, 0) / tau
    law = {"tau": tau, "alpha": 1e9, "kappa": kappa, "rho": 0.1}
    np.testing.assert_allclose(effective_ridge(INSIDE, **law), expected, atol=1e-7)
    # Every spectrum of this rank has the thresholds, but another ridge below them.
    steep = np.concatenate([4 * power_law(5, 1.0), np.zeros(15)])
    assert (effective_ridge(steep, **law) > 1e-7) == (expected > 0)


@pytest.mark.parametrize("kappa", [0.5, 2.0, np.inf])
@pytest.mark.parametrize("tau", [0.3, 0.5, 0.9, 2.0])
def test_long_contexts_of_low_rank_tasks_have_two_poles(tau, kappa):
    s, rho = 0.25, 0.1
    law = {"tau": tau, "alpha": 1e9, "kappa": kappa, "rho": rho}
    pool = s / (1 - s / kappa)
    if tau < 1:
        strength = rho * (1 - s) / ((1 - tau) * (tau - s))
        idg, inside = tau * strength, rho + strength * (pool + (tau - s) ** 2 / (1 - s))
    else:
        idg, inside = rho * tau / (tau - 1), rho + rho / (tau - 1) * (pool + 1 - s)
    np.testing.assert_allclose(idg_error(INSIDE, **law), idg, rtol=1e-6)
    np.testing.assert_allclose(icl_error(INSIDE, INSIDE, **law), inside, rtol=1e-6)
    if tau == 0.5:
        assert idg == pytest.approx(rho * (1 + np.sqrt(s)) / (1 - np.sqrt(s)))
        assert idg < min(idg_error(INSIDE, **law | {"tau": beside}) for beside in (0.45, 0.55))


@pytest.mark.parametrize("kappa", [0.1, 0.2, 0.3, 1.0])
def test_many_long_contexts_of_low_rank_tasks(kappa):
    rho, ratio = 0.25, 5.0
    law = {"tau": 2e7, "alpha": 1e8, "kappa": kappa, "rho": rho}
    limit = linear_attention.large_context_limit(kappa=kappa, rho=rho, alpha_over_tau=ratio, rank=0.25)
    np.testing.assert_allclose(icl_error(INSIDE, INSIDE, **law), limit, atol=1e-5)
    full = 1 + rho / (1 + rho) * ratio
    np.testing.assert_allclose(icl_error(INSIDE, OUTSIDE, **law), rho + full, atol=1e-5)
    np.testing.assert_allclose(icl_error(INSIDE, 1, **law), rho + (1 - min(kappa, 0.25)) * full, atol=1e-5)


def test_nothing_is_learned_outside_of_the_subspace_and_vanishing_rank_leaves_noise():
    point = wide(1000, seed=5)
    assert np.all(icl_error(INSIDE, OUTSIDE, **point) >= (1 + point["rho"]) * (1 - 1e-14))
    one = np.concatenate([[1e4], np.zeros(9999)])
    for tau in (0.1, 0.5, 2.0):
        law = {"tau": tau, "alpha": 3.0, "kappa": 0.5, "rho": 0.1}
        expected = 0.1 * max(1, tau) / abs(1 - tau)
        np.testing.assert_allclose([icl_error(one, one, **law), idg_error(one, **law)], expected, rtol=5e-3)


# What may be asked.


def test_shapes_and_types():
    c = power_law(4, 1.0)
    law = {
        "tau": np.array([0.5, 1.0, 2.0])[:, None],
        "alpha": 2,
        "kappa": np.array([0.5, 1.0, np.inf, 3.0]),
        "rho": 0.1,
    }
    for together, alone in (
        (icl_error(c, 1, **law), icl_error(c, 1, **{**law, "tau": 2.0, "kappa": 0.5})),
        (idg_error(c, **law), idg_error(c, **{**law, "tau": 2.0, "kappa": 0.5})),
        (effective_ridge(c, **law), effective_ridge(c, **{**law, "tau": 2.0, "kappa": 0.5})),
        (gamma_noise(c, **law).square, gamma_noise(c, **{**law, "tau": 2.0, "kappa": 0.5}).square),
    ):
        assert together.shape == (3, 4)
        assert type(alone) is float
        np.testing.assert_allclose(alone, together[2, 0], rtol=1e-15)
    assert icl_error(c, 1, **{**law, "test_alpha": np.ones((2, 1, 1))}).shape == (2, 3, 4)
