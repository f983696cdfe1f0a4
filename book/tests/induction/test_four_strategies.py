"""What is particular to this claim: planted mixtures are recovered, and its check on made-up weights."""

from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.induction import _chains
from iclbook.claims.induction.four_strategies import claim, measure
from icllab.algorithms import PoolPosterior
from icllab.lab.checks import Outcome

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


TASKS, STEPS = (4, 16, 128), (25, 100, 800)


def made_up(*, edges=(6.0, 12.0, 16.0), bigram=(0.05, 0.6, 0.95), left=0.8, outside=0.1):
    """Weights whose boundary is at ``edges``, with those of bigrams and what is left, along three steps."""
    rng = np.random.default_rng(0)
    axes = {"tasks": list(TASKS), "step": list(STEPS), "seed": np.arange(8)}
    noise = xr.DataArray(0.01 * rng.normal(size=(3, 3, 8)), coords=axes)
    edge, pairs = (xr.DataArray(list(x), coords={"step": list(STEPS)}) for x in (edges, bigram))
    kept = (0.5 - 0.3 * np.log(noise.tasks / edge)).clip(0.02, 0.98) + 0.0 * noise
    kept = (kept + noise).clip(0.0, 1.0)
    parts = [kept * (1 - pairs), (1 - kept) * (1 - pairs), kept * pairs, (1 - kept) * pairs]
    weight = xr.concat(parts, xr.DataArray(list(claim.NAMES), dims="predictor", name="predictor"))
    source = xr.DataArray([1.0, 1.0], coords={"distribution": ["pool", "fresh"]})
    extra = xr.DataArray([0.0, outside], coords={"distribution": ["pool", "fresh"]})
    each = xr.full_like(weight, 0.05) + 0.01 * np.abs(noise)
    return xr.Dataset(
        {
            "mixture_weight": weight * source,
            "predictor_divergence": (each + extra) * source,
            "mixture_divergence": left * (each.min("predictor") + extra / left),
        }
    )


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"edges": (1.0, 1.0, 2.0)}, {"memorised", "boundary"}),
        ({"edges": (100.0, 100.0, 900.0)}, {"counted", "boundary"}),
        ({"edges": (12.0, 12.0, 40.0)}, {"boundary"}),
        ({"bigram": (0.8, 0.9, 0.95)}, {"unigrams"}),
        ({"bigram": (0.05, 0.1, 0.2)}, {"bigrams"}),
        ({"left": 0.2}, {"unexplained"}),
        ({"outside": 0.0}, {"outside"}),
    ],
)
def test_it_fails_where_one_thing_is_otherwise(changes, found):
    assert names(made_up(**changes)) == found


def test_the_boundary_is_where_both_weigh_equally_and_at_most_at_the_ends():
    edge = claim.boundary(made_up(edges=(1.0, 20.0, 900.0))).mean("seed")
    assert edge.sel(step=25) == pytest.approx(4)
    assert edge.sel(step=100) == pytest.approx(20, rel=0.3)
    assert edge.sel(step=800) == pytest.approx(128)
