"""The asymptotic errors of linear attention against contexts drawn, fitted and scored one by one in NumPy.

The simulation shares nothing with the closed forms but the definition of the estimator. At finite
dimension its mean is off by order 1/d, so two dimensions are extrapolated and the answer is a number of
standard errors, which are themselves bounded.
"""

import numpy as np
import pytest

from icllab.theory import task_alignment
from icllab.theory.linear_attention import icl_error, idg_error


def fitted(rng, dim, tau, alpha, kappa, rho, ridge, rank=1.0):
    """e_IDG and e_ICL, exact for the drawn pool, of the estimator fitted on n = tau dim^2 drawn contexts.

    Below ``rank`` 1 the tasks span the first dimensions alone, and e_ICL is that inside and that outside of these.
    """
    n, length, k = round(tau * dim**2), round(alpha * dim), round(kappa * dim)
    inside = np.arange(dim) < round(rank * dim)
    pool = rng.standard_normal((k, dim)) * np.sqrt(inside / np.mean(inside))
    w = pool[rng.integers(k, size=n)]
    x = rng.standard_normal((n, length + 1, dim)) / np.sqrt(dim)
    y = np.einsum("nld,nd->nl", x, w) + np.sqrt(rho) * rng.standard_normal((n, length + 1))
    context, query = slice(0, length), x[:, length]
    h = np.concatenate(
        [
            dim / length * np.einsum("nl,nld->nd", y[:, context], x[:, context]),
            np.mean(y[:, context] ** 2, axis=1, keepdims=True),
        ],
        axis=1,
    )
    kernel = (query @ query.T) * (h @ h.T) + n / dim * ridge * np.eye(n)  # the dual of the ridge problem
    gamma = (query * np.linalg.solve(kernel, y[:, length])[:, None]).T @ h
    tests = [inside] if inside.all() else [inside, ~inside]
    fresh = [_fresh(test / np.mean(test), length, rho) for test in tests]
    return [_population_error(gamma, *moments) for moments in (_of_pool(pool, length, rho), *fresh)]


def _population_error(gamma, signal, cross, second):
    """rho + E<w,w>/d - 2 tr(gamma E[h w^T])/d + tr(gamma E[h h^T] gamma^T)/d; signal is rho + E<w,w>/d."""
    return signal + (np.trace(gamma @ second @ gamma.T) - 2 * np.trace(gamma @ cross)) / len(gamma)


def _of_pool(pool, length, rho):
    k, dim = pool.shape
    s2 = rho + np.mean(pool**2, axis=1)
    outer = pool.T @ pool / k
    corner = dim / length * s2.mean() * np.eye(dim) + (1 + 1 / length) * outer
    side = (1 + 2 / length) * (s2 @ pool / k)[:, None]
    second = np.block([[corner, side], [side.T, np.array([[(1 + 2 / length) * np.mean(s2**2)]])]])
    return s2.mean(), np.concatenate([outer, (s2 @ pool / k)[None]]), second


def _fresh(variances, length, rho):
    """Tasks with independent components, whose variances have the mean 1."""
    dim = len(variances)
    corner = dim / length * (1 + rho) + (1 + 1 / length) * variances
    square = (1 + 2 / length) * ((1 + rho) ** 2 + 2 * np.mean(variances**2) / dim)
    return 1 + rho, np.eye(dim + 1, dim) * variances, np.diag(np.append(corner, square))


POINTS = [
    pytest.param(16, {"tau": 0.5, "alpha": 4.0, "kappa": 0.5, "rho": 0.1, "ridge": 0.0}, marks=pytest.mark.slow),
    (12, {"tau": 1.0, "alpha": 2.0, "kappa": 2.0, "rho": 0.25, "ridge": 0.2}),
    (12, {"tau": 1.5, "alpha": 2.0, "kappa": 1.0, "rho": 0.1, "ridge": 0.05}),
]


@pytest.mark.parametrize(("dim", "point"), POINTS, ids=str)
def test_simulated_errors_tend_to_the_closed_forms(dim, point):
    rng, draws = np.random.default_rng(0), (120, 48)
    small = np.array([fitted(rng, dim, **point) for _ in range(draws[0])])
    large = np.array([fitted(rng, 2 * dim, **point) for _ in range(draws[1])])
    measured = 2 * large.mean(0) - small.mean(0)
    error = np.sqrt(4 * large.var(0, ddof=1) / draws[1] + small.var(0, ddof=1) / draws[0])

    def z(**changed):
        predicted = np.array([idg_error(**{**point, **changed}), icl_error(**{**point, **changed})])
        return np.abs(measured - predicted) / error

    assert np.all(error < 0.04 * measured)
    assert np.all(z() < 3)
    # Other formulas are told apart: q as the slides print it, another ridge, another pool.
    assert np.all(z(alpha=point["rho"]) > 5)
    assert np.any(z(ridge=2 * point["ridge"] + 0.1) > 5)
    assert np.any(z(kappa=point["kappa"] / 2) > 5)


LOW_RANK = [
    pytest.param({"tau": 2.0, "kappa": 0.5, "ridge": 0.01}, id="a pool that spans the subspace"),
    pytest.param({"tau": 2.0, "kappa": 0.125, "ridge": 0.01}, id="a pool that does not"),
    pytest.param({"tau": 0.125, "kappa": 0.5, "ridge": 0.0}, id="fewer contexts than dim times the rank"),
]


@pytest.mark.slow
@pytest.mark.parametrize("point", LOW_RANK)
def test_simulated_errors_on_tasks_of_rank_a_quarter(point):
    """Logarithms, whose errors are smaller where a pool is near the rank, at three dimensions and to second order."""
    dims, draws, weights = (8, 16, 24), (240, 120, 60), np.array([1, -8, 9]) / 2
    law, rng = {"alpha": 4.0, "rho": 0.05, **point}, np.random.default_rng(1)
    logs = [np.log([fitted(rng, d, **law, rank=0.25) for _ in range(n)]) for d, n in zip(dims, draws, strict=True)]
    measured = weights @ [part.mean(0) for part in logs]
    error = np.sqrt(weights**2 @ [part.var(0, ddof=1) / len(part) for part in logs])
    inside, outside = np.array([4.0, 0, 0, 0]), np.array([0, 4.0, 4.0, 4.0]) / 3

    def z(train=inside, **changed):
        errors = [task_alignment.icl_error(train, test, **law | changed) for test in (inside, outside)]
        return np.abs(measured - np.log([task_alignment.idg_error(train, **law | changed), *errors])) / error

    assert np.all(error < 0.16)
    assert np.all(z() < 3)
    assert np.any(z(train=np.ones(4))[1:] > 5)  # the same trace at full rank
    assert np.any(z(tau=np.inf) > 5)
