"""Means of what is observed, and how far they are to be trusted, where that is exact."""

import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.diagnostics.susceptibilities.expectations import Draws, Nodes, observed_at
from icllab.diagnostics.susceptibilities.observed_chains import _unmixed
from icllab.diagnostics.susceptibilities.tilts import _less


def test_the_error_of_a_quadrature_is_what_every_other_node_changes():
    """Nothing of a constant, or where both rules are one; of x^2 by Simpson's and the trapezium rule a sixth."""
    x, fine, coarse = np.array([0, 0.5, 1]), np.array([1, 4, 1]) / 6, np.array([1, 0, 1]) / 2
    nodes = Nodes(x[:, None], np.zeros(1), fine, coarse)
    np.testing.assert_allclose(nodes.mean(np.full(3, 2.0)), (2, 0), atol=1e-14)
    np.testing.assert_allclose(nodes.mean(x**2), (1 / 3, 1 / 6), rtol=1e-12)
    assert Nodes(x[:, None], np.zeros(1), fine, fine).mean(x**2)[1] == 0


def test_draws_of_a_constant_have_no_error_and_do_not_disagree():
    still = np.full((4, 8, 2), 3.0)
    assert Draws(still, np.zeros(2)).mean(still[:, :, 0]) == (3.0, 0.0)
    assert _unmixed(still) == []
    apart = still + np.random.default_rng(0).normal(size=still.shape) + np.arange(4.0)[:, None, None]
    assert "chains disagree" in _unmixed(apart)[0]


@pytest.mark.parametrize("found", [[1.0, np.nan], [np.inf, 0.0], [[1.0]]])
def test_what_is_not_finite_at_the_point_is_refused(found):
    with pytest.raises(InputError, match="observables: expected finite numbers at the point given"):
        observed_at(lambda _: jnp.asarray(found), None)
    np.testing.assert_array_equal(observed_at(lambda at: at, jnp.asarray([1.0, 2.0])), [1, 2])


def test_a_tilt_is_a_difference_of_sums_over_terms():
    w = jnp.asarray([1.0, 2.0, 4.0])
    assert float(_less(lambda w: w**2, lambda w: w[:2], w)) == 21 - 3
