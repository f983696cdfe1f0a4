"""Exact expected losses of counts against predictors on simulated sequences."""

import numpy as np
import pytest

from icllab.algorithms import DirichletCounts, PoolPosterior
from icllab.diagnostics import per_length
from icllab.tasks import MarkovPool
from icllab.theory import markov_pools

TOKENS, PROMPTS = 12, 3000


def gaps(predictors, exact, task, key):
    """Losses less their expectation, in standard errors, by predictor and position; those without error are equal."""
    losses = per_length(predictors, task, key=key, prompts=PROMPTS, block=PROMPTS)
    assert float(losses.standard_error.max()) < 0.03
    values = np.array([exact[name] for name in predictors])
    sure = (losses.standard_error < 1e-6).values
    np.testing.assert_allclose(losses.loss.values[sure], values[sure], rtol=1e-5)
    return ((losses.loss - values) / losses.standard_error).values[~sure]


def test_counts_on_the_chains_of_a_pool(getkey):
    task = MarkovPool.init(chains=4, vocabulary=3, tokens=TOKENS, concentration=0.6, key=getkey())
    predictors = {"unigram": DirichletCounts(1.8, 3, 0), "bigram": DirichletCounts(0.6, 3, 1)}
    rows = np.asarray(task.pool, float)
    exact = {
        "unigram": markov_pools.unigram_losses(rows, tokens=TOKENS, concentration=1.8).mean(axis=0),
        "bigram": markov_pools.bigram_losses(rows, tokens=TOKENS, concentration=0.6).mean(axis=0),
    }
    assert np.abs(gaps(predictors, exact, task, getkey())).max() < 4.5


@pytest.mark.parametrize("fresh", [True, False])
def test_urns_of_a_pool_and_fresh_ones(fresh, getkey):
    task = MarkovPool.init(chains=3, vocabulary=3, tokens=TOKENS, order=0, concentration=0.6, key=getkey())
    if fresh:
        predictors = {"counts": DirichletCounts(0.6, 3, 0)}
        exact = {"counts": markov_pools.urn_losses(states=3, concentration=0.6, tokens=TOKENS)}
        task = task.fresh()
    else:
        predictors = {"posterior": PoolPosterior.unigrams(task)}
        exact = {"posterior": markov_pools.urn_pool_losses(np.asarray(task.pool[:, 0], float), tokens=TOKENS)}
    assert np.abs(gaps(predictors, exact, task, getkey())).max() < 4.5


def test_the_posterior_of_a_pool_of_chains_is_within_its_bound(getkey):
    task = MarkovPool.init(chains=3, vocabulary=3, tokens=40, concentration=0.6, key=getkey())
    losses = per_length({"posterior": PoolPosterior.bigrams(task)}, task, key=getkey(), prompts=1500, block=1500)
    rate = np.mean(markov_pools.entropy_rate(np.asarray(task.pool, float)))
    excess, error = (float(losses[name].item()) for name in ("loss_mean", "loss_mean_error"))
    excess -= rate
    bound = markov_pools.pool_excess_bound(chains=3, tokens=40)
    assert -3 * error < excess < bound + 3 * error
    assert error < bound / 3
