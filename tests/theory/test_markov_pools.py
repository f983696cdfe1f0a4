"""Expected losses of counts against the enumeration of all sequences, with predictors written out by loops."""

import itertools

import numpy as np
import pytest
from refusals import assert_refused
from scipy.special import digamma

from icllab.theory import markov_pools

CHAIN = np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [0.05, 0.55, 0.4]])
TOKENS = 6


def stationary(rows):
    return np.linalg.matrix_power(rows, 4096)[0]


def enumerated(rows, predict, tokens=TOKENS):
    """Expected losses of ``predict(seen) -> probabilities`` at every position, over all sequences of a chain."""
    losses = np.zeros(tokens - 1)
    for sequence in itertools.product(range(len(rows)), repeat=tokens):
        weight = stationary(rows)[sequence[0]] * np.prod([rows[a, b] for a, b in itertools.pairwise(sequence)])
        for i in range(tokens - 1):
            losses[i] -= weight * np.log(predict(sequence[: i + 1])[sequence[i + 1]])
    return losses


def unigrams(alpha, size=3):
    return lambda seen: (np.bincount(seen, minlength=size) + alpha) / (len(seen) + size * alpha)


def bigrams(alpha, size=3):
    def predict(seen):
        counts = np.array([sum(pair == (seen[-1], b) for pair in itertools.pairwise(seen)) for b in range(size)])
        return (counts + alpha) / (counts.sum() + size * alpha)

    return predict


@pytest.mark.parametrize("alpha", [0.3, 2.0])
def test_losses_of_counts_are_those_of_all_sequences(alpha):
    unigram = markov_pools.unigram_losses(CHAIN, tokens=TOKENS, concentration=alpha)
    np.testing.assert_allclose(unigram, enumerated(CHAIN, unigrams(alpha)), rtol=1e-10)
    bigram = markov_pools.bigram_losses(CHAIN, tokens=TOKENS, concentration=alpha)
    np.testing.assert_allclose(bigram, enumerated(CHAIN, bigrams(alpha)), rtol=1e-10)


def test_many_chains_at_once_are_each_of_them():
    chains = np.random.default_rng(0).dirichlet(np.ones(3), (2, 4, 3))
    for losses in (markov_pools.unigram_losses, markov_pools.bigram_losses):
        values = losses(chains, tokens=9, concentration=0.5)
        assert values.shape == (2, 4, 8)
        np.testing.assert_allclose(values[1, 2], losses(chains[1, 2], tokens=9, concentration=0.5), rtol=1e-12)


def test_long_sequences_tend_to_entropies():
    """Excess losses are (S - 1) / (2n) for unigrams of an urn and S (S - 1) / (2n) for bigrams, to leading order."""
    rate, entropy = markov_pools.entropy_rate(CHAIN), markov_pools.stationary_entropy(CHAIN)
    start = stationary(CHAIN)
    assert rate == pytest.approx(-start @ np.sum(CHAIN * np.log(CHAIN), axis=1), rel=1e-12)
    assert entropy == pytest.approx(-start @ np.log(start), rel=1e-12)
    assert rate < entropy < np.log(3)
    last = markov_pools.bigram_losses(CHAIN, tokens=1200, concentration=0.5)[-1]
    assert last - rate == pytest.approx(6 / 2 / 1199, rel=0.05)
    assert abs(markov_pools.unigram_losses(CHAIN, tokens=1200, concentration=0.5)[-1] - entropy) < 3e-3


def test_urns_are_chains_with_equal_rows():
    urn = np.tile([0.5, 0.3, 0.2], (3, 1))
    assert markov_pools.entropy_rate(urn) == pytest.approx(markov_pools.stationary_entropy(urn), rel=1e-12)
    unigram, bigram = (f(urn, tokens=60) for f in (markov_pools.unigram_losses, markov_pools.bigram_losses))
    assert np.all(bigram[5:] > unigram[5:])


@pytest.mark.parametrize("alpha", [0.4, 1.5])
def test_losses_on_fresh_urns_are_differences_of_entropies_of_their_sequences(alpha):
    """L_i = H(x_0 .. x_{i+1}) - H(x_0 .. x_i), by the probabilities of a Polya urn for all sequences."""
    entropies = []
    for length in range(1, TOKENS + 1):
        law = [
            np.prod([(sequence[:i].count(x) + alpha) / (i + 3 * alpha) for i, x in enumerate(sequence)])
            for sequence in itertools.product(range(3), repeat=length)
        ]
        entropies.append(-np.sum(law * np.log(law)))
    losses = markov_pools.urn_losses(states=3, concentration=alpha, tokens=TOKENS)
    np.testing.assert_allclose(losses, np.diff(entropies), rtol=1e-10)
    limit = digamma(3 * alpha + 1) - digamma(alpha + 1)
    late = markov_pools.urn_losses(states=3, concentration=alpha, tokens=2000)[-1]
    assert 0 < late - limit < 1.5e-3


