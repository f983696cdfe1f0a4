"""What is particular to this claim: its check on made-up curves, and its measurement of the landscape itself."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.induction.landscape_predicts_dynamics import claim, measure
from icllab.diagnostics import StatedHead
from icllab.diagnostics.curves import flow_fits
from icllab.lab.checks import Outcome
from icllab.models import MinimalHead
from icllab.tasks import ItemLabel
from icllab.theory import induction_landscape

STEPS, N, L = np.arange(0, 3001, 100), 4, 16
FIXED = {"fixed": {"pairs": N, "label_count": L}}


def made_up(
    lead=-150.0,
    divided=700.0,
    off=0.6,
    misfit=(0.3, 0.03, 0.02),
    flat=2.0,
    begin=3.2,
    learned=True,
    seeds=10,
    forms=claim.FITTED,
):
    """A reader that grows ``lead`` steps before both attentions, ``divided`` its quotient, and a loss ``off``."""
    rng = np.random.default_rng(0)
    at = 1500 + rng.normal(0, 60, (seeds, 1))
    rise = 1 / (1 + np.exp(-(STEPS - at) / 60))
    xi, quotient = (15 / (1 + np.exp(-(STEPS - at + ahead) / 150)) for ahead in (lead, divided))
    y, z = 0.3 + 0.65 * rise, 0.11 + 0.7 * rise
    other = (1 - z) / (2 * N)
    stated = np.log1p((N - 1) * np.exp(-xi * (z - other)) + (L - N) * np.exp(-xi * z))
    loss = (stated + 2 * off * (STEPS > 500) * (1 - rise)) if learned else np.full_like(stated, 2.0)
    factor = np.array([0.25, 0.5, 1.0, 2.0, 4.0])
    profile = 0.03 * (1 + 0.9 * np.abs(np.log(factor)) / np.log(flat))[None, None] * np.ones((seeds, 4, 1))
    profile[:, 2:] = np.nan
    start = np.full((seeds, len(forms), 4), begin)
    coords = {
        "seed": np.arange(seeds),
        "step": STEPS,
        "number": list(claim.NUMBERS),
        "form": list(forms),
        "factor": factor,
        "strength": ["beta", "alpha", "xi", "beta2"],
    }
    noise = 1 + 0.05 * rng.normal(size=(seeds, len(claim.FITTED)))
    dataset = xr.Dataset(
        {
            "landscape_number": (("seed", "step", "number"), np.stack([xi, y, z, quotient], -1)),
            "label_loss": (("seed", "step"), loss),
            "other_attention": (("seed", "step"), other),
            "misfit": (("seed", "form"), (np.array(misfit) * noise)[:, : len(forms)]),
            "fitted_start": (("seed", "form", "strength"), start + 0.1 * rng.normal(size=start.shape)),
            "profile": (("seed", "strength", "factor"), profile),
        },
        coords=coords,
        attrs={"configuration": json.dumps(FIXED)},
    )
    return claim.theory(dataset)


_, failing, outcome = judged(claim.check)


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up(flat=1e3)) is Outcome.HOLDS


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"lead": 700.0}, ["readout_after[number=y]", "readout_after[number=z]"]),
        ({"divided": -300.0}, ["quotient_first[number=y]", "quotient_first[number=z]"]),
        ({"off": 0.0}, ["stated_misfit[reading=labels]", "stated_misfit[reading=read_off]"]),
        ({"misfit": (0.03, 0.03, 0.02)}, ["one_rate"]),
        ({"misfit": (0.3, 0.2, 0.02)}, ["free_rates[form=three]"]),
        ({"misfit": (0.3, 0.03, 0.2)}, ["free_rates[form=four]"]),
        ({"flat": 1.1}, ["range"]),
        ({"begin": -1.0}, ["start"]),
    ],
)
def test_it_fails_where_one_thing_is_otherwise(changes, found):
    assert sorted(failing(made_up(**({"flat": 1e3} | changes)))) == found


def test_it_is_undecided_where_the_data_cannot_tell():
    assert outcome(made_up(flat=1e3, seeds=1)) is Outcome.UNDECIDED
    assert outcome(made_up(flat=1e3, learned=False)) is Outcome.UNDECIDED


def test_one_network_in_ten_that_has_not_learned_is_left_out_and_two_are_too_many():
    dataset = made_up(flat=1e3)
    late = dataset["label_loss"].where(dataset.seed > 0, 2.0)
    assert outcome(claim.theory(dataset.assign(label_loss=late))) is Outcome.HOLDS
    later = dataset["label_loss"].where(dataset.seed > 1, 2.0)
    assert outcome(claim.theory(dataset.assign(label_loss=later))) is Outcome.UNDECIDED


def test_the_range_is_of_the_least_known_rate_and_one_where_only_the_best_fits():
    dataset = made_up()
    levels = xr.DataArray([1.0, 1.2, 1.0, 1.2, 9.0], dims="factor") * 0.03
    profile = dataset["profile"].where(dataset.strength != "alpha", levels.broadcast_like(dataset["profile"]))
    profile = profile.where(dataset.strength == "alpha", 9.0).where(dataset.strength != "beta2")
    dataset = dataset.assign(profile=profile, misfit=0 * dataset["misfit"] + 0.03)
    np.testing.assert_allclose(claim._range(dataset), 8.0)
    np.testing.assert_allclose(claim._range(dataset.assign(misfit=dataset["misfit"] / 2)), 1.0)


def test_the_loss_that_is_stated_is_the_landscapes():
    """At y, z and z' of a point it is the loss there."""
    beta, alpha, xi = 1.0, 3.0, 6.0
    a = np.exp(alpha * induction_landscape.previous_token_attention(beta, pairs=N))
    z, other = (xr.DataArray([value / (a + 2 * N)]) for value in (a, 1.0))
    loss = claim.stated_loss(xr.DataArray([xi]), z, other, N, L)
    np.testing.assert_allclose(loss, induction_landscape.loss(beta, alpha, xi, pairs=N, labels=L), rtol=1e-12)


