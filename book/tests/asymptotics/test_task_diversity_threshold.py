"""What is particular to this claim: its statistics, its check on synthetic data, and its measurement."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.asymptotics.task_diversity_threshold import claim
from icllab.algorithms import DiscreteMMSE
from icllab.lab import registry
from icllab.lab.checks import Outcome
from icllab.tasks import LinearRegression

TASKS = np.array([2, 4, 8, 16, 64])
STEPS = np.array([0, 500, 1000, 2000, 4000, 8000])


def placed(logistic, seeds=10, noise=0.02, error=(2.0, 0.3, 0.2, 0.12, 0.06, 0.03), other=1.5):
    """Results in which the network is at the relative distance ``logistic(log2 k, step)``, off the line by ``error``.

    Distances follow from it: (1 - p)^2 S + e from dMMSE and p^2 S + e from ridge.
    """
    rng = np.random.default_rng(0)
    x, t = np.log2(TASKS)[:, None, None], STEPS[None, :, None]
    shape = (len(TASKS), len(STEPS), seeds)
    relative = np.broadcast_to(logistic(x, t), shape) + noise * rng.normal(size=shape)
    scale = np.broadcast_to((2.0 / TASKS)[:, None], (len(TASKS), seeds))
    s, e = scale[:, None, :], np.asarray(error)[None, :, None] * np.exp(noise * rng.normal(size=shape))
    distance = np.stack([(1 - relative) ** 2 * s + e, relative**2 * s + e, other * np.ones(shape)])[None, None]
    dims = ("dim", "layers", "predictor", "tasks", "step", "seed")
    scales = (("dim", "layers", "tasks", "seed"), scale[None, None])
    return claim.theory(
        xr.Dataset(
            {
                "fresh_distance": (dims, distance),
                "pool_distance": (dims, distance),
                "fresh_scale": scales,
                "pool_scale": scales,
            },
            coords={
                "dim": [4],
                "layers": [2],
                "predictor": list(claim.PREDICTORS),
                "tasks": TASKS,
                "step": STEPS,
                "seed": np.arange(seeds),
            },
        )
    )


def falls_at(end, slope=0.5):
    """The distance falls through 1/2 at log2 k = ``end`` at the last step, and ``slope`` lower for half the steps."""

    def logistic(x, t):
        middle = end + slope * np.log2(np.maximum(t, 1) / STEPS[-1])
        return 1 / (1 + np.exp(2.0 * (x - middle)))

    return logistic


outcomes, failing, _ = judged(claim.check)


def test_it_holds_where_all_is_as_claimed():
    assert set(outcomes(placed(falls_at(3.0))).values()) == {Outcome.HOLDS}


def test_the_relative_distance_is_what_the_distances_were_made_of():
    relative = placed(falls_at(3.0), noise=0.0)["fresh_relative_distance"].squeeze().isel(seed=0)
    assert np.allclose(relative.transpose("tasks", "step"), falls_at(3.0)(np.log2(TASKS)[:, None], STEPS[None]))


def test_it_fails_where_the_network_answers_pools_of_all_sizes_as_ridge_does():
    found = failing(placed(lambda x, t: 0.05 + 0 * x * t))
    assert {"few_on_fresh[dim=4,tasks=2]", "few_on_pool[dim=4,tasks=2]"} <= set(found)


def test_it_fails_where_the_network_is_only_nearer_to_dmmse_of_few_tasks():
    assert failing(placed(lambda x, t: 0.85 * falls_at(3.0)(x, t))) == ["few_on_pool[dim=4,tasks=2]"]


def test_it_fails_where_the_network_memorises_pools_of_all_sizes():
    found = failing(placed(lambda x, t: 0.95 + 0 * x * t))
    assert "many_on_fresh[dim=4,tasks=64]" in found
    assert "not_bayesian[dim=4]" in found


def test_it_fails_where_the_threshold_falls_in_training():
    found = failing(placed(falls_at(3.0, slope=-0.5)))
    assert {f"threshold_grows_{kind}[dim=4]" for kind in ("fresh", "pool")} <= set(found)


def test_it_fails_where_the_network_has_not_learned():
    found = failing(placed(falls_at(3.0), error=(0.3,) * 6))
    assert "learned[dim=4,tasks=64]" in found


def test_it_fails_where_the_network_is_at_another_pool():
    assert "own_pool[dim=4,tasks=2]" in failing(placed(falls_at(3.0), other=0.001))


TRANSIENT = ["leaves_ridge[dim=4]", "nears_dmmse[dim=4]"]


def test_it_fails_where_the_distance_to_ridge_falls_to_the_end():
    """A threshold that stays, and an error that falls."""
    assert TRANSIENT[0] in failing(placed(falls_at(3.0, slope=0.0)))


def test_it_fails_where_the_network_turns_back_to_ridge():
    """With pools of every size it goes from dMMSE towards ridge, not the other way."""
    assert set(TRANSIENT) <= set(failing(placed(lambda x, t: 0.9 - 0.05 * np.log2(t + 1) + 0 * x, error=(0.03,) * 6)))


def test_the_crossing_is_interpolated_and_unknown_outside_the_grid():
    relative = np.array([0.9, 0.8, 0.6, 0.2, 0.1])[:, None]
    assert claim.crossing(TASKS, relative) == pytest.approx(3.25 * np.log(2))
    assert np.isnan(claim.crossing(TASKS, relative - 0.5))
    assert np.isnan(claim.crossing(TASKS, relative + 0.5))


@pytest.mark.parametrize("end", [7.0, 2.5])
def test_a_threshold_that_leaves_the_grid_is_not_said_to_grow(end):
    """At the end of training it is above 64 tasks, or after a quarter of it below 2."""
    found = outcomes(placed(falls_at(end, slope=1.0)))
    assert found["threshold_grows_pool[dim=4]"] is Outcome.UNDECIDED


@pytest.fixture(scope="module")
def measured():
    """One tiny cell: the claim's own, with the pool and another exchanged, and without training."""
    experiment = registry.load("asymptotics/task_diversity_threshold")
    experiment = experiment.with_fixed({"prompts": [64], "batch": [4], "width": [4], "longest": [8]})
    grid = experiment.grid("smoke", {"layers": [1], "tasks": [3], "step": [0, 10]}, seeds=2)
    point, key = experiment.point(next(grid.cells()), grid.traced), jax.random.key(5)
    return [experiment.measure(point, key=key, **changes) for changes in ({}, {"foreign": True}, {"updates": 1})]