def test_losses_on_fresh_urns_are_means_over_urns():
    rng = np.random.default_rng(1)
    urns = rng.dirichlet(np.full(3, 0.7), 3000)
    losses = markov_pools.unigram_losses(np.repeat(urns[:, None], 3, axis=1), tokens=12, concentration=0.7)
    exact = markov_pools.urn_losses(states=3, concentration=0.7, tokens=12)
    errors = losses.std(axis=0) / np.sqrt(3000)
    assert errors.max() < 0.01
    assert np.all(np.abs(losses.mean(axis=0) - exact) < 4.5 * errors)


def test_a_pool_of_urns_by_enumeration_on_itself_and_on_others():
    pool = np.array([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]])
    others = np.array([[0.1, 0.8, 0.1], [0.5, 0.5, 0.0], [0.3, 0.3, 0.4]])

    def predict(seen):
        weights = np.prod(pool[:, list(seen)], axis=1)
        return weights @ pool / weights.sum()

    for urns in (pool, others):
        wanted = np.mean([enumerated(np.tile(urn, (3, 1)), predict) for urn in urns], axis=0)
        values = markov_pools.urn_pool_losses(pool, tokens=TOKENS, urns=None if urns is pool else urns)
        np.testing.assert_allclose(values, wanted, rtol=1e-9)


def test_the_posterior_of_a_pool_exceeds_entropies_by_at_most_the_logarithm_of_its_size():
    """The bound is reached where urns are told apart, and sequences are long enough to do so."""
    pool = np.array([[0.98, 0.01, 0.01], [0.01, 0.98, 0.01], [0.01, 0.01, 0.98]])
    losses = markov_pools.urn_pool_losses(pool, tokens=9)
    entropy = np.mean(-np.sum(pool * np.log(pool), axis=1))
    excess, bound = losses.mean() - entropy, markov_pools.pool_excess_bound(chains=3, tokens=9)
    assert bound == pytest.approx(np.log(3) / 8)
    assert 0 < excess < bound
    # The first token is not predicted, and has told most of it: what it and the excess tell is ln 3 together.
    first = np.log(3) - entropy
    assert first + 8 * excess == pytest.approx(np.log(3), abs=1e-3)


def test_levels_of_fresh_chains_are_ordered_and_have_the_errors_they_state():
    law = {"states": 3, "concentration": 0.5, "tokens": 30, "unigram_concentration": 1.0}
    levels = [markov_pools.fresh_levels(**law, draws=60, seed=seed) for seed in range(25)]
    unigram, bigram = (np.array([getattr(level, name) for level in levels]) for name in ("unigram", "bigram"))
    assert np.all(bigram < unigram)
    assert np.all(unigram < np.log(3))
    assert unigram.std() == pytest.approx(np.mean([level.unigram_standard_error for level in levels]), rel=0.5)
    assert bigram.std() == pytest.approx(np.mean([level.bigram_standard_error for level in levels]), rel=0.5)
    assert levels[0] == markov_pools.fresh_levels(**law, draws=60)


def test_doubly_stochastic_chains_have_no_unigrams():
    rows = np.array([[0.1, 0.6, 0.3], [0.3, 0.1, 0.6], [0.6, 0.3, 0.1]])
    assert markov_pools.stationary_entropy(rows) == pytest.approx(np.log(3))
    assert markov_pools.unigram_losses(rows, tokens=40).mean() > np.log(3)
    assert markov_pools.bigram_losses(rows, tokens=40).mean() < np.log(3)


def test_what_is_refused():
    assert_refused(lambda: markov_pools.entropy_rate(np.eye(2)), "transition: expected chains with one stationary")
    assert_refused(lambda: markov_pools.entropy_rate(np.ones((2, 2))), "transition: expected rows of probabilities")
    assert_refused(lambda: markov_pools.entropy_rate(np.full((2, 3), 1 / 3)), "transition: expected square matrices")
    assert_refused(lambda: markov_pools.unigram_losses(CHAIN, tokens=1), "tokens: expected an integer of at least 2")
    assert_refused(lambda: markov_pools.bigram_losses(CHAIN, tokens=3, concentration=0.0), "concentration: expected a")
    assert_refused(lambda: markov_pools.urn_pool_losses([[1.0, 0.0]], tokens=3), "pool: expected positive probabilit")