def test_half_of_a_curve():
    def curve(values):
        return xr.DataArray(values, dims="step", coords={"step": STEPS})

    np.testing.assert_allclose(claim.half_way(curve(np.minimum(STEPS, 1000.0))), 500)
    assert np.isnan(claim.half_way(curve(np.full(len(STEPS), 0.3))))


def reduced(*seeds, **more):
    steps = tuple(range(0, 3001, 500))
    point = SimpleNamespace(pairs=N, label_count=L, step=steps, number=claim.NUMBERS[::-1], seed=seeds, **more)
    found = measure.measure(point, key=jax.random.key(0), rates=(28.0, 28.0, 28.0))
    coords = {name: getattr(point, name, None) for name in ("seed", "step", "number", "form", "strength", "factor")}
    there = {name: list(values) for name, values in coords.items() if values is not None}
    return xr.Dataset(found, coords=there, attrs={"configuration": json.dumps(FIXED)})


def test_the_landscape_itself_has_the_loss_that_it_states():
    found = claim.theory(reduced(0, 1))
    np.testing.assert_allclose(found["stated_misfit"], 0.0, atol=1e-12)
    np.testing.assert_allclose(found["label_loss"].isel(step=0), np.log(L), atol=0.02)
    np.testing.assert_allclose(found["landscape_number"].isel(step=0).sel(number="y"), 1 / (N + 1), atol=0.01)


def test_fits_of_a_seed_do_not_depend_on_the_others_and_find_the_one_rate_of_a_flow(monkeypatch):
    monkeypatch.setattr(flow_fits, "TOGETHER", 16)  # few fits, and none to fill up with
    how = {"restarts": 2, "iterations": 25, "perturbed": 1, "rate_guess": 28.0}
    how |= {"form": ("common", "three"), "strength": ("xi", "beta2", "beta", "alpha"), "factor": (1.0, 2.0)}
    both, alone = reduced(0, 1, **how), reduced(1, **how)
    for name in ("misfit", "fitted_rate", "fitted_start", "profile"):
        xr.testing.assert_allclose(both[name].sel(seed=[1]), alone[name], rtol=1e-3, atol=1e-6)
    common = both.sel(form="common")
    assert float(common["misfit"].max()) < 0.1
    np.testing.assert_allclose(common["fitted_rate"].sel(strength=["alpha", "beta", "xi"]), 28.0, rtol=0.05)
    assert np.isnan(both["fitted_rate"].sel(strength="beta2")).all()
    assert np.isnan(both["profile"].sel(strength="beta2")).all()
    assert np.isfinite(both["profile"].drop_sel(strength="beta2")).all()


def test_a_head_that_is_the_landscape_states_its_loss_and_its_readout_under_intervention():
    """Whatever its attention is: at one, at chance, and where other labels have more than the rest."""
    task = ItemLabel.init(classes=None, labels=L, pairs=N, dim=8, no_repeats=True, key=jax.random.key(0))
    asked = task.sample_many(3, key=jax.random.key(1))
    heads = [(0.9, 0.6, 0.05, 6.0), (0.2, 0.1, 0.1125, 4.0), (0.4, 0.3, 0.2, 9.0)]
    rows = [measure.read(StatedHead(*numbers, L), task, asked) for numbers in heads]
    known = [[xi, y, z, xi, other] for y, z, other, xi in heads]
    np.testing.assert_allclose(np.array(rows)[:, :5], known, rtol=1e-5)
    xi, z, other, loss = (xr.DataArray(np.array(rows)[:, i], dims="step") for i in (0, 2, 4, 5))
    np.testing.assert_allclose(claim.stated_loss(xi, z, other, N, L), loss, rtol=1e-5)


def test_the_readout_of_a_network_is_that_at_given_patterns():
    """A minimal head whose attention is chance: by division and by intervention it reads with the strength it has."""
    task = ItemLabel.init(classes=None, labels=L, pairs=N, dim=8, no_repeats=True, key=jax.random.key(0))
    asked = task.sample_many(3, key=jax.random.key(1))
    row = measure.read(MinimalHead.reading(labels=L, xi=5.0), task, asked)
    np.testing.assert_allclose(row[[0, 2, 3]], [5.0, 1 / (2 * N + 1), 5.0], rtol=1e-5)
