"""What is particular to this claim: its check on made-up contrasts."""

import json

import numpy as np
import pytest
import xarray as xr

from icllab.claims.induction.two_of_nine import claim
from icllab.experiments.checks import Outcome, worst

KEPT = {"all": 0.98, "two": 0.9, "three": 0.97, "without the first": 0.5, "without the second": 0.26}


def made_up(kept=KEPT, contrasts=None, spread=0.2, learned=1.0, seeds=4):
    """Contrasts of the named terms, the others a hundredth; small differences between seeds."""
    rng = np.random.default_rng(0)
    named = {"previous": {claim.ONE: 4.0}, "match": {claim.TWO: 4.0}, "label": {claim.THIRD: 2.0, claim.TWO: 0.4}}
    values = np.full((seeds, 1, 3, 9), 0.01) + rng.normal(0, 0.002, (seeds, 1, 3, 9))
    for i, contrast in enumerate(claim.CONTRASTS):
        for name, value in ((contrasts or {}).get(contrast, named[contrast])).items():
            values[:, :, i, claim.INTERACTIONS.index(name)] += value
    accuracy = np.array(list(kept.values())) + rng.normal(0, 0.005, (seeds, 1, len(kept)))
    accuracy[..., 0] *= learned
    dims = ("seed", "step")
    dataset = xr.Dataset(
        {
            "score_contrast": ((*dims, "contrast", "interaction"), values),
            "accuracy": ((*dims, "kept"), accuracy),
            "overlap": (dims, 15 + rng.normal(0, 0.3, (seeds, 1))),
            "overlap_spread": (dims, 15 * (spread + rng.normal(0, 0.005, (seeds, 1)))),
        },
        coords={
            "seed": np.arange(seeds),
            "step": [3000],
            "contrast": list(claim.CONTRASTS),
            "interaction": list(claim.INTERACTIONS),
            "kept": list(kept),
        },
        attrs={"configuration": json.dumps({"fixed": {"pairs": 4}})},
    )
    return claim.theory(dataset)


def outcome(dataset):
    return worst(finding.outcome for finding in claim.check(dataset))


def failing(dataset):
    return [finding.what for finding in claim.check(dataset) if finding.outcome is Outcome.FAILS]


def test_it_holds_where_all_is_as_claimed():
    dataset = made_up()
    assert outcome(dataset) is Outcome.HOLDS
    np.testing.assert_allclose(dataset["contrast_share"].sum("interaction"), 1, rtol=1e-12)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"contrasts": {"previous": {claim.ONE: 1.0, "content-content": 3.0}}}, "in the contrast 'previous'"),
        ({"contrasts": {"match": {claim.TWO: 1.0, "content-position": 3.0}}}, "in the contrast 'match'"),
        ({"contrasts": {"label": {claim.THIRD: 0.4, claim.TWO: 2.0}}}, "above content-buffer in 'label'"),
        ({"kept": KEPT | {"two": 0.6}}, "accuracy with the two alone"),
        ({"kept": KEPT | {"three": 0.8}}, "accuracy with the third besides, above that of two"),
        ({"kept": KEPT | {"without the first": 0.9}}, "accuracy of all above without the first"),
        ({"kept": KEPT | {"without the second": 0.6}}, "2/N above the accuracy without the second"),
        ({"spread": 0.05}, "spread of the overlaps over their mean"),
    ],
)
def test_it_fails_where_one_thing_is_otherwise(changes, said):
    found = failing(made_up(**changes))
    assert len(found) == 1
    assert said in found[0]


def test_it_is_undecided_where_the_data_cannot_tell():
    assert outcome(made_up(seeds=1)) is Outcome.UNDECIDED
    assert outcome(made_up(learned=0.3)) is Outcome.UNDECIDED
    assert outcome(made_up(kept={name: KEPT[name] for name in ("all", "two")})) is Outcome.UNDECIDED


@pytest.mark.parametrize("world", ["elsewhere", "one_number"])
def test_it_fails_in_worlds_that_have_learned_nothing_yet(world):
    dataset = made_up(learned=0.1, kept={name: KEPT[name] for name in ("all", "two")})
    assert failing(claim.experiment.worlds[world].theory(dataset))


def test_the_names_are_those_of_the_measurement():
    from icllab.diagnostics.behaviour import interactions

    assert (claim.INTERACTIONS, claim.CONTRASTS) == (interactions.INTERACTIONS, interactions.CONTRASTS)
