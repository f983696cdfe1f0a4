"""What is particular to this claim: its check on made-up worlds, and of what its networks are measured."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr

from icllab import algorithms
from icllab.claims.singular.llc_along_training import claim, measure
from icllab.lab.checks import Outcome
from icllab.tasks import LinearRegression, WeightPool

STEPS = np.array([0, *np.unique(np.geomspace(1, 3000, 45).round())])
CHECKPOINTS = np.array([0, 60, 300, 800, 1500, 3000])
NBETA = np.array([20.0, 60.0, 180.0])


def made_up(rises=100.0, growth=1.0, cliff=700.0, scatter=1.0, last=None, warned=()):
    """A plateau and a fall; estimates that rise with step and temperature; distances that fall."""
    rng = np.random.default_rng(0)
    seeds = 10
    loss = np.where(cliff > STEPS, 3.0, 1.0) if cliff else 3 * (1 + STEPS) ** -0.2
    loss = loss * np.exp(0.02 * rng.normal(size=(seeds, len(STEPS)))) + 2 * (STEPS == 0)
    estimate = np.full((3, len(CHECKPOINTS), seeds), np.nan)
    estimate[1] = 10 + (rises * CHECKPOINTS / CHECKPOINTS[-1])[:, None]
    estimate[::2, -1] = estimate[1, -1] * np.array([[1 / 3], [3.0]]) ** growth
    estimate = estimate + scatter * rng.normal(size=estimate.shape)
    warnings = np.where(np.isnan(estimate), np.nan, 0.0)
    for at in warned:
        warnings[at] = 2
    ridge = np.exp(-CHECKPOINTS / 500.0)
    distance = np.stack([0.5 * ridge, ridge])[:, :, None] * np.exp(0.02 * rng.normal(size=(2, len(CHECKPOINTS), seeds)))
    dataset = xr.Dataset(
        {
            "held_out_loss": (("tasks", "seed", "step"), loss[None]),
            "fresh_distance": (("tasks", "predictor", "checkpoint", "seed"), distance[None]),
            "learning_coefficient": (("tasks", "nbeta", "checkpoint", "seed"), estimate[None]),
            "learning_coefficient_error": (
                ("tasks", "nbeta", "checkpoint", "seed"),
                np.where(np.isnan(estimate), np.nan, scatter)[None],
            ),
            "sampler_warnings": (("tasks", "nbeta", "checkpoint", "seed"), warnings[None]),
        },
        coords={
            "tasks": [8],
            "predictor": list(claim.RIVALS),
            "step": STEPS,
            "checkpoint": CHECKPOINTS,
            "nbeta": NBETA,
        },
    )
    return dataset if last is None else dataset.sel(step=slice(None, last))


def outcomes(dataset):
    return {finding.outcome for finding in claim.check(dataset)}


def failing(dataset):
    return {finding.id.split("[")[0] for finding in claim.check(dataset) if finding.outcome is Outcome.FAILS}


def test_it_holds_where_all_is_as_claimed():
    assert outcomes(made_up()) == {Outcome.HOLDS}


def test_what_is_read_off_the_same_data_is_no_finding():
    """Not the distance to ridge where it is least: of any curve that is above its minimum."""
    assert {finding.id.split("[")[0] for finding in claim.check(made_up())} == {
        "fall",
        "breaks",
        "covered",
        "rise",
        "growth",
    }


@pytest.mark.parametrize(("made", "what"), [({"rises": -9.0, "scatter": 0.1}, "rise"), ({"growth": -1.0}, "growth")])
def test_it_fails_where_a_number_goes_the_other_way(made, what):
    assert what in failing(made_up(**made))


@pytest.mark.parametrize("made", [{"cliff": None}, {"scatter": 60.0}])
def test_it_is_undecided_where_the_data_cannot_tell(made):
    """A loss that falls smoothly has no stage; estimates that scatter do not rise."""
    assert outcomes(made_up(**made)) == {Outcome.HOLDS, Outcome.UNDECIDED}


@pytest.mark.parametrize(("at", "what"), [((1, 2), "rise"), ((1, 3), "rise"), ((0, 5), "growth")])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_finding_on_estimates_that_warn_is_undecided_whatever_they_are(at, what, sign):
    """And one on others is not: the rise over the break at 700 is that from step 300 to 800."""
    dataset = made_up(rises=100 * sign, growth=sign, scatter=0.1, warned=[at])
    undecided = [finding for finding in claim.check(dataset) if finding.outcome is Outcome.UNDECIDED]
    assert [finding.advice for finding in undecided] == ["2 warnings of these estimates"]
    assert undecided[0].id.startswith(what)


def test_the_rise_is_looked_for_over_the_reported_break_alone():
    """Estimates that rise before it and after it, and not over it."""
    dataset = made_up(scatter=0.1)
    estimate = dataset["learning_coefficient"].copy()
    estimate[0, 1, [2, 3]] = estimate[0, 1, [3, 2]].values
    finding = next(f for f in claim.check(dataset.assign(learning_coefficient=estimate)) if f.id.startswith("rise"))
    assert finding.id.endswith("first=300,last=800]")
    assert finding.outcome is Outcome.FAILS


def test_without_a_reported_break_no_rise_is_looked_for():
    finding = next(f for f in claim.check(made_up(cliff=None)) if f.id.startswith("covered"))
    assert finding.outcome is Outcome.UNDECIDED
    assert not any(f.id.startswith("rise") for f in claim.check(made_up(cliff=None)))


def test_a_short_training_is_asked_for_its_loss_alone():
    assert [finding.id for finding in claim.check(made_up(last=500))] == ["fall[tasks=8]"]


def test_it_fails_where_training_runs_backwards():
    """Every number at the step that is as far from the end as its own from the start."""
    dataset, times = made_up(), ("step", "checkpoint")
    reversed_ = dataset.isel({d: slice(None, None, -1) for d in times}).assign_coords({d: dataset[d] for d in times})
    assert {"fall", "rise"} <= failing(reversed_)


@pytest.fixture(scope="module")
def measured():
    """Of two seeds whose networks are ridge and dMMSE themselves at the checkpoints, and the keys that were used."""
    keys, asked, drawn, sample = {}, [], WeightPool.init, LinearRegression.sample_many

    def noted(name, key):
        keys.setdefault(name, set()).add(tuple(np.asarray(jax.random.key_data(key)).tolist()))

    def fit(members, task, *, key, **how):
        noted("prompts", key)
        predictors = {0: algorithms.bayes_optimal(LinearRegression.convention("timaeus", dim=2, length=3))}
        predictors[claim.LONG] = algorithms.bayes_optimal(task)
        at = SimpleNamespace(at=lambda step: SimpleNamespace(member=lambda i: predictors[step]))
        held_out = xr.DataArray(
            np.arange(6.0).reshape(1, 2, 3), {"step": [0, claim.LONG]}, ("member", "step", "position")
        )
        return SimpleNamespace(trajectory=at, dataset={"held_out_loss": held_out})

    def estimated(run, checkpoint, *, nbeta, key, **how):
        noted(f"chains of {members[-1]}", key)
        asked.append((checkpoint, nbeta))
        return xr.Dataset({"estimate": nbeta, "mcse": 0.1 * checkpoint}, attrs={"warnings": ["one"]})

    members = []
    ensemble = SimpleNamespace(
        ensemble=lambda build, *, seeds, key: noted("weights", key) or members.extend(seeds), fit=fit
    )

    def pool(*args, key):
        noted("pool", key)
        return drawn(*args, key=key)

    def tests(task, count, *, key):
        noted("tests", key)
        return sample(task, count, key=key)

    sizes = {"dim": 2, "length": 3, "tasks": 4, "width": 4, "batch": 4, "rate": 1e-3, "prompts": 64}
    sizes |= {"chains": 4, "warm_up": 4, "step_size": 1e-3, "localization": 1.0}
    point = SimpleNamespace(**sizes, step=(0, claim.LONG), checkpoint=(0, claim.LONG), nbeta=(3.0, 9.0), seed=(0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "icl", ensemble)
        patch.setattr(measure, "learning_coefficient", estimated)
        patch.setattr(WeightPool, "init", pool)
        patch.setattr(LinearRegression, "sample_many", tests)
        return measure.measure(point, key=jax.random.key(0)), keys, asked


def test_pool_weights_prompts_tests_and_chains_have_keys_of_their_own(measured):
    """Each seed's chains too; a pool drawn by the key of the tests would have tasks of the tests."""
    _, keys, _ = measured
    assert set(keys) == {"pool", "weights", "prompts", "tests", "chains of 0", "chains of 1"}
    assert [len(of) for of in keys.values()] == [1] * 6
    assert len(set.union(*keys.values())) == 6


def test_distances_are_from_both_rivals_on_fresh_tasks(measured):
    """None from oneself; and how far dMMSE and ridge are apart, either way."""
    dims, distance = measured[0]["fresh_distance"]
    assert dims == ("seed", "predictor", "checkpoint")
    (to_pool, own), (pools_own, to_ridge) = distance[0]
    assert (own, pools_own) == (0, 0)
    assert to_pool == to_ridge > 0.01


def test_estimates_are_of_all_checkpoints_at_the_first_temperature_and_of_the_last_at_all(measured):
    found, _, asked = measured
    assert asked == [(0, 3.0), (claim.LONG, 3.0), (claim.LONG, 9.0)] * 2
    np.testing.assert_array_equal(found["learning_coefficient"][1][0], [[3, 3], [np.nan, 9]])
    np.testing.assert_array_equal(found["learning_coefficient_error"][1][1], [[0, 100], [np.nan, 100]])
    np.testing.assert_array_equal(found["held_out_loss"][1][0], [1, 4])
