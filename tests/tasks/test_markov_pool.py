"""Pools of chains: which chain a sequence is of, and how it is drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.tasks import MarkovPool

DRAWS = 20_000


def draws_of(task, key, count=DRAWS):
    return np.asarray(jax.jit(lambda k: task.sample_many(count, key=k).tokens)(key))


def test_sequences_of_a_pool_have_the_probabilities_of_its_chains(getkey):
    """Frequencies of all sequences of three tokens are the mean over the chains of pi_a T_ab T_bc."""
    task = MarkovPool.init(chains=2, vocabulary=3, tokens=3, concentration=0.7, key=getkey())
    rows = np.asarray(task.pool, float)
    law = np.zeros((3, 3, 3))
    for matrix in rows:
        values, vectors = np.linalg.eig(matrix.T)
        start = np.real(vectors[:, np.argmax(values.real)])
        law += np.einsum("a,ab,bc->abc", start / start.sum(), matrix, matrix) / 2
    tokens = draws_of(task, getkey())
    counts = np.bincount(np.ravel_multi_index(tokens.T, (3, 3, 3)), minlength=27)
    errors = np.sqrt(DRAWS * law.ravel() * (1 - law.ravel()))
    assert np.all(np.abs(counts - DRAWS * law.ravel()) < 4.5 * errors + 1)
    # Chains that differ: the mean chain would have other sequences.
    assert np.abs(rows[0] - rows[1]).max() > 0.2


def test_fresh_urns_are_exchangeable_and_dirichlet(getkey):
    """Of order 0, P(x_0 = x_1) = (1 + a) / (1 + S a), whatever the two positions."""
    task = MarkovPool(3, 8, 0, 0.5)
    tokens = draws_of(task, getkey())
    for pair in ((0, 1), (0, 7), (3, 4)):
        equal = np.mean(tokens[:, pair[0]] == tokens[:, pair[1]])
        assert abs(equal - 1.5 / 2.5) < 4.5 * np.sqrt(0.24 / DRAWS)


def test_rows_of_fresh_chains_are_dirichlet(getkey):
    """E T_aa^2 = (1 + a) / (S (1 + S a)): a row for each state, drawn independently."""
    task = MarkovPool(3, 4, concentration=2.0)
    rows = np.asarray(jax.vmap(lambda k: task.chain(key=k))(jax.random.split(getkey(), DRAWS)))
    assert rows.shape == (DRAWS, 3, 3)
    np.testing.assert_allclose(rows.sum(axis=2), 1, atol=1e-5)
    np.testing.assert_allclose(np.mean(rows**2, axis=0), 3 / (3 * 7), atol=4.5 * 0.12 / np.sqrt(DRAWS))
    assert np.all(np.abs(np.corrcoef(rows[:, :, 0].T) - np.eye(3)) < 4.5 / np.sqrt(DRAWS))


def test_every_chain_of_the_pool_comes(getkey):
    pool = jnp.eye(3)[:, None]
    tokens = draws_of(MarkovPool(3, 2, 0, 1.0, pool), getkey(), count=3000)
    assert np.all(tokens[:, 0] == tokens[:, 1])
    assert np.all(np.abs(np.bincount(tokens[:, 0]) - 1000) < 4.5 * np.sqrt(3000 * 2 / 9))


def test_the_pool_is_of_the_key_and_fresh_leaves_it(getkey):
    keys = [getkey(), getkey()]
    pools = [MarkovPool.init(chains=4, vocabulary=3, tokens=5, order=0, key=key).pool for key in (*keys, keys[0])]
    assert pools[0].shape == (4, 1, 3)
    np.testing.assert_array_equal(pools[0], pools[2])
    assert not np.allclose(pools[0], pools[1])
    assert len(np.unique(np.round(np.asarray(pools[0][:, 0, 0]), 5))) == 4
    task = MarkovPool(3, 5, 0, 0.3, pools[0])
    assert task.fresh().pool is None
    assert (task.fresh().order, float(task.fresh().concentration)) == (0, pytest.approx(0.3))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MarkovPool(1, 5), "vocabulary: expected an integer of at least 2, got 1"),
        (lambda: MarkovPool(3, 5, 2), "order: expected an integer from 0 to 1, got 2"),
        (lambda: MarkovPool(3, 5, 1, 0.0), "concentration: expected a finite number > 0, got 0.0"),
        (
            lambda: MarkovPool(3, 5, 0, 1.0, jnp.full((2, 3, 3), 1 / 3)),
            "pool: expected transitions [K, 1, 3] of at least one chain, got (2, 3, 3)",
        ),
        (
            lambda: MarkovPool(2, 5, 1, 1.0, jnp.ones((1, 2, 2))),
            "pool: expected rows of probabilities that sum to 1, got 'sums off by 1'",
        ),
        (
            lambda: MarkovPool.init(chains=0, vocabulary=2, tokens=3, key=jax.random.key(0)),
            "chains: expected an integer of at least 1, got 0",
        ),
    ],
)
def test_what_is_refused(build, message):
    with pytest.raises(InputError) as error:
        build()
    assert message in str(error.value)
