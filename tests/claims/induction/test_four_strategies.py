"""What is particular to this claim: mixtures that are planted are recovered, and what is outside of them is seen."""

from types import SimpleNamespace

import numpy as np
import pytest

from icllab.algorithms import PoolPosterior
from icllab.claims.induction import _chains
from icllab.claims.induction.four_strategies import measure

NAMES = ("Uni-M", "Bi-M", "Uni-G", "Bi-G")
POINT = SimpleNamespace(states=3, tokens=40, concentration=0.5, tasks=8)


@pytest.fixture(scope="module")
def world():
    """Sequences of a pool, and the log probabilities of the four strategies on them."""
    import jax

    of_pool, of_prompts = jax.random.split(jax.random.key(3))
    task = measure.pool_of(POINT, key=of_pool)
    prompts = _chains.sample(task, 120, key=of_prompts)
    laws = measure.strategies_of(POINT, task)
    return prompts, np.stack([_chains.log_probabilities(laws[name], prompts) for name in NAMES])


@pytest.mark.parametrize("weights", [(0.1, 0.5, 0.15, 0.25), (0.0, 0.9, 0.0, 0.1), (0.4, 0.0, 0.0, 0.6)])
def test_a_planted_mixture_is_recovered_and_leaves_nothing(world, weights):
    _, references = world
    answers = np.log(np.tensordot(weights, np.exp(references), 1)).astype(np.float32)
    fitted, each, mixture = measure.fit(references, answers)
    np.testing.assert_allclose(fitted, weights, atol=0.02)
    assert mixture < 1e-4
    assert each.min() > 20 * mixture


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_alone_is_all_of_the_mixture(world, name):
    _, references = world
    index = NAMES.index(name)
    fitted, each, mixture = measure.fit(references, references[index])
    assert fitted[index] > 0.97
    assert each[index] == pytest.approx(0, abs=1e-5)
    assert each.argmin() == index
    assert mixture < 1e-3


def test_a_predictor_that_is_no_mixture_is_left_unexplained(world, getkey):
    """Bigrams of another pool: most of the divergence from the best strategy stays."""
    prompts, references = world
    outside = _chains.log_probabilities(PoolPosterior.bigrams(measure.pool_of(POINT, key=getkey())), prompts)
    _, each, mixture = measure.fit(references, outside)
    assert mixture > 0.05
    assert mixture > 0.5 * each.min()


def test_weights_are_of_one_half_and_divergences_of_the_other(world):
    _, references = world
    answers = np.concatenate([references[1, :60], references[3, 60:]])
    fitted, each, mixture = measure.fit(references, answers)
    assert fitted[1] > 0.97
    assert each[3] == pytest.approx(0, abs=1e-5)
    assert mixture == pytest.approx(each[1], rel=0.2)
