"""Sequences are what they say, and the least loss is that of the best predictor."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.tasks import InContextCopying, MarkovChain, RepeatedTokens


def many(task, count, key):
    return np.asarray(jax.jit(lambda k: task.sample_many(count, key=k))(key).tokens)


def best_copier(task, tokens):
    """The probabilities of the next token for one who knows the distribution."""
    found = []
    for i in range(len(tokens) - 1):
        p = np.zeros(task.vocabulary)
        if i == 2 * task.pairs:
            p[tokens[list(tokens[:i:2]).index(tokens[i]) * 2 + 1]] = 1
        elif i == 2 * task.pairs - 1:
            p[tokens[:i:2]] = 1
        elif i % 2 == 0:
            p[task.items :] = 1
        else:
            p[: task.items] = 1
            p[tokens[:i:2]] = 0
        found.append(p / p.sum())
    return np.array(found)


def test_copying_has_the_least_loss_that_its_best_predictor_has(getkey):
    """For every sequence, since what cannot be foreseen is uniform."""
    task = InContextCopying(items=6, labels=3, pairs=4)
    for tokens in many(task, 50, getkey()):
        assert len(set(tokens[:8:2])) == 4
        assert tokens[8] in tokens[:8:2]
        p = best_copier(task, tokens)
        loss = -np.log(p[np.arange(9), tokens[1:]])
        np.testing.assert_allclose(loss, task.entropies(), atol=1e-12)


def test_copying_draws_items_labels_and_queries_alike(getkey):
    tokens = many(InContextCopying(items=6, labels=3, pairs=4), 6000, getkey())
    query = np.argmax(tokens[:, :8:2] == tokens[:, 8:9], axis=1)
    for values, kinds in ((tokens[:, 2], 6), (tokens[:, 3] - 6, 3), (query, 4)):
        wanted = 6000 / kinds
        assert np.sum((np.bincount(values, minlength=kinds) - wanted) ** 2 / wanted) < kinds + 4 * (2 * kinds) ** 0.5


def test_repeated_tokens(getkey):
    task = RepeatedTokens(vocabulary=5, period=4, repeats=3)
    tokens = many(task, 3000, getkey())
    np.testing.assert_array_equal(tokens[:, 4:], tokens[:, :-4])
    np.testing.assert_allclose(task.entropies(), np.log([5] * 3 + [1] * 8))
    counts = np.bincount(tokens[:, :4].reshape(-1), minlength=5)
    assert np.sum((counts - 2400) ** 2 / 2400) < 4 + 4 * 8**0.5


def test_a_chain_of_two_states_in_closed_form():
    """pi = (b, a)/(a + b) for the odds a and b of leaving, and the rate is the mean of their binary entropies."""
    a, b = 0.3, 0.05

    def entropy(p):
        return -p * np.log(p) - (1 - p) * np.log(1 - p)

    with jax.enable_x64(True):
        chain = MarkovChain(jnp.array([[1 - a, a], [b, 1 - b]]), 5)
        np.testing.assert_allclose(chain.stationary(), [b / (a + b), a / (a + b)], rtol=1e-13)
        assert chain.entropy_rate() == pytest.approx((b * entropy(a) + a * entropy(b)) / (a + b), rel=1e-13)
        np.testing.assert_allclose(chain.entropies(), [chain.entropy_rate()] * 4)


def test_probabilities_are_as_exact_as_they_are_given(getkey):
    """A matrix of NumPy without float64 in JAX: the rate in closed form to 1e-13; sequences are drawn all the same."""
    a, b = 0.3, 0.05
    entropy = [-(p * np.log(p) + (1 - p) * np.log1p(-p)) for p in (a, b)]
    chain = MarkovChain(np.array([[1 - a, a], [b, 1 - b]]), 5)
    assert chain.entropy_rate() == pytest.approx((b * entropy[0] + a * entropy[1]) / (a + b), rel=1e-13)
    tokens = many(chain, 2000, getkey())
    assert abs(np.mean(tokens[:, 0] == 1) - a / (a + b)) < 4 * np.sqrt(a * b / (a + b) ** 2 / 2000)
    drawn = MarkovChain.init(vocabulary=4, tokens=5, key=getkey()).transition
    np.testing.assert_allclose(np.sum(drawn, axis=1), 1, rtol=1e-15)


def test_a_cycle_is_foreseen_and_a_uniform_chain_is_not():
    assert MarkovChain(jnp.roll(jnp.eye(4), 1, axis=1), 3).entropy_rate() == 0
    assert MarkovChain(jnp.full((4, 4), 0.25), 3).entropy_rate() == pytest.approx(np.log(4))


def test_a_chain_is_drawn_from_its_law_from_the_first_token_on(getkey):
    """Pairs of tokens at the first and the last place against pi_a T_ab; the loss of who knows T against the rate."""
    chain = MarkovChain.init(vocabulary=3, tokens=6, concentration=0.7, key=getkey())
    tokens = many(chain, 8000, getkey())
    matrix = np.asarray(chain.transition, float)
    np.testing.assert_allclose(chain.stationary() @ matrix, chain.stationary(), atol=1e-6)
    wanted = 8000 * chain.stationary()[:, None] * matrix
    for at in (0, 4):
        counts = np.zeros((3, 3))
        np.add.at(counts, (tokens[:, at], tokens[:, at + 1]), 1)
        assert np.all(np.abs(counts - wanted) <= 4 * np.sqrt(wanted) + 1)
    loss = -np.log(matrix[tokens[:, :-1], tokens[:, 1:]]).mean(axis=1)
    error = loss.std(ddof=1) / len(loss) ** 0.5
    assert error < 0.01
    assert abs(loss.mean() - chain.entropy_rate()) < 4 * error


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: InContextCopying(3, 2, 4), "items: expected at least 4, one for each pair, got 3"),
        (lambda: InContextCopying(8, 1, 4), "labels: expected an integer of at least 2, got 1"),
        (lambda: RepeatedTokens(5, 4, 1), "repeats: expected an integer of at least 2, got 1"),
        (lambda: MarkovChain(jnp.ones((2, 2)), 4), "transition: expected rows of probabilities that sum to 1"),
        (lambda: MarkovChain(jnp.ones((1, 1)), 4), "transition: expected a square matrix of at least 2 states"),
        (
            lambda: MarkovChain(jnp.eye(2), 4),
            "transition: expected a chain with one stationary distribution, got 'several'",
        ),
        (lambda: MarkovChain.init(vocabulary=3, tokens=4, concentration=0.0, key=jax.random.key(0)), "concentration"),
    ],
)
def test_what_does_not_fit_is_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()
