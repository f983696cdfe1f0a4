"""What is particular to this claim: its check on made-up curves of a network."""

import json

import numpy as np
import pytest
import xarray as xr

from icllab.claims.induction.landscape_predicts_dynamics import claim
from icllab.experiments.checks import Outcome, worst
from icllab.theory import induction_landscape

STEPS, N, L = np.arange(0, 3001, 100), 4, 16
FIXED = {"fixed": {"pairs": N, "label_count": L}}


def made_up(
    lead=700.0, off=0.6, misfit=(0.3, 0.03, 0.02), flat=2.0, begin=3.2, learned=True, seeds=4, forms=claim.FITTED
):
    """A reader that grows ``lead`` steps before both attentions, and a loss ``off`` what the landscape states."""
    rng = np.random.default_rng(0)
    at = 1500 + rng.normal(0, 60, (seeds, 1))
    rise = 1 / (1 + np.exp(-(STEPS - at) / 60))
    xi = 15 / (1 + np.exp(-(STEPS - at + lead) / 150))
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
            "landscape_number": (("seed", "step", "number"), np.stack([xi, y, z], -1)),
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


def outcome(dataset):
    return worst(finding.outcome for finding in claim.check(dataset))


def failing(dataset):
    return [finding.what for finding in claim.check(dataset) if finding.outcome is Outcome.FAILS]


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up(flat=1e3)) is Outcome.HOLDS


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lead": -700.0}, ["attention to the item, layer 1", "attention to the right label, layer 2"]),
        ({"off": 0.0}, ["misfit of the loss that is stated, labels", "misfit of the loss that is stated, read_off"]),
        ({"misfit": (0.03, 0.03, 0.02)}, ["misfit of the flow from the origin at one rate"]),
        ({"misfit": (0.3, 0.2, 0.02)}, ["0.1 above the misfit of three"]),
        ({"misfit": (0.3, 0.03, 0.2)}, ["0.1 above the misfit of four"]),
        ({"flat": 1.1}, ["log of the range of the least known rate"]),
        ({"begin": -1.0}, ["attention y that the fit begins with"]),
    ],
)
def test_it_fails_where_one_thing_is_otherwise(changes, said):
    found = sorted(failing(made_up(**({"flat": 1e3} | changes))))
    assert len(found) == len(said)
    assert all(part in what for part, what in zip(said, found, strict=True))


def test_it_is_undecided_where_the_data_cannot_tell():
    assert outcome(made_up(flat=1e3, seeds=1)) is Outcome.UNDECIDED
    assert outcome(made_up(flat=1e3, learned=False)) is Outcome.UNDECIDED
    assert outcome(made_up(flat=1e3, forms=("common",))) is Outcome.UNDECIDED


@pytest.mark.parametrize("world", ["attention_first", "exact"])
def test_it_fails_in_worlds_whose_networks_have_learned_nothing_yet(world):
    assert failing(claim.experiment.worlds[world].theory(made_up(learned=False)))


def test_the_loss_that_is_stated_is_the_landscapes():
    """At y, z and z' of a point it is the loss there."""
    beta, alpha, xi = 1.0, 3.0, 6.0
    a = np.exp(alpha * induction_landscape.previous_token_attention(beta, pairs=N))
    z, other = (xr.DataArray([value / (a + 2 * N)]) for value in (a, 1.0))
    loss = claim._stated(xr.DataArray([xi]), z, other, N, L)
    np.testing.assert_allclose(loss, induction_landscape.loss(beta, alpha, xi, pairs=N, labels=L), rtol=1e-12)


def test_half_of_a_curve():
    def curve(values):
        return xr.DataArray(values, dims="step", coords={"step": STEPS})

    np.testing.assert_allclose(claim._half_way(curve(np.minimum(STEPS, 1000.0))), 500)
    assert np.isnan(claim._half_way(curve(np.full(len(STEPS), 0.3))))
