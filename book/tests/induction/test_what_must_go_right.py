"""What is particular to this claim: its check on made-up curves with runs that are cut off, and its wrong formulas."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr

from iclbook.claims.induction.what_must_go_right import claim, measure
from icllab.lab.checks import Outcome, worst

FIXED = {"label_count": 16, "pairs": 4, "prompts": 2048}
TIMES = {
    claim.NONE: 1800.0,
    "previous token": 1000.0,
    "match": 100.0,
    "copy": 500.0,
    claim.FROZEN: np.inf,
    "layer 1 transplanted": 400.0,
    "layer 2 transplanted": 200.0,
    "classifier transplanted": 700.0,
    "no layer 1": np.inf,
    "no layer 2": np.inf,
    claim.BLIND: np.inf,
}


def made_up(times=TIMES, scatter=0.05, blind=1 / 16, seeds=5, last=3000):
    """Curves that rise from 1/4 to 1 in a twentieth of their time; those that see nothing stay at ``blind``."""
    rng = np.random.default_rng(0)
    step = np.arange(0, last + 1, 50)
    common = np.exp(scatter * rng.normal(size=seeds))
    accuracy = []
    for name, time in times.items():
        own = time * common * np.exp(scatter * rng.normal(size=seeds))
        with np.errstate(over="ignore"):
            rise = 1 / (1 + np.exp(-(step - own[:, None]) / (0.02 * own[:, None]))) if np.isfinite(time) else 0.0
        level = blind if name == claim.BLIND else 0.25
        accuracy.append(level + (1 - level) * rise + 0.002 * rng.normal(size=(seeds, len(step))))
    dataset = xr.Dataset(
        {"accuracy": (("dim", "intervention", "seed", "step"), np.stack(accuracy)[None])},
        coords={"dim": [31], "intervention": list(times), "seed": np.arange(seeds), "step": step},
        attrs={"configuration": json.dumps({"fixed": FIXED})},
    )
    return claim.theory(dataset)


def outcomes(dataset):
    return {finding.id: finding.outcome for finding in claim.check(dataset)}


def failing(dataset):
    return [what for what, found in outcomes(dataset).items() if found is Outcome.FAILS]


def outcome(dataset):
    return worst(outcomes(dataset).values())


def test_it_holds_where_all_is_as_claimed():
    assert set(outcomes(made_up()).values()) == {Outcome.HOLDS}


@pytest.mark.parametrize("name", [*claim.CLAMPS, *claim.TRANSPLANTS])
def test_it_fails_where_an_operation_that_is_done_for_the_network_is_no_help(name):
    assert f"sooner[later=none,sooner={name}]" in failing(made_up(TIMES | {name: 2700.0}))


def test_it_fails_where_another_operation_is_waited_for():
    found = failing(made_up(TIMES | {"match": 900.0}))
    assert found == ["sooner[later=copy,sooner=match]"]


def test_it_fails_where_a_network_without_layer_1_gets_there():
    found = failing(made_up(TIMES | {"no layer 1": 2000.0}))
    assert found == ["transitions[intervention=no layer 1]"]


def test_it_fails_where_a_frozen_classifier_is_a_help():
    assert failing(made_up(TIMES | {claim.FROZEN: 300.0})) == [f"later[intervention={claim.FROZEN}]"]


def test_it_fails_where_one_who_sees_no_context_is_not_at_chance():
    assert failing(made_up(blind=0.2)) == ["blind"]


def test_runs_that_are_cut_off_are_counted_for_what_they_say():
    """Without intervention none gets there: helps are still helps. With it none does: undecided, or a failure."""
    found = outcomes(made_up(TIMES | {claim.NONE: np.inf}))
    assert found["sooner[later=none,sooner=match]"] is Outcome.HOLDS
    assert found["transitions[intervention=no layer 1]"] is Outcome.UNDECIDED
    assert found["later[intervention=no layer 1]"] is Outcome.UNDECIDED
    name = "sooner[later=none,sooner=copy]"
    assert outcomes(made_up(TIMES | {"copy": np.inf}))[name] is Outcome.FAILS
    both = outcomes(made_up(TIMES | {"copy": np.inf, claim.NONE: np.inf}))
    assert both[name] is Outcome.UNDECIDED


def test_it_is_undecided_where_the_data_cannot_tell():
    assert outcome(made_up(seeds=3)) is Outcome.UNDECIDED  # no log-rank test of three and three tells
    assert outcome(made_up(last=100)) is Outcome.UNDECIDED


def test_times_are_those_of_the_curves():
    dataset = made_up(scatter=0.0)
    # A logistic rise from 1/4 to 1 passes 0.9 where it is at 0.65 / 0.75.
    later = 1 + 0.02 * np.log(0.65 / 0.1)
    np.testing.assert_allclose(dataset["transition_time"].sel(intervention="copy"), 500 * later, atol=25)
    assert np.isnan(dataset["transition_time"].sel(intervention="no layer 1")).all()
    assert np.isinf(dataset["median_time"].sel(intervention="no layer 1"))


def test_it_fails_where_guessing_without_attention_is_of_the_labels_of_the_context():
    dataset = made_up()
    assert float(dataset["blind_accuracy"]) == 1 / 16
    assert failing(dataset.assign(blind_accuracy=1 / 4)) == ["blind"]


def test_an_operation_is_compared_with_another_whether_or_not_runs_without_intervention_are_there():
    part = made_up(TIMES | {"match": 500.0, "copy": 100.0}).sel(intervention=["match", "copy"])
    assert failing(part) == ["sooner[later=copy,sooner=match]"]


def test_every_intervention_is_measured_at_small():
    assert set(claim.claim.grid("small").traced["intervention"]) == set(claim.INTERVENTIONS) == set(TIMES)


@pytest.mark.slow
def test_the_intervention_that_is_measured_is_the_one_that_is_asked_for(getkey):
    sizes = {"dim": 3, "pairs": 2, "label_count": 4, "loss": 0.01, "prompts": 64, "step": (0, 3), "seed": (0, 2)}
    names = (claim.NONE, *claim.CLAMPS, claim.FROZEN, *claim.ABLATIONS)
    point, key = SimpleNamespace(intervention=names, **sizes), getkey()
    axes, values = measure.measure(point, key=key)["accuracy"]
    assert axes == ("seed", "intervention", "step")
    assert values.shape == (2, 8, 2)
    np.testing.assert_array_equal(measure.measure(point, key=key, strength=1.0)["accuracy"][1][:, :3], values[:, :3])
    _, weak = measure.measure(point, key=key, strength=0.1)["accuracy"]
    np.testing.assert_array_equal(weak[:, [0, 4, 5, 6, 7]], values[:, [0, 4, 5, 6, 7]])
    assert np.abs(weak[:, 2] - values[:, 2]).max() > 0.01
    _, kept = measure.measure(point, key=key, unwithheld=True)["accuracy"]
    np.testing.assert_array_equal(kept[:, 5:], np.repeat(values[:, :1], 3, axis=1))
    np.testing.assert_array_equal(kept[:, :4], values[:, :4])


def test_what_is_transplanted_is_the_part_that_is_named():
    network = SimpleNamespace(layers=("first", "second"), classifier="last")
    found = [measure.PARTS[name](network) for name in measure.TRANSPLANTS]
    assert found == ["first", "second", "last"]
