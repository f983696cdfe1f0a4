"""What is particular to this claim: its check on made-up contrasts, and networks taken apart before training."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.induction import _networks
from iclbook.claims.induction.two_of_nine import claim, measure
from icllab.diagnostics.behaviour import interactions
from icllab.lab.checks import Outcome

KEPT = {"all": 0.98, "two": 0.9, "three": 0.97, "without the first": 0.5, "without the second": 0.25}


def made_up(kept=KEPT, contrasts=None, spread=0.2, learned=1.0, seeds=10):
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


_, failing, outcome = judged(claim.check)


def test_it_holds_where_all_is_as_claimed():
    dataset = made_up()
    assert outcome(dataset) is Outcome.HOLDS
    np.testing.assert_allclose(dataset["contrast_share"].sum("interaction"), 1, rtol=1e-12)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (
            {"contrasts": {"previous": {claim.ONE: 1.0, "content-content": 3.0}}},
            "share[contrast=previous,interaction=position-position]",
        ),
        (
            {"contrasts": {"match": {claim.TWO: 1.0, "content-position": 3.0}}},
            "share[contrast=match,interaction=content-buffer]",
        ),
        ({"contrasts": {"label": {claim.THIRD: 0.4, claim.TWO: 2.0}}}, "third_share"),
        ({"kept": KEPT | {"two": 0.6}}, "two_alone"),
        ({"kept": KEPT | {"three": 0.8}}, "third_helps"),
        ({"kept": KEPT | {"without the first": 0.9}}, "loss_without[kept=without the first]"),
        ({"kept": KEPT | {"without the second": 0.33}}, "left_without"),  # above chance, if not by much
        ({"spread": 0.05}, "spread"),
        ({"spread": 0.0}, "spread"),  # all overlaps are the same
    ],
)
def test_it_fails_where_one_thing_is_otherwise(changes, found):
    assert failing(made_up(**changes)) == [found]


def test_it_fails_where_contents_are_matched_with_contents():
    """And nothing depends on what is taken away."""
    contrasts = {name: {"content-content": 4.0} for name in claim.CONTRASTS}
    found = failing(made_up(contrasts=contrasts, kept=dict.fromkeys(KEPT, 0.98)))
    assert {"share", "loss_without", "left_without"} <= {one.partition("[")[0] for one in found}


def test_it_is_undecided_where_the_data_cannot_tell():
    assert outcome(made_up(seeds=1)) is Outcome.UNDECIDED
    dataset = made_up(seeds=12)
    dataset["accuracy"][:3, 0, 0] = 0.3
    assert outcome(dataset) is Outcome.UNDECIDED
    assert outcome(made_up(kept={name: KEPT[name] for name in ("all", "two")})) is Outcome.UNDECIDED


def test_the_control_keeps_two_others_and_all_else_as_it_is():
    kept = claim.claim.controls["content_only"].measure["kept"]
    assert {name for name in claim.KEPT if kept[name] == claim.KEPT[name]} == {"all"}
    assert not {claim.ONE, claim.TWO} & {*kept["two"][0], *kept["two"][1]}
    assert claim.TWO in kept["without the second"][1]


def test_it_fails_on_made_up_contents_and_before_training():
    named = {"contrast": claim.CONTRASTS, "interaction": claim.INTERACTIONS, "kept": tuple(claim.KEPT)}
    point = SimpleNamespace(
        **named, row=range(9), column=range(9), right_pair=range(4), prompts=1024, seed=range(10), step=(6000,)
    )
    found = measure.measure(point, key=None, made_up="contents")
    coords = {name: list(values) for name, values in named.items()} | {"seed": range(10), "step": [6000]}
    dataset = xr.Dataset(found, coords, {"configuration": json.dumps({"fixed": {"pairs": 4}})})
    names = {"share", "third_share", "spread", "two_alone", "third_helps", "loss_without", "left_without"}
    assert {id.partition("[")[0] for id in failing(claim.theory(dataset))} == names
    assert failing(made_up(learned=0.3)) == ["learned"]


def test_the_names_are_those_of_the_measurement():
    assert (claim.INTERACTIONS, claim.CONTRASTS) == (interactions.INTERACTIONS, interactions.CONTRASTS)


def test_all_terms_are_the_network_and_none_are_attention_without_preference():
    kept = {"all": (None, None), "none": ((), ())}
    sizes = {"pairs": 4, "label_count": 16, "batch": 8, "prompts": 32, "seed": (1,), "step": (0,), "kept": tuple(kept)}
    point = SimpleNamespace(**sizes, contrast=("match", "previous"), interaction=claim.INTERACTIONS[::-1])
    key = jax.random.key(0)
    found = {name: np.asarray(values)[0, 0] for name, (_, values) in measure.measure(point, key=key, kept=kept).items()}
    begin = _networks.start(1, key=key, pairs=4, labels=16)
    asked = jax.jit(lambda key: begin.task.in_context().sample_many(32, key=key))(begin.of_tests)
    answers = np.argmax(np.asarray(jax.jit(jax.vmap(begin.network))(asked))[:, -1], axis=-1)
    np.testing.assert_allclose(found["accuracy"][0], np.mean(answers == np.asarray(asked.labels)[:, -1]), atol=1e-6)
    # Labels see 2, 4, 6 and 8 tokens, and the query nine.
    np.testing.assert_allclose(found["item_label_attention"][1], np.mean([1 / 2, 1 / 4, 1 / 6, 1 / 8]), rtol=1e-5)
    np.testing.assert_allclose(found["target_attention"][1], 1 / 9, rtol=1e-5)
    contrasts = np.asarray(interactions.mean_contrasts(begin.network, asked))
    np.testing.assert_allclose(found["score_contrast"], contrasts[[1, 0]][:, ::-1], atol=1e-5)
    np.testing.assert_allclose(found["second_pattern"].sum(axis=1), 1, rtol=1e-5)
