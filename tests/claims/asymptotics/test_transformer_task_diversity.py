"""What is particular to this claim: its check on made-up worlds, where a gap closes, and what is measured."""

import json

import numpy as np
import pytest
import xarray as xr

from icllab.claims.asymptotics.transformer_task_diversity import claim
from icllab.experiments.checks import Outcome, worst

KAPPAS, STEPS = np.array(claim.KAPPAS), np.array([1000, 4000])
FIXED = {"alpha": 1.0, "rho": 0.01}


def made_up(half=1.5, width=1.8, moves=1.5, noise=0.03, seeds=6, fresh=1.6, learned=0.85):
    """r as a logistic curve in log kappa: 1/2 at ``half``, 0.9 a log ``width`` later, both ``moves`` times that later.

    The error on fresh tasks over that of answering 0 goes from ``fresh`` to ``learned``.
    """
    rng = np.random.default_rng(0)
    centre = np.log(half) + np.array([0.0, np.log(moves)])
    away = (np.log(KAPPAS)[:, None] - centre) / width * np.log(9)
    ratio = 1 / (1 + np.exp(-away))
    icl = np.linspace(fresh, learned, len(KAPPAS))[:, None] + np.zeros(2)
    shape = (1, len(KAPPAS), 2, seeds)
    zero = np.exp(0.3 * rng.normal(size=shape))  # pools of long and of short tasks
    variables = {
        "icl_error": icl[None, ..., None] * np.exp(noise * rng.normal(size=shape)),
        "icl_zero": np.ones(shape),
        "idg_error": (ratio * icl)[None, ..., None] * zero * np.exp(noise * rng.normal(size=shape)),
        "idg_zero": zero,
    }
    variables |= {f"{law}_{rival}": np.full(shape, 0.2) for law in ("icl", "idg") for rival in ("dmmse", "ridge")}
    dims = ("dim", "kappa", "step", "seed")
    dataset = xr.Dataset(
        {name: (dims, values) for name, values in variables.items()},
        coords={"dim": [8], "kappa": KAPPAS, "step": STEPS, "seed": np.arange(seeds)},
        attrs={"configuration": json.dumps({"fixed": FIXED})},
    )
    return claim.theory(dataset)


def outcomes(dataset):
    return {finding.what: finding.outcome for finding in claim.check(dataset)}


def failing(dataset):
    return [what for what, found in outcomes(dataset).items() if found is Outcome.FAILS]


def outcome(dataset):
    return worst(outcomes(dataset).values())


def test_it_holds_where_all_is_as_claimed():
    assert set(outcomes(made_up()).values()) == {Outcome.HOLDS}


def test_it_fails_where_nothing_is_memorised():
    found = failing(made_up(half=0.01))
    assert [what for what in found if "minus log r" in what] == [
        f"minus log r, kappa=0.25, d=8, {steps} steps" for steps in STEPS
    ]


def test_it_fails_where_the_gap_stays():
    assert failing(made_up(half=40.0)) == [f"log r, kappa=64, d=8, {steps} steps" for steps in STEPS]


def test_it_fails_where_the_gap_closes_in_a_corner_before_as_many_tasks_as_dimensions():
    found = failing(made_up(half=0.4, width=0.2, moves=1.01))
    assert sum("log kappa where r crosses 0.9" in what for what in found) == 2
    assert sum("log of kappa there over kappa where r crosses 0.5" in what for what in found) == 2


def test_it_fails_where_longer_training_closes_the_gap():
    assert failing(made_up(moves=1 / 1.5)) == ["fall of the mean log r over all kappa, 1000 to 4000 steps, d=8"]


def test_it_fails_where_memory_does_no_harm_and_where_nothing_is_learned():
    assert all("over that of answering 0, kappa=0.25" in what for what in failing(made_up(fresh=0.8)))
    assert all("explained, kappa=64" in what for what in failing(made_up(learned=1.2)))
    assert len(failing(made_up(fresh=0.8))) == len(failing(made_up(learned=1.2))) == len(STEPS)


