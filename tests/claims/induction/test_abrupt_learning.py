"""What is particular to this claim: its check on made-up curves, sharp and gradual ones, early and late."""

import json

import numpy as np
import pytest
import xarray as xr

from icllab.claims.induction.abrupt_learning import claim
from icllab.experiments.checks import Outcome, worst

STEPS = np.arange(0, 4001, 25)
TIMES = np.array([1275.0, 1450.0, 1675.0, 1125.0, 2250.0, 3200.0])


def rise(time, width):
    """From 0 to 1, a logistic function with so many steps from a tenth to nine tenths."""
    return 1 / (1 + np.exp(np.minimum(-2 * np.log(9) * (STEPS - time) / width, 50.0)))


def made_up(width=0.15, guess=0.25, head=1.0, guessing=0.35, times=TIMES, last=4000, dim=31):
    """Curves of one network a row: guessing at a share of the time of its jump, and the jump."""
    rows = {name: [] for name in ("accuracy", *claim.JUMPING, *claim.GUESSING)}
    for time in times:
        before, jump, attention = (
            rise(guessing * time, 0.35 * time),
            rise(time, width * time),
            rise(head * time, 0.15 * time),
        )
        rows["accuracy"].append(1 / 16 + (guess - 1 / 16) * before + (1 - guess) * jump)
        rows["item_label_attention"].append(0.15 + 0.78 * attention)
        rows["target_attention"].append(0.23 + 0.62 * attention)
        rows["label_attention"].append(0.45 + 0.5 * before)
        rows["context_label_accuracy"].append(0.25 + 0.75 * before)
    dataset = xr.Dataset(
        {name: (("dim", "seed", "step"), np.array(some)[None]) for name, some in rows.items()},
        coords={"dim": [dim], "seed": np.arange(len(times)), "step": STEPS},
        attrs={"configuration": json.dumps({"fixed": {"pairs": 4, "label_count": 16}})},
    )
    return dataset.sel(step=slice(0, last))


def outcome(dataset):
    return worst(finding.outcome for finding in claim.check(dataset))


def failing(dataset):
    return [finding.what for finding in claim.check(dataset) if finding.outcome is Outcome.FAILS]


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS


def test_it_fails_where_the_jump_is_wide_or_the_plateau_elsewhere():
    assert any(what.startswith("0.333 above the width") for what in failing(made_up(width=0.6)))
    assert "0.03 above the distance of the plateau from 1/N, D=31" in failing(made_up(guess=0.3))


def test_it_fails_where_the_head_comes_at_another_time_or_guessing_comes_with_it():
    assert {what.split("ln time of ")[1].split(" ")[0] for what in failing(made_up(head=0.7))} == {"ILA1", "TILA2"}
    late = failing(made_up(guessing=0.9))
    assert any(what.startswith("ln time of the accuracy above that of CLA") for what in late)


def test_it_fails_where_a_network_never_jumps_and_is_undecided_where_time_was_short():
    never = [*TIMES[:-1], 1e6]
    assert failing(made_up(times=never)) == ["networks that do not jump, D=31"]
    assert outcome(made_up(times=never, last=3000)) is Outcome.UNDECIDED
    assert outcome(made_up(last=150)) is Outcome.UNDECIDED
    assert outcome(made_up(times=TIMES[:1])) is Outcome.UNDECIDED


def test_times_far_from_those_of_another_program_fail_at_its_dimension_alone():
    slow = made_up(times=0.4 * TIMES)
    assert failing(slow) == ["ln of the first tested step with 0.9 right, D=31"]
    assert outcome(made_up(times=0.4 * TIMES, dim=15)) is Outcome.HOLDS


@pytest.mark.parametrize("last", [150, 4000])
@pytest.mark.parametrize("world", list(claim.experiment.worlds))
def test_wrong_worlds_fail_whatever_was_measured(world, last):
    assert outcome(claim.experiment.worlds[world].theory(made_up(last=last))) is Outcome.FAILS
