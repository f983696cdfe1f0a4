"""What is particular to this claim: its check on made-up curves, sharp and gradual ones, early and late."""

import json

import equinox as eqx
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.induction import _networks
from iclbook.claims.induction.abrupt_learning import claim
from icllab.diagnostics.behaviour import item_label_heads
from icllab.lab.checks import Outcome

STEPS = np.arange(0, 4001, 25)
TIMES = np.array([1275.0, 1450.0, 1675.0, 1125.0, 2250.0, 3200.0, 1325.0, 1500.0, 1850.0, 2600.0, 1400.0, 2000.0])


def rise(time, width):
    """From 0 to 1, a logistic function with so many steps from a tenth to nine tenths."""
    return 1 / (1 + np.exp(np.minimum(-2 * np.log(9) * (STEPS - time) / width, 50.0)))


def made_up(width=0.15, guess=0.25, head=1.0, head_width=0.15, guessing=0.35, times=TIMES, last=4000, dim=31):
    """Curves of one network a row: guessing at a share of the time of its jump, and the jump."""
    rows = {name: [] for name in ("accuracy", *claim.JUMPING, claim.GUESSING)}
    for time in times:
        before, jump, attention = (
            rise(guessing * time, 0.35 * time),
            rise(time, width * time),
            rise(head * time, head_width * time),
        )
        rows["accuracy"].append(1 / 16 + (guess - 1 / 16) * before + (1 - guess) * jump)
        rows["item_label_attention"].append(0.15 + 0.78 * attention)
        rows["target_attention"].append(0.23 + 0.62 * attention)
        rows["context_label_accuracy"].append(0.25 + 0.75 * before)
    dataset = xr.Dataset(
        {name: (("dim", "seed", "step"), np.array(some)[None]) for name, some in rows.items()},
        coords={"dim": [dim], "seed": np.arange(len(times)), "step": STEPS},
        attrs={"configuration": json.dumps({"fixed": {"pairs": 4, "label_count": 16}})},
    )
    return dataset.sel(step=slice(0, last))


_, failing, outcome = judged(claim.check)


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS


def test_it_fails_where_the_jump_is_wide_or_the_plateau_elsewhere():
    assert "relative_width[dim=31]" in failing(made_up(width=0.6))
    assert "plateau[dim=31]" in failing(made_up(guess=0.3))


def test_it_fails_where_the_head_comes_at_another_time_or_guessing_comes_with_it():
    assert set(failing(made_up(head=0.7))) == {"time_ila1[dim=31]", "time_tila2[dim=31]"}
    assert failing(made_up(head_width=0.7)) == ["width_ila1[dim=31]", "width_tila2[dim=31]"]
    assert "before_cla[dim=31]" in failing(made_up(guessing=1.05))


def test_it_fails_where_few_networks_jump_and_is_undecided_with_one():
    assert failing(made_up(times=[1500.0] + 20 * [1e6])) == ["jumping[dim=31]"]
    assert outcome(made_up(times=[*TIMES, 1500.0, *TIMES, 1e6])) is Outcome.HOLDS
    assert outcome(made_up(times=TIMES[:1])) is Outcome.UNDECIDED


def test_times_far_from_those_of_another_program_fail_at_its_dimension_alone():
    slow = made_up(times=0.4 * TIMES)
    assert failing(slow) == ["steps_elsewhere[dim=31]"]
    assert outcome(made_up(times=0.4 * TIMES, dim=15)) is Outcome.HOLDS


@pytest.mark.parametrize("last", [150, 4000])
def test_it_fails_where_the_accuracy_rises_evenly_from_chance(last):
    dataset = made_up(last=last)
    rising = 1 / 16 + 15 / 16 * dataset.step / last
    assert "relative_width[dim=31]" in failing(dataset.assign(accuracy=rising + 0 * dataset["accuracy"]))


@pytest.mark.parametrize("last", [150, 4000])
def test_it_fails_where_nothing_is_learned_before_the_jump(last):
    dataset = made_up(last=last)
    jump = xr.where(dataset.step > last / 2, 1.0, 1 / 16) + 0 * dataset["accuracy"]
    waiting = dataset["context_label_accuracy"].copy(data=np.ones(dataset["accuracy"].shape))
    assert "plateau[dim=31]" in failing(dataset.assign(accuracy=jump, context_label_accuracy=waiting))


def test_the_patterns_that_are_given_are_those_of_an_induction_head(getkey):
    start = _networks.start(0, key=getkey(), pairs=2, labels=4, dim=3)
    prompt = start.task.sample(key=getkey())
    activations = eqx.filter_jit(_networks.clamp_patterns(start.network).trace)(prompt).activations
    assert float(item_label_heads.item_label_attention(activations["attention1"])) == 1.0
    assert float(item_label_heads.target_attention(activations["attention2"], prompt.matches)) == 1.0
