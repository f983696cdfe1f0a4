"""Every sentence, from numbers that are made up: a good estimate has none, and each fault its own."""

import math

import numpy as np
import pytest
import xarray as xr
from scipy.stats import norm

from icllab.diagnostics import SMC
from icllab.diagnostics.sampling.sampling_warnings import annealing_warnings, chain_warnings, errors_of_few

GOOD = {
    "estimate": 3.0,
    "mcse": 0.05,
    "rhat": 1.002,
    "ess": 2000.0,
    "slope": 0.0,
    "baseline": 1.0,
    "least_loss": 1.0,
    "start_gap": 0.05,
    "start_gap_error": 0.1,
    "drift": -0.05,
    "drift_error": 0.1,
    "halved_gap": 0.05,
    "halved_gap_error": 0.07,
    "noise_bias": 0.0,
}


def dataset(chains=(3.0, 2.9, 3.1, 3.0), **other):
    each = np.array(chains)
    variables = GOOD | other | {"chain_estimate": ("chain", each), "chain_mcse": ("chain", np.full(len(each), 0.1))}
    return xr.Dataset(variables, attrs={"nbeta": 1000.0})


def of_batches(**other):
    return dataset(**other).assign_attrs(batch=256)


def test_a_good_estimate_has_none():
    assert chain_warnings(dataset()) == []


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ({"chains": (3.0, math.nan, 3.1, 3.0)}, "1 chains ran to infinity"),
        ({"slope": 2.0}, "the gradient there is not zero at this resolution"),
        ({"least_loss": 0.998}, "a loss lower by 2/nbeta was drawn"),
        ({"estimate": -0.2, "least_loss": 0.9999}, "the estimate is negative"),
        ({"chains": (3.0, -0.3, 3.1, 3.0)}, "1 chains have a negative estimate"),
        ({"start_gap": 0.4}, "starts away from the point give an estimate +0.4"),
        ({"rhat": 1.02}, "chains disagree: R-hat of the loss is 1.020"),
        ({"rhat": math.nan}, "chains disagree"),
        ({"ess": 100.0}, "few effective draws, 100"),
        ({"drift": -0.4}, "the loss still drifts, by -0.4"),
        ({"halved_gap": -0.5}, "the step is too large: at half of it the estimate changes by -0.5"),
        ({"noise_bias": 0.2}, "the noise of the batches may add 0.2"),
        ({"localization_share": 0.3}, "the localization decides: it is 0.3 of the curvature where that is largest"),
    ],
)
def test_a_fault_has_its_sentence(faults, said):
    """That one and no other, but that a negative estimate of chains that are positive is what it is."""
    found = chain_warnings(dataset(**faults))
    assert len(found) == 1
    assert said in found[0]


def test_batches_have_noisy_losses_and_the_control_variate_takes_it():
    """A loss of one batch may be low where its noise is told to be small, or nothing."""
    assert chain_warnings(of_batches(noise_bias=0.05, least_loss=0.5)) == []
    assert chain_warnings(of_batches(noise_bias=0.0, least_loss=0.5)) == []
    assert chain_warnings(of_batches(noise_bias=0.2).assign_attrs(control_variate=True)) == []
    assert "a loss lower by" in chain_warnings(dataset(noise_bias=0.05, least_loss=0.5))[0]


def annealed(correlation=0.02, acceptance=0.8, gap=0.0, apart=1.0, ancestors=100.0, faulty=100):
    """A hundred temperatures behind the prior, so many of them as given; repeats differ as their weights explain."""
    some = np.arange(101) >= 101 - faulty
    repeats = np.array([[-1.0], [1.0], [-1.0], [1.0]])
    columns = {
        "correlation": ("rung", np.where(some, correlation, 0.02)),
        "acceptance": ("rung", np.where(some, acceptance, 0.8)),
        "ancestors": ("rung", np.full(101, ancestors)),
        "route_gap": ("nbeta", np.array([gap])),
        "route_gap_error": ("nbeta", np.array([0.01])),
        "repeat_free_energy": (("repeat", "nbeta"), 5.0 + repeats),
        "weight_error": ("nbeta", repeats.std(axis=0, ddof=1) / 2 / apart),
    }
    return xr.Dataset(columns)


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ({}, ""),
        ({"acceptance": 0.5}, ""),  # half of the moves are not most of them
        ({"acceptance": 0.1}, "at 100 of 100 temperatures most of the moves are refused"),
        ({"acceptance": 0.1, "faulty": 4}, ""),  # fewer than one in twenty
        ({"acceptance": 0.1, "faulty": 7}, "at 7 of 100 temperatures most of the moves are refused"),
        ({"correlation": 0.9, "faulty": 4}, ""),
        ({"correlation": 0.9}, "at 100 of 100 temperatures the moves leave losses as they were, with a correlation"),
        ({"gap": -0.5}, "the two routes differ by -0.5: take more particles"),
        ({"apart": 30.0}, "populations differ 30 times as much as their weights explain"),
        ({"ancestors": 3.0}, "all of a population descends from 3 particles"),
    ],
)
def test_a_fault_of_an_annealing_has_its_sentence(faults, said):
    found = annealing_warnings(annealed(**faults), SMC().forgotten)
    assert len(found) == bool(said)
    assert said in "".join(found)


def test_few_repeats_have_student_s_distribution():
    """Of two it is Cauchy's, whose tail is known; of many it is normal, and the errors are three."""
    assert errors_of_few(2) == pytest.approx(1 / math.tan(math.pi * norm.sf(3)), rel=1e-9)
    assert errors_of_few(10**6) == pytest.approx(3, rel=1e-4)
