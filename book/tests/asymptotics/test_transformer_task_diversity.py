"""What is particular to this claim: its check on synthetic data, where a gap closes, and what is measured."""

import json

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.asymptotics._statistics import ratio_crossings
from iclbook.claims.asymptotics.transformer_task_diversity import claim
from icllab.lab import registry
from icllab.lab.checks import Outcome

KAPPAS, STEPS = np.array(claim.KAPPAS), np.array([1000, 4000])
FIXED = {"alpha": 1.0, "rho": 0.01}


def made_up(half=1.5, width=1.8, moves=1.5, noise=0.03, seeds=10, fresh=1.6, learned=0.85):
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


outcomes, failing, _ = judged(claim.check)


def named(name, kappa=None):
    """The ids of a finding at both lengths of training."""
    return [f"{name}[dim=8,kappa={kappa},step={s}]" if kappa else f"{name}[dim=8,step={s}]" for s in STEPS]


def test_it_holds_where_all_is_as_claimed():
    assert set(outcomes(made_up()).values()) == {Outcome.HOLDS}


def test_it_fails_where_nothing_is_memorised():
    found = failing(made_up(half=0.01))
    assert [name for name in found if name.startswith("memorised")] == named("memorised", kappa="0.25")


def test_it_fails_where_the_gap_stays():
    assert failing(made_up(half=40.0)) == named("closed", kappa="64")


def test_it_fails_where_the_gap_closes_in_a_corner_before_as_many_tasks_as_dimensions():
    found = failing(made_up(half=0.4, width=0.2, moves=1.01))
    assert {*named("closes_at"), *named("gradual")} <= set(found)


def test_it_fails_where_longer_training_closes_the_gap():
    assert failing(made_up(moves=1 / 1.5)) == ["opens_again[dim=8]"]


def test_it_fails_where_memory_does_no_harm_and_where_nothing_is_learned():
    assert failing(made_up(fresh=0.8)) == named("harmful", kappa="0.25")
    assert failing(made_up(learned=1.2)) == named("learned", kappa="64")


def test_pools_of_long_tasks_make_no_gap():
    """Errors on the pool that are those of fresh tasks but for the tasks' length: r is 1 to rounding."""
    dataset = made_up(noise=0.0)
    like = dataset.assign(idg_error=dataset["icl_error"] * dataset["idg_zero"])
    np.testing.assert_allclose(claim.theory(like)["error_ratio"], 1.0, rtol=1e-12)
    assert float((like["idg_error"] / like["icl_error"]).std()) > 0.2


def test_the_bootstrap_error_of_a_crossing_is_that_of_repetitions():
    """Over 100 data sets of 6 seeds; the spread is known to 7 %, and a bootstrap of 6 is low by a factor of 0.91."""
    part, found = made_up(noise=0.0).isel(dim=0, step=0), []
    for repetition in range(100):
        rng = np.random.default_rng(repetition)
        idg, icl = (
            part[f"{of}_relative"] * np.exp(0.05 * rng.normal(size=part[f"{of}_relative"].shape))
            for of in ("idg", "icl")
        )
        (half, closed), covariance = ratio_crossings(idg, icl, "kappa", (claim.HALF, claim.CLOSED))
        variance = covariance.diagonal().tolist()
        found.append((half, closed, closed - half, *variance, covariance.trace() - 2 * covariance[0, 1]))
    values, variances = np.array(found).T.reshape(2, 3, 100)
    ratio = np.sqrt(variances).mean(1) / values.std(1, ddof=1)
    assert ((ratio > 0.7) & (ratio < 1.3)).all(), ratio


@pytest.fixture(scope="module")
def measured():
    """One tiny cell: the claim's own, and its two controls."""
    experiment = registry.load("asymptotics/transformer_task_diversity").with_fixed({"prompts": [64], "batch": [4]})
    grid = experiment.grid("smoke", {"dim": [2], "kappa": [0.5], "step": [2, 30]}, seeds=2)
    point, key = experiment.point(next(grid.cells()), grid.traced), jax.random.key(3)
    changes = ({}, {"everything": True}, {"only_pool": True})
    return [{name: values for name, (_, values) in experiment.measure(point, key=key, **c).items()} for c in changes]


@pytest.mark.slow
def test_networks_and_references_are_asked_the_same_prompts(measured):
    found = measured[0]
    assert {name: values.shape for name, values in found.items()} == {
        f"{kind}_{what}": (2, 2) if what == "error" else (2,)
        for kind in ("icl", "idg")
        for what in ("error", "zero", "dmmse", "ridge")
    }
    assert (found["icl_error"][:, 0] != found["icl_error"][:, 1]).all()  # other numbers of steps
    # A pool of a single task: dMMSE answers with it, and errs by the noise of 64 labels, chi squared over 64: a
    # relative standard error of (2 / 64)^0.5 = 0.18, and 3.4 of them.
    np.testing.assert_allclose(found["idg_dmmse"], 0.01, rtol=0.6)
    assert (found["icl_dmmse"] > 0.05).all()


@pytest.mark.slow
def test_under_the_controls_only_the_training_or_only_the_fresh_tasks_differ(measured):
    own, everything, only_pool = measured
    for name, values in own.items():
        assert np.array_equal(values, everything[name]) is not name.endswith("error"), name
        assert np.array_equal(values, only_pool[name]) is name.startswith("idg"), name
        if name.startswith("icl"):
            np.testing.assert_array_equal(only_pool[name], only_pool[name.replace("icl", "idg")])
