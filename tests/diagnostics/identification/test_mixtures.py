"""The weight of one predictor in the mixture nearest to a network, on mixtures of known weight."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab import algorithms, tasks
from icllab.algorithms.estimators import NearestNeighbours
from icllab.core.errors import InputError
from icllab.core.protocols import AbstractPredictor
from icllab.diagnostics.identification.mixtures import mixture_weight
from icllab.examination.sections.algorithm import ScalarDescentPlusPlus
from icllab.tasks import WeightPool

TASK = tasks.LinearRegression.convention("raventos", dim=2, length=4)
POOLED = eqx.tree_at(lambda t: t.weights, TASK, WeightPool.init(TASK.weights, 3, 2, key=jax.random.key(0)))
RIDGE, DMMSE = algorithms.bayes_optimal(TASK), algorithms.bayes_optimal(POOLED)


class Mixed(AbstractPredictor):
    """A part of dMMSE, the rest of ridge, and a multiple of the nearest neighbour's answer."""

    share: float = eqx.field(static=True)
    other: float = eqx.field(static=True, default=0.0)

    def __call__(self, prompt):
        return self.share * DMMSE(prompt) + (1 - self.share) * RIDGE(prompt) + self.other * NearestNeighbours(1)(prompt)


def weight(network, first=DMMSE, second=RIDGE):
    return mixture_weight(network, first, second, POOLED, key=jax.random.key(1), prompts=256)


@pytest.mark.parametrize("share", [-0.5, 0.0, 0.25, 1.0])
def test_a_mixture_has_its_weight_and_the_distances_of_a_line(share):
    found = weight(Mixed(share))
    assert np.isclose(found.mixture_weight, share, atol=1e-5)
    assert found.mixture_weight_error < 1e-5
    between = float(found.distance_between)
    assert np.allclose(
        [found.distance_to_first, found.distance_to_second], between * np.array([(1 - share) ** 2, share**2])
    )
    odds = np.log(share / (1 - share)) if 0 < share < 1 else np.nan
    assert np.isclose(found.log_odds, odds, atol=1e-4, equal_nan=True)


def test_the_two_formulas_of_the_weight_agree_and_exchanged_ends_give_the_rest():
    found, exchanged = weight(Mixed(0.3, 0.4)), weight(Mixed(0.3, 0.4), RIDGE, DMMSE)
    first, second, between = (float(found[f"distance_{name}"]) for name in ("to_first", "to_second", "between"))
    assert np.isclose(found.mixture_weight, (1 - (first - second) / between) / 2, atol=1e-5)
    assert np.isclose(found.mixture_weight + exchanged.mixture_weight, 1, atol=1e-5)


def test_the_error_of_the_weight_is_that_of_keys():
    network = Mixed(0.3, 0.4)
    parts = [mixture_weight(network, DMMSE, RIDGE, POOLED, key=jax.random.key(i), prompts=256) for i in range(24)]
    spread = np.std([float(part.mixture_weight) for part in parts], ddof=1)
    assert 0.6 < spread / np.mean([float(part.mixture_weight_error) for part in parts]) < 1.6


def test_equal_ends_are_refused():
    with pytest.raises(InputError, match="a predictor that differs from the second"):
        weight(RIDGE, RIDGE, RIDGE)


def test_gd_plus_plus_of_scalars_without_contraction_is_descent():
    prompt = TASK.sample(key=jax.random.key(2))
    plain = algorithms.GradientDescent(0.4, layers=2, dim=2, normalised=True, half=True)
    assert np.allclose(
        ScalarDescentPlusPlus(jnp.asarray(0.4), jnp.asarray(0.0), 2, 2)(prompt), plain(prompt), atol=1e-5
    )
    contracted = ScalarDescentPlusPlus(jnp.asarray(0.4), jnp.asarray(0.3), 2, 2)(prompt)
    assert np.max(np.abs(contracted - plain(prompt))) > 1e-4
