"""What is particular to this claim: its check on made-up curves."""

import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.induction.decay_ends_the_context import claim
from icllab.lab.checks import Outcome


def made_up(peak=3.0, kept=(1.0, 0.2, 0.01), loss=0.001):
    """Runs that learn in context and keep a part of it, for three decays."""
    rng, seeds = np.random.default_rng(0), 8
    curves = np.array([[0.1, 1.0, part] for part in kept])[:, None] * peak
    curves = curves * np.exp(0.03 * rng.normal(size=(3, seeds, 1)))
    losses = np.broadcast_to(np.array([0.7, 0.1, loss]), curves.shape) * np.exp(0.1 * rng.normal(size=curves.shape))
    axes = ("decay", "seed", "step")
    coords = {"decay": [0.0, 0.001, 0.003], "seed": np.arange(seeds), "step": [40, 80, 120]}
    return xr.Dataset({"copy_logit": (axes, curves), "race_loss": (axes, losses)}, coords=coords)


_, failing, outcome = judged(claim.check)


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"peak": 0.5}, {"learned"}),
        ({"kept": (0.5, 0.2, 0.01)}, {"stays"}),
        ({"kept": (1.0, 0.8, 0.8)}, {"fades"}),
        ({"loss": 0.2}, {"answers"}),
    ],
)
def test_it_fails_where_one_thing_is_otherwise(changes, found):
    assert {name.split("[")[0] for name in failing(made_up(**changes))} == found
