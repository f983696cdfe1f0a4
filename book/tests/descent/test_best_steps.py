"""The best numbers found by running the algorithms, against the exact ones of the theory."""

import jax
import numpy as np
import pytest

from iclbook.claims.descent import _best_steps
from icllab.theory import descent

SIZE = {"dim": 3, "length": 12}


@pytest.fixture(scope="module")
def spectra():
    return _best_steps.sample_spectra(**SIZE, draws=20_000, key=jax.random.key(0))


def test_the_spectra_are_those_of_sample_covariances(spectra):
    """E tr S = d and E tr S^2 = d(1 + (d + 1)/n), within five standard errors of at most a percent."""
    for power, wanted in ((1, 3.0), (2, 3 * (1 + 4 / 12))):
        traces = (spectra**power).sum(1)
        error = traces.std() / len(traces) ** 0.5
        assert error < 0.01 * wanted
        assert abs(traces.mean() - wanted) < 5 * error


@pytest.mark.parametrize(("kind", "formula"), [("sizes", descent.free_steps), ("one size", descent.tied_steps)])
def test_the_best_steps_of_gradient_descent_are_near_the_exact_ones(kind, formula, spectra):
    """Numbers and loss, as far as 20 000 draws tell; on these draws no others are better."""
    exact = formula(**SIZE, layers=2)
    found = _best_steps.search_steps(spectra, layers=2, kind=kind, starts=2)
    np.testing.assert_allclose(found.rates, exact.rates, rtol=0.03)
    assert not found.contractions.any()
    on_draws, _ = _best_steps.held_out_loss(_best_steps.Numbers(exact.rates, exact.contractions, 0.0), spectra)
    assert found.loss <= on_draws * (1 + 1e-5)
    assert descent.loss(found.rates, **SIZE) == pytest.approx(exact.loss, rel=3e-3)
    assert descent.loss(found.rates, **SIZE) >= exact.loss


def test_the_error_on_draws_is_that_of_the_polynomial(spectra):
    """For gradient descent and for GD++, and it is the least that the search says."""
    for kind in ("sizes", "GD++"):
        found = _best_steps.search_steps(spectra[:500], layers=2, kind=kind, starts=4)
        terms = (descent.remainder(spectra[:500], found.rates, found.contractions) ** 2).sum(1)
        mean, error = _best_steps.held_out_loss(found, spectra[:500])
        assert mean == pytest.approx(terms.mean(), rel=1e-4) == pytest.approx(found.loss, rel=1e-4)
        assert error == pytest.approx(terms.std(ddof=1) / 500**0.5, rel=1e-4)


def test_gd_plus_plus_is_the_best_of_another_search_for_these_draws(spectra):
    found = _best_steps.search_steps(spectra[:2000], layers=2, kind="GD++", starts=6)
    other = descent.plus_plus(**SIZE, layers=2, starts=12, spectra=spectra[:2000]).best
    assert found.loss == pytest.approx(other.loss, rel=1e-3)
    assert found.loss < 0.5 * _best_steps.search_steps(spectra[:2000], layers=2, kind="sizes", starts=2).loss
