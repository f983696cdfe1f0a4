"""What is particular to this claim: its check on made-up free energies, and formulas that are wrong in one place."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.singular.exact_coefficients import claim, measure

T = np.geomspace(1e4, 1e7, 7)
N = 1e6


def made_up(noise=0.01, models=claim.MODELS):
    """Free energies that are the expansion, each repeat with a slope of its own around lambda; chains on target."""
    generator, count = np.random.default_rng(0), 8
    found = [claim.formula(model)[0] for model in models]
    spread = noise * generator.choice([-1, 1], (len(models), count)).cumsum(1) / 2
    spread -= spread.mean(1, keepdims=True)
    slopes = np.array([one.value for one in found])[:, None] + spread
    folds = np.array([one.multiplicity - 1 for one in found])
    energies = slopes[..., None] * np.log(T) - (folds[:, None] * np.log(np.log(T)))[:, None]
    dataset = xr.Dataset(
        {
            "free_energy": (("draws", "model", "seed", "nbeta"), energies[None]),
            "learning_coefficient": (("draws", "model"), [[one.at(N / np.log(N)) for one in found]]),
            "learning_coefficient_error": (("draws", "model"), np.full((1, len(models)), 0.003)),
            "sampler_warnings": (("draws", "model"), np.zeros((1, len(models)))),
            "annealing_warnings": (("draws", "model"), np.zeros((1, len(models)))),
        },
        coords={"draws": [2000], "model": list(models), "seed": range(count), "nbeta": T},
        attrs={"configuration": json.dumps({"fixed": {"samples": N}})},
    )
    return claim.theory(dataset)


_, failing, _ = judged(claim.check)


def test_slopes_and_chains_that_are_off_fail():
    good = made_up()
    steep = good.assign(free_energy=good["free_energy"] + 0.2 * np.log(good["nbeta"]))
    found = [id.split("[")[0] for id in failing(steep)]
    assert set(found) == {"slope", "without_m"}
    assert found.count("slope") == len(claim.MODELS)
    off = good.assign(learning_coefficient=1.08 * good["learning_coefficient"] + 0.03)
    assert len(failing(off)) == len(claim.MODELS)
    assert all(id.startswith("chains[") for id in failing(off))


def test_the_multiplicity_is_seen_in_the_slope():
    """Without it, the slope of three layers of width 2 is 0.2 less, over these temperatures."""
    cell = made_up().sel(model="layers 2,2,2,2 r=0").isel(draws=0)
    assert float(claim.slopes(cell, 3.0).value) == pytest.approx(1.5, abs=1e-9)
    assert float(claim.slopes(cell, 1.0).value) == pytest.approx(
        1.5 - 2 * np.mean(np.gradient(np.log(np.log(T)), np.log(T))), abs=5e-3
    )


def test_formulas_count_no_more_than_the_parameters():
    for model in claim.MODELS:
        found, count = claim.formula(model)
        assert found.value <= count / 2
        assert (claim.regular(model)[0].value == found.value) == (model == "quadratic")


def test_chains_and_populations_have_keys_of_their_own(monkeypatch):
    keys = []

    def energies(posterior, *, key, **how):
        keys.append(key)
        return xr.Dataset({"repeat_free_energy": (("repeat", "nbeta"), np.zeros((2, 1)))}, attrs={"warnings": []})

    def chains(posterior, *, key, **how):
        keys.append(key)
        return xr.Dataset({"estimate": 5.0, "mcse": 0.1}, attrs={"warnings": []})

    monkeypatch.setattr(measure, "free_energy", energies)
    monkeypatch.setattr(measure, "coefficient_at_temperature", chains)
    sizes = {"nbeta": (10.0,), "seed": (0, 1), "particles": 10, "chains": 4, "draws": 8, "warm_up": 8, "samples": N}
    measure.measure(SimpleNamespace(model="quadratic", **sizes), key=jax.random.key(0))
    data = [tuple(jax.random.key_data(key).tolist()) for key in (*keys, jax.random.key(0))]
    assert len(set(data)) == 3
