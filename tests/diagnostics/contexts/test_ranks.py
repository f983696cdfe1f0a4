"""Ranks of maps that are known in closed form, and what a map shares with another's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab import diagnostics, tasks
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.diagnostics.contexts.ranks import THRESHOLD, context_rank, cut_in_metric, metric_spectrum
from icllab.diagnostics.contexts.solvers import MapSolver
from icllab.models.contexts.exact_family import FastWeights

DIM, HIDDEN = 4, 2
TASK = tasks.LinearRegression.convention("timaeus", dim=DIM, length=3)


def regression(shape, seed):
    rng = np.random.default_rng(seed)
    x, y = jnp.asarray(rng.normal(size=(*shape, DIM))), jnp.asarray(rng.normal(size=shape))
    return RegressionPrompt(x, y) if len(shape) == 1 else jax.vmap(RegressionPrompt)(x, y)


def family(down=1.0, up=1.0):
    rng = np.random.default_rng(3)
    arrays = down * rng.normal(size=(HIDDEN, DIM)), up * rng.normal(size=(DIM, HIDDEN)), rng.normal(size=DIM)
    return FastWeights(*map(jnp.asarray, arrays), normalised=False)


def rank(model, context, **changes):
    """Of the fast weights, which are the identity's where the direct term varies too."""
    options = {"subspace": lambda m: m.slow, "weights": lambda m: (m.down, m.up), "queries": regression((24, 1), 2)}
    return context_rank(model, TASK, context, **{**options, "key": jax.random.key(0), **changes})


@pytest.fixture(scope="module", autouse=True)
def _in_float64():
    with jax.enable_x64(True):
        yield


def test_the_rank_is_that_of_the_closed_form():
    """[B x h', I x (A h)'] has rank d where A h is not 0, else that of B; G' has rank d."""
    context = regression((4,), 1)
    result = rank(family(), context)
    assert (result.rank, result.query_rank, result.degeneracy) == (DIM, DIM, 0)
    # A = 0: the block of B vanishes, and nothing is left to fit either.
    model = family(down=0.0)
    nearly = FastWeights(model.down.at[0, 0].set(1e-6), model.up, model.slow, normalised=False)
    result = rank(nearly, context)
    assert (result.rank, result.query_rank, result.degeneracy) == (HIDDEN, DIM, DIM - HIDDEN)


def test_eigenvalues_and_directions_are_those_of_the_closed_form():
    context, model = regression((4,), 1), family()
    result = rank(model, context)
    x = np.asarray(regression((24, 1), 2).x[:12, 0])
    rows = x @ np.asarray(model.jacobian(context))[:, :-DIM] / 12**0.5
    target = np.linalg.svd(rows)
    np.testing.assert_allclose(result.eigenvalues[:DIM], target[1][:DIM] ** 2, rtol=1e-6)
    assert result.eigenvalues[DIM:] == pytest.approx(0.0, abs=1e-10)
    projector = target[2][:DIM].T @ target[2][:DIM]
    np.testing.assert_allclose(result.basis.T @ result.basis, projector, atol=1e-7)
    weights = target[1][:DIM] ** 2
    assert result.participation == pytest.approx(weights.sum() ** 2 / (weights**2).sum(), rel=1e-6)
    assert result.converged
    assert 0 < result.memory < 2**20


def test_with_its_own_weights_a_map_loses_nothing():
    result = rank(family(down=1e-3), regression((4,), 1), weights=None)
    assert result.degeneracy == 0


def test_overlap_is_one_with_itself_and_zero_where_fast_weights_are_disjoint():
    model = family()
    # A = (1 0 0 0; 0 1 0 0): a context along e_1 is read by the first hidden unit alone, one along e_2 by the second.
    model = FastWeights(jnp.eye(HIDDEN, DIM), model.up, model.slow, normalised=False)
    item = RegressionPrompt(x=jnp.eye(2, DIM), y=jnp.ones(2))
    second = RegressionPrompt(x=jnp.eye(2, DIM)[::-1], y=jnp.ones(2))
    only_up = [rank(model, context, weights=lambda m: m.up) for context in (item, second)]
    assert only_up[0].overlap(only_up[0]) == pytest.approx(1.0)
    assert only_up[0].overlap(only_up[1]) == pytest.approx(0.0, abs=1e-10)
    with pytest.raises(InputError, match="a rank over 8 weights, got 16"):
        only_up[0].overlap(rank(model, item))


def test_a_singular_system_without_a_ridge_is_refused():
    with pytest.raises(InputError, match=r"ridge: expected a number > 0.*singular system, of rank 3 in 4 weights"):
        rank(family(), regression((4,), 1), queries=regression((6, 1), 2), solver=MapSolver(ridge=0.0))


def test_the_threshold_is_a_share():
    result = rank(family(), regression((4,), 1))
    first, second = result.eigenvalues[:2]
    assert [result.rank_above(share * second / first) for share in (1.01, 0.99)] == [1, 2]
    assert result.rank_above(THRESHOLD) == result.rank
    with pytest.raises(InputError, match="threshold: expected a number between 0 and 1, got 1"):
        result.rank_above(1)
    with pytest.raises(InputError, match=r"context_rank: threshold= is now ContextRank.rank_above\(threshold\)"):
        rank(family(), regression((4,), 1), threshold=0.1)
    assert diagnostics.context_rank is context_rank
    assert "degeneracy" in result._repr_html_()


def test_a_change_is_cut_in_the_metric_of_its_inputs():
    """Against Eckart and Young: the truncated decomposition of S^(1/2) dW, and what it leaves."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 5)) * np.array([3.0, 1.0, 0.3, 0.1, 0.01])
    covariance, change = jnp.asarray(root @ root.T), jnp.asarray(rng.normal(size=(5, 4)))
    factor = np.linalg.cholesky(covariance)  # any factor gives the same singular values
    left, singular, right = np.linalg.svd(factor.T @ change)
    np.testing.assert_allclose(metric_spectrum(change, covariance), singular**2, rtol=1e-9)
    for rank in range(5):
        cut = np.asarray(cut_in_metric(change, covariance, rank))
        np.testing.assert_allclose(factor.T @ cut, (left[:, :rank] * singular[:rank]) @ right[:rank], atol=1e-9)
        rest = change - cut
        assert np.trace(rest.T @ covariance @ rest) == pytest.approx(np.sum(singular[rank:] ** 2), abs=1e-9)
    plain = np.linalg.svd(change)
    naive = change - (plain[0][:, :1] * plain[1][:1]) @ plain[2][:1]
    assert np.trace(naive.T @ covariance @ naive) > 1.1 * np.sum(singular[1:] ** 2)


def test_directions_that_no_input_has_do_not_count():
    change, covariance = jnp.eye(3), jnp.diag(jnp.asarray([1.0, 0.0, 0.0]))
    np.testing.assert_allclose(metric_spectrum(change, covariance), [1, 0, 0], atol=1e-12)
    with pytest.raises(InputError, match="covariance: expected a matrix over the 3 inputs of the change"):
        metric_spectrum(change, covariance[:2, :2])
    with pytest.raises(InputError, match="rank: expected an integer"):
        cut_in_metric(change, covariance, -1)
