"""Errors of steps against a Hankel determinant, drawn matrices and each other; searches against what is known."""

import numpy as np
import pytest
from scipy.special import roots_genlaguerre

from icllab.theory import descent
from icllab.theory.finite_wishart import moments


def eigenvalues(d, n, draws, seed=0):
    x = np.random.default_rng(seed).normal(size=(draws, d, n))
    return np.linalg.eigvalsh(x @ x.transpose(0, 2, 1) / n)


@pytest.mark.parametrize(("d", "n"), [(5, 20), (10, 10), (4, 3)])
def test_one_step_is_the_closed_form(d, n):
    for found in (
        descent.tied_steps(dim=d, length=n, layers=1),
        descent.free_steps(dim=d, length=n, layers=1),
        descent.plus_plus(dim=d, length=n, layers=1, starts=2).best,
    ):
        np.testing.assert_allclose(found.rates, [n / (n + d + 1)], rtol=1e-12)
        np.testing.assert_allclose(found.loss, d * (d + 1) / (n + d + 1), rtol=1e-12)


@pytest.mark.parametrize(("d", "n", "layers"), [(5, 20, 2), (5, 20, 3), (10, 10, 4), (4, 2, 3)])
def test_the_best_steps_have_the_error_of_the_hankel_matrix(d, n, layers):
    """1 / [H^{-1}]_00, by Cramer's rule in rational arithmetic."""
    m = moments(d, n, 2 * layers)

    def determinant(start):
        rows = [[m[j + k] for k in range(start, layers + 1)] for j in range(start, layers + 1)]
        value = 1
        for i in range(len(rows)):
            value *= rows[i][i]
            for r in rows[i + 1 :]:
                factor = r[i] / rows[i][i]
                r[i:] = [a - factor * b for a, b in zip(r[i:], rows[i][i:], strict=True)]
        return value

    found = descent.free_steps(dim=d, length=n, layers=layers)
    np.testing.assert_allclose(found.loss, float(d * determinant(0) / determinant(1)), rtol=1e-12)
    assert np.all(np.diff(found.rates) < 0)
    assert found.rates[-1] > 0


def test_no_change_of_the_best_steps_lowers_the_error():
    for found in (
        descent.free_steps(dim=5, length=20, layers=3),
        descent.plus_plus(dim=5, length=20, layers=2, starts=8).best,
    ):
        rng = np.random.default_rng(0)
        for _ in range(20):
            rates, contractions = (part + 1e-3 * rng.normal(size=part.shape) for part in found[:2])
            moved = contractions if found.contractions.any() else None
            assert descent.loss(rates, moved, dim=5, length=20) > found.loss * (1 - 1e-13)


def test_the_shared_step_is_where_the_error_is_flat():
    for layers in (2, 5):
        rate, value = (descent.tied_steps(dim=6, length=9, layers=layers)[i] for i in (0, 2))
        above, below = (descent.loss(rate * (1 + s * 1e-4), dim=6, length=9) for s in (1, -1))
        assert above > value
        assert below > value
        np.testing.assert_allclose(above - value, below - value, rtol=0.01)


def test_without_contractions_the_product_is_that_of_the_steps():
    """The rule for GD++ has more points than it needs then, and gives the same."""
    rates = [0.3, 0.5, 0.2]
    s = np.linspace(0, 3, 7)
    np.testing.assert_allclose(descent.remainder(s, rates), np.prod([1 - a * s for a in rates], axis=0), rtol=1e-14)
    exact = descent.loss(rates, dim=4, length=9)
    np.testing.assert_allclose(descent.loss(rates, [1e-300, 0, 0], dim=4, length=9), exact, rtol=1e-12)


@pytest.mark.parametrize("contractions", [None, [0.5, 0.3]])
def test_drawn_matrices_have_this_error(contractions):
    rates = [0.4, 0.6]
    sample = (descent.remainder(eigenvalues(5, 20, 40000), rates, contractions) ** 2).sum(axis=1)
    error = sample.std() / len(sample) ** 0.5
    assert error < 0.01 * sample.mean()
    assert abs(sample.mean() - descent.loss(rates, contractions, dim=5, length=20)) < 4 * error


def test_the_last_contraction_has_no_effect():
    a = descent.loss([0.4, 0.6], [0.5, 0.0], dim=3, length=8)
    assert a == descent.loss([0.4, 0.6], [0.5, 7.0], dim=3, length=8)


def test_more_freedom_is_no_worse():
    at = {"dim": 5, "length": 20, "layers": 2}
    tied, free = descent.tied_steps(**at).loss, descent.free_steps(**at).loss
    tied_plus = descent.plus_plus(**at, tied=True, starts=8)
    plus = descent.plus_plus(**at, starts=8)
    assert plus.best.loss < tied_plus.best.loss < free < tied
    assert np.ptp(tied_plus.best.rates) == 0
    np.testing.assert_array_equal(np.sort(plus.losses), plus.losses)
    # Sixty thousand drawn matrices and another search gave 0.118, 0.0568 and for own steps the exact 0.36124.
    np.testing.assert_allclose(free, 0.36124, rtol=2e-5)
    np.testing.assert_allclose([tied_plus.best.loss, plus.best.loss], [0.118, 0.0568], rtol=0.02)


def test_three_layers_are_sharper_than_any_sample_can_tell():
    """Numbers fitted to draws do well on fresh draws and badly in truth: eigenvalues never drawn carry the error."""
    exact = descent.plus_plus(dim=5, length=20, layers=3, starts=16)
    np.testing.assert_allclose(exact.losses[1], exact.best.loss, rtol=1e-9)  # more than one start gets there
    a, b = exact.best[:2]
    np.testing.assert_allclose(descent.loss(a, b, dim=5, length=20), exact.best.loss, rtol=1e-12)
    fitted = descent.plus_plus(dim=5, length=20, layers=3, starts=16, spectra=eigenvalues(5, 20, 20000)).best
    fresh = (descent.remainder(eigenvalues(5, 20, 20000, seed=1), *fitted[:2]) ** 2).sum(axis=1)
    assert fitted.loss < 0.8 * exact.best.loss
    assert fresh.mean() < exact.best.loss
    assert descent.loss(*fitted[:2], dim=5, length=20) > 10 * exact.best.loss


def test_layers_that_do_not_contract_among_those_that_do_take_the_whole_rule():
    """With a zero first: of one input the error is an integral over a gamma distribution, by quadrature."""
    a, b, length = np.array([0.3, 0.5, 0.4]), np.array([0.0, 0.6, 0.0]), 4
    points, weights = roots_genlaguerre(20, length / 2 - 1)
    s = 2 * points / length  # of one input of unit variance: a chi-squared number over its degrees
    left = (1 - a[0] * s) * (1 - a[1] * s)
    contracted = 1 - a[1] * b[1] * s
    left = left * (1 - a[2] * s * contracted**2)
    wanted = weights @ left**2 / weights.sum()
    assert descent.loss(a, b, dim=1, length=length) == pytest.approx(wanted, rel=1e-10)