def test_it_is_undecided_where_the_data_cannot_tell():
    assert outcome(made_up(seeds=1)) is Outcome.UNDECIDED
    assert outcome(made_up(noise=1.5)) is not Outcome.HOLDS
    assert outcome(made_up().isel(step=[0])) is Outcome.UNDECIDED
    assert outcome(made_up().isel(kappa=[0, -1])) is Outcome.UNDECIDED


def test_pools_of_long_tasks_make_no_gap():
    """Errors on the pool that are those of fresh tasks but for the tasks' length: r is 1 to rounding."""
    dataset = made_up(noise=0.0)
    like = dataset.assign(idg_error=dataset["icl_error"] * dataset["idg_zero"])
    np.testing.assert_allclose(claim.theory(like)["error_ratio"], 1.0, rtol=1e-12)
    assert float((like["idg_error"] / like["icl_error"]).std()) > 0.2


def test_a_crossing_is_interpolated_in_the_logarithm():
    kappas = np.array([0.5, 1.0, 2.0, 8.0])
    columns = np.array([[0.2, 0.4, 0.8, 1.0], [0.2, 1.0, 0.6, 0.9], [0.6, 0.7, 0.8, 0.9], [0.1, 0.2, 0.3, 0.4]]).T
    found = claim.crossing(kappas, columns, 0.5)
    np.testing.assert_allclose(found[0], np.log(2) / 4, rtol=1e-12)  # a quarter of the way from 1 to 2
    np.testing.assert_allclose(found[1], np.log(0.5) + np.log(2) * 0.3 / 0.8, rtol=1e-12)
    assert found[2] == -np.inf
    assert found[3] == np.inf
    # The last crossing counts: 0.7 is passed between 1/2 and 1, and again between 2 and 8.
    np.testing.assert_allclose(claim.crossing(kappas, columns[:, 1:2], 0.7)[0], np.log(2) + np.log(4) / 3, rtol=1e-12)


def test_the_bootstrap_error_of_a_crossing_is_that_of_repetitions():
    """Over 100 data sets of 6 seeds; the spread is known to 7 %, and a bootstrap of 6 is low by a factor of 0.91."""
    found = []
    for repetition in range(100):
        part = made_up(noise=0.0).isel(dim=0, step=0)
        rng = np.random.default_rng(repetition)
        idg, icl = (
            part[f"{of}_relative"] * np.exp(0.05 * rng.normal(size=part[f"{of}_relative"].shape))
            for of in ("idg", "icl")
        )
        place, samples = claim.crossed(part.assign(idg_relative=idg, icl_relative=icl), claim.CLOSED)
        found.append((place, samples[np.isfinite(samples)].std(ddof=1)))
    places, errors = np.array(found).T
    assert 0.7 < errors.mean() / places.std(ddof=1) < 1.3


@pytest.fixture(scope="module")
def measured():
    """One tiny cell: the claim's own, and its wrong world."""
    import jax

    experiment = claim.experiment.with_fixed({"prompts": [64], "batch": [4]})
    grid = experiment.grid("smoke", {"dim": [2], "kappa": [0.5], "step": [2, 30]}, seeds=2)
    point = experiment.point(next(grid.cells()), grid.traced)
    return [experiment.measure(point, key=jax.random.key(3), everything=everything) for everything in (False, True)]


@pytest.mark.slow
def test_networks_and_rivals_are_asked_the_same_prompts(measured):
    found = {name: values for name, (_, values) in measured[0].items()}
    assert set(found) == set(claim.NAMES)
    assert all(values.shape == (2, 2) for values in found.values())
    assert (found["icl_error"][0] != found["icl_error"][1]).all()  # other numbers of steps
    for name in ("icl_zero", "idg_zero", "icl_dmmse", "idg_ridge"):
        np.testing.assert_array_equal(found[name][0], found[name][1])
    # A pool of a single task: dMMSE answers with it, and errs by the noise of 64 labels, chi squared over 64.
    np.testing.assert_allclose(found["idg_dmmse"], 0.01, rtol=0.6)
    assert (found["icl_dmmse"] > 0.05).all()


@pytest.mark.slow
def test_in_the_wrong_world_only_the_training_differs(measured):
    own, other = ({name: values for name, (_, values) in one.items()} for one in measured)
    for name in claim.NAMES:
        same = np.array_equal(own[name], other[name])
        assert same is not name.endswith("error"), name
