"""What is particular to this claim: its check on made-up outcomes of one mode and of two."""

import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.induction.bimodal_at_the_threshold import claim
from icllab.lab.checks import Outcome


def made_up(threshold="two", far="one", ends=(0.0, 1.0), seeds=96):
    """Outcomes of runs: fractions of them that use the context, with two modes or one between."""
    rng = np.random.default_rng(0)

    def outcomes(fraction, modes):
        if modes == "one":
            return 0.5 + 0.5 * rng.beta(2 + 18 * fraction, 20 - 18 * fraction, size=seeds)
        return np.where(rng.random(seeds) < fraction, 0.97, 0.53) + 0.02 * rng.normal(size=seeds)

    values = [outcomes(ends[0], far), outcomes(0.5, threshold), outcomes(0.9, "one"), outcomes(ends[1], far)]
    coords = {"classes_per_pair": [3.0, 9.0, 11.0, 36.0], "seed": np.arange(seeds)}
    return xr.Dataset({"copy_probability": (("classes_per_pair", "seed"), values)}, coords=coords)


outcomes, failing, outcome = judged(claim.check)


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"threshold": "one"}, {"bimodal"}),
        ({"far": "two", "ends": (0.7, 0.3)}, {"memorised", "in_context"}),
        ({"ends": (1.0, 0.0)}, {"memorised", "in_context"}),
    ],
)
def test_it_fails_where_one_thing_is_otherwise(changes, found):
    assert set(failing(made_up(**changes))) - {"split"} == found


def test_a_minority_of_an_eighth_is_allowed_and_needs_many_runs():
    assert outcome(made_up(far="two", ends=(0.1, 0.9), seeds=96)) is Outcome.HOLDS
    assert outcome(made_up(far="two", ends=(0.1, 0.9), seeds=12)) is Outcome.UNDECIDED


def test_two_modes_that_are_next_to_each_other_are_no_two_outcomes():
    dataset = made_up()
    near = 0.5 + 1e-3 * dataset["copy_probability"]
    assert outcomes(dataset.assign(copy_probability=near))["bimodal"] is Outcome.HOLDS
    assert "split" in failing(dataset.assign(copy_probability=near))
