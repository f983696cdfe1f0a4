"""What is particular to this claim: its check on made-up logistic curves."""

import json

import numpy as np
import pytest
import xarray as xr
from judging import judged, theory_under

from iclbook.claims.descent.merged_heads_drop_once import claim
from icllab.lab.checks import Outcome
from icllab.theory import saddles

HEADS, SEEDS, FRACTIONS = (1, 2, 8), np.arange(5), np.array([0.1, 0.5, 0.9])


def made_up(theory=claim.theory, rest=0.02, split=0.9, late=1.0, width=1.0, size=1.0):
    """Networks on the logistic curve; ``late`` and ``width`` times its half time and width."""
    rng = np.random.default_rng(0)
    shape = 3, len(HEADS), len(SEEDS)
    start = 1e-6 * np.exp(0.3 * rng.normal(size=shape)) * np.array(HEADS)[:, None]
    law = {"dim": 4, "length": 31, "variance": 0.25}
    times = np.stack([saddles.merged_drop_time(start, fraction=f, **law) / 0.05 for f in FRACTIONS], -1)
    half = times[..., 1:2]
    times = late * half + width * (times - half)
    last = size * 2 * saddles.component_weights(4 * [0.25], length=31)[0]
    noise = np.exp(1e-3 * rng.normal(size=shape))
    axes = ("setting", "heads", "seed")
    dataset = xr.Dataset(
        {
            "rest": (axes, np.array([rest, rest, split])[:, None, None] * noise),
            "start_size": (axes, start),
            "last_size": (axes, last * noise),
            "fraction_step": ((*axes, "fraction"), times * noise[..., None]),
        },
        coords={
            "setting": ["white", "authors", "dominant"],
            "heads": list(HEADS),
            "seed": SEEDS,
            "fraction": FRACTIONS,
        },
        attrs={"configuration": json.dumps({"fixed": {"rate": 0.05}})},
    )
    return theory(dataset)


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"rest": 0.5}, "rest"),
        ({"split": 0.1}, "split"),
        ({"late": 1.1}, "half"),
        ({"width": 0.9}, "width"),
        ({"size": 1.1}, "size"),
    ],
)
def test_it_fails_where_one_thing_is_otherwise(changes, found):
    assert names(made_up(**changes)) == {found}
    assert len(failing(made_up(**changes))) == {"rest": 6, "split": 1}.get(found, 3)


def test_it_fails_under_other_formulas():
    assert "size" in names(made_up(theory_under(claim, "without_length")))
    assert names(made_up(theory_under(claim, "without_root"))) == {"half", "width"}
