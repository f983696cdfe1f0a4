"""Predictors of pools of chains against Bayes' rule written out, by enumeration and by loops over tokens."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.algorithms import DirichletCounts, PoolPosterior, markov_strategies
from icllab.core.errors import InputError
from icllab.core.prompt import TokenPrompt
from icllab.tasks import MarkovPool


def probabilities(predictor, tokens):
    with jax.enable_x64(True):
        return np.exp(np.asarray(predictor(TokenPrompt(jnp.asarray(tokens)))))


def pool_of(chains, size, contexts, seed=0):
    return np.random.default_rng(seed).dirichlet(np.full(size, 0.6), (chains, contexts))


def probability(rows, tokens):
    """Probability of a sequence under a stationary chain."""
    if len(rows) == 1:
        return np.prod(rows[0][list(tokens)])
    start = np.linalg.matrix_power(rows, 4096)[0]
    return start[tokens[0]] * np.prod([rows[a, b] for a, b in itertools.pairwise(tokens)])


@pytest.mark.parametrize("contexts", [1, 3])
def test_the_posterior_is_a_ratio_of_probabilities_of_sequences(contexts):
    """P(b | x) = sum_k P_k(x b) / sum_k P_k(x), with nothing else known, at every position."""
    pool = pool_of(4, 3, contexts)
    with jax.enable_x64(True):
        predictor = PoolPosterior(jnp.asarray(pool))
    tokens = [2, 0, 0, 1, 2, 1, 0]
    answers = probabilities(predictor, tokens)
    for i in range(len(tokens) - 1):
        seen = tokens[: i + 1]
        below = sum(probability(rows, seen) for rows in pool)
        ratios = [sum(probability(rows, [*seen, b]) for rows in pool) / below for b in range(3)]
        np.testing.assert_allclose(answers[i], ratios, rtol=1e-8)


def test_unigrams_of_a_pool_know_stationary_distributions_alone():
    with jax.enable_x64(True):
        task = MarkovPool(3, 6, 1, 1.0, jnp.asarray(pool_of(4, 3, 3)))
        predictor = PoolPosterior.unigrams(task)
    urns = np.stack([np.linalg.matrix_power(rows, 4096)[:1] for rows in pool_of(4, 3, 3)])
    tokens = [2, 0, 0, 1, 2, 1]
    answers = probabilities(predictor, tokens)
    for i in range(5):
        weights = np.array([probability(urn, tokens[: i + 1]) for urn in urns])
        np.testing.assert_allclose(answers[i], weights @ urns[:, 0] / weights.sum(), rtol=1e-8)
    # The order of what is seen does not matter to it, and does to bigrams.
    other = [0, 2, 1, 0, 2, 1]
    np.testing.assert_allclose(probabilities(predictor, other)[4], answers[4], rtol=1e-10)
    bigrams = PoolPosterior.bigrams(task)
    assert np.abs(probabilities(bigrams, other)[4] - probabilities(bigrams, tokens)[4]).max() > 0.01


@pytest.mark.parametrize("order", [0, 1])
def test_counts_with_the_prior_by_a_loop(order):
    tokens, prior = [1, 1, 0, 2, 1, 0, 1, 0, 0], 0.7
    with jax.enable_x64(True):
        answers = probabilities(DirichletCounts(prior, 3, order), tokens)
    for i in range(len(tokens) - 1):
        counts = np.zeros(3)
        for m in range(i + 1):
            if order == 0 or (m and tokens[m - 1] == tokens[i]):
                counts[tokens[m]] += 1
        np.testing.assert_allclose(answers[i], (counts + prior) / (counts.sum() + 3 * prior), rtol=1e-6)


def test_a_large_pool_of_urns_is_the_prior(getkey):
    """Of order 1 it is not: the first token is of the stationary distribution, which counts do not use."""
    task = MarkovPool.init(chains=10_000, vocabulary=2, tokens=6, order=0, concentration=1.5, key=getkey())
    strategies = markov_strategies(task)
    memorised, counted = (probabilities(strategies[f"Uni-{kind}"], [0, 1, 1, 1, 0, 0]) for kind in "MG")
    np.testing.assert_allclose(memorised, counted, atol=0.02)


def test_which_strategies_a_task_has():
    pools = {order: jnp.full((2, 2**order, 2), 0.5) for order in (0, 1)}
    assert set(markov_strategies(MarkovPool(2, 6))) == {"uniform", "Uni-G", "Bi-G"}
    assert set(markov_strategies(MarkovPool(2, 6, 0))) == {"uniform", "Uni-G"}
    assert set(markov_strategies(MarkovPool(2, 6, 0, 1.0, pools[0]))) == {"uniform", "Uni-M", "Uni-G"}
    strategies = markov_strategies(MarkovPool(2, 6, 1, 1.0, pools[1]), unigram_concentration=3.0)
    assert set(strategies) == {"uniform", "Uni-M", "Uni-G", "Bi-M", "Bi-G"}
    assert (float(strategies["Uni-G"].concentration), float(strategies["Bi-G"].concentration)) == (3.0, 1.0)


def test_probabilities_that_float32_cannot_hold(getkey):
    """A thousand tokens have likelihoods of e^-1000; chains that cannot have made them get no weight."""
    pool = jnp.asarray([[[1.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]])
    tokens = np.asarray(jax.random.randint(getkey(), (1000,), 0, 2))
    np.testing.assert_allclose(np.exp(PoolPosterior(pool)(TokenPrompt(jnp.asarray(tokens))))[-1], [0.5, 0.5], rtol=1e-5)


def test_no_strategy_is_better_than_the_posterior_on_the_pool(getkey):
    task = MarkovPool.init(chains=5, vocabulary=3, tokens=40, key=getkey())
    prompts = task.sample_many(600, key=getkey())

    def losses(predictor):
        return jax.jit(jax.vmap(lambda prompt: jnp.mean(task.loss(predictor(prompt), prompt))))(prompts)

    rows = {name: np.asarray(losses(predictor)) for name, predictor in markov_strategies(task).items()}
    np.testing.assert_allclose(rows["uniform"], np.log(3), rtol=1e-5)
    for name in ("uniform", "Uni-M", "Uni-G", "Bi-G"):
        gap = rows[name] - rows["Bi-M"]
        assert gap.mean() > 4.5 * gap.std() / np.sqrt(len(gap))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PoolPosterior(jnp.full((2, 2, 3), 1 / 3)), "pool: expected transitions [K, S, S], or [K, 1, S]"),
        (lambda: PoolPosterior.bigrams(MarkovPool(3, 5)), "task.pool: expected a pool of chains"),
        (lambda: DirichletCounts(0.0, 3, 1), "concentration: expected a finite number > 0, got 0.0"),
        (lambda: DirichletCounts(1.0, 3, 2), "order: expected an integer from 0 to 1, got 2"),
        (lambda: DirichletCounts(1.0, 3, 0)(TokenPrompt(jnp.array([3, 0]))), "tokens at 0: expected an id from 0 to 2"),
    ],
)
def test_what_is_refused(build, message):
    with pytest.raises(InputError) as error:
        build()
    assert message in str(error.value)


def test_a_token_of_no_vocabulary_answers_nan_from_there_on():
    tokens = jnp.array([0, 1, 7, 1, 0])
    for predictor in (DirichletCounts(1.0, 3, 1), PoolPosterior(jnp.full((1, 3, 3), 1 / 3))):
        answers = np.asarray(jax.jit(lambda t, p=predictor: p(TokenPrompt(t)))(tokens))
        assert np.isfinite(answers[:2]).all()
        assert np.isnan(answers[2:]).all()