@pytest.mark.slow
def test_a_network_is_measured_against_its_own_pool_and_ridge(measured):
    for kind in ("fresh", "pool"):
        dims, distance = measured[0][f"{kind}_distance"]
        scale = measured[0][f"{kind}_scale"][1]
        assert dims == ("seed", "predictor", "step")
        assert distance.shape == (2, 3, 2)
        # Three predictors are corners of a triangle in the space of all answers.
        dmmse, ridge = np.sqrt(distance[:, 0]), np.sqrt(distance[:, 1])
        assert (np.abs(dmmse - ridge) <= np.sqrt(scale)[:, None]).all()
        assert (dmmse + ridge >= np.sqrt(scale)[:, None]).all()
        assert (distance[..., 0] != distance[..., 1]).all()


@pytest.mark.slow
def test_under_the_controls_only_the_pool_of_dmmse_or_only_the_training_differs(measured):
    own, foreign, untrained = ({name: values for name, (_, values) in one.items()} for one in measured)
    for kind in ("fresh", "pool"):
        name = f"{kind}_distance"
        np.testing.assert_array_equal(foreign[name][:, 1], own[name][:, 1])  # ridge
        np.testing.assert_array_equal(foreign[name][:, [0, 2]], own[name][:, [2, 0]])
        assert (foreign[f"{kind}_scale"] != own[f"{kind}_scale"]).all()
        np.testing.assert_array_equal(untrained[name][..., 0], own[name][..., 0])
        np.testing.assert_allclose(untrained[name][..., 1], untrained[name][..., 0], rtol=1e-5)  # a rate of zero


def test_a_repeated_pool_is_the_same_prior(getkey):
    """Pools are repeated to one length, so that all are one compiled program: dMMSE does not see it."""
    task = LinearRegression.convention("raventos", dim=3, length=5)
    pool = jax.random.normal(getkey(), (4, 3))
    prompt = task.sample(key=getkey())
    once, often = (DiscreteMMSE(jnp.tile(pool, (times, 1)), 0.25)(prompt) for times in (1, 8))
    assert np.allclose(once, often, atol=1e-5)
