"""What is particular to this claim: its check on made-up runs that learn or stay at chance."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.induction import _networks, _transitions
from iclbook.claims.induction.equal_labels_abolish import claim, measure
from icllab.lab.checks import Outcome

STEPS = np.arange(200, 20_001, 200)
TIMES = 1800.0 + 200.0 * np.arange(12)
NEVER = np.full(12, np.inf)


def made_up(equal=NEVER, more=TIMES, excess=0.003, last=20_000, counts=(4, 5)):
    """Runs of each number of labels: at chance until a time, and right from then on."""
    rng = np.random.default_rng(0)
    accuracy, loss = [], []
    for count, times in zip((4, 5), (equal, more), strict=True):
        learned = STEPS[None] >= np.asarray(times)[:, None]
        accuracy.append(np.where(learned, 0.99, 1 / 4 + 0.013 * rng.normal(size=learned.shape)))
        loss.append(np.where(learned, 0.02, np.log(count) + excess + 0.003 * rng.normal(size=learned.shape)))
    dims = ("label_count", "seed", "step")
    dataset = xr.Dataset(
        {"accuracy": (dims, np.array(accuracy)), "label_loss": (dims, np.array(loss))},
        coords={"label_count": [4, 5], "seed": np.arange(12), "step": STEPS},
        attrs={"configuration": json.dumps({"fixed": {"pairs": 4}})},
    )
    return _transitions.guessing(dataset.sel(step=slice(0, last), label_count=list(counts)))


_, failing, outcome = judged(claim.check)


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS


def test_it_holds_where_some_runs_learn_late_with_equal_labels():
    assert outcome(made_up(equal=[12_000.0, 16_000.0, *NEVER[2:]])) is Outcome.HOLDS


def test_it_fails_where_runs_learn_early_with_equal_labels_or_do_not_with_more():
    assert {"log_rank", "time_ratio"} <= set(failing(made_up(equal=TIMES / 3)))
    assert "learned[label_count=5]" in failing(made_up(more=NEVER))
    one_more = {f.id: f.outcome for f in claim.check(made_up(more=[*TIMES[:-1], np.inf]))}
    assert one_more["learned[label_count=5]"] is Outcome.UNDECIDED


def test_it_fails_where_the_delay_is_short():
    quick = failing(made_up(equal=5000.0 + 200.0 * np.arange(12), more=4200.0 + 20.0 * np.arange(12)))
    assert quick == ["time_ratio"]


def test_it_fails_where_the_loss_is_not_that_of_chance():
    assert failing(made_up(excess=-0.05)) == ["loss_at_chance[label_count=4]"]


def test_few_of_few_runs_are_no_difference():
    one = made_up().isel(seed=slice(0, 2))
    assert {f.id: f.outcome for f in claim.check(one)}["log_rank"] is Outcome.UNDECIDED


@pytest.mark.parametrize("counts", [(4, 5), (4,)])
def test_it_fails_where_chance_is_that_of_one_label_more(counts):
    dataset = made_up(counts=counts)
    flat = xr.zeros_like(dataset.step, dtype=float)
    wrong = dataset.assign(chance_loss=flat + np.log(5), accuracy_line=flat + 1 / 5)
    assert set(failing(wrong)) == {"loss_at_chance[label_count=4]", "accuracy_at_chance[label_count=4]"}


def test_it_fails_where_the_two_numbers_of_labels_are_exchanged():
    dataset = made_up()
    turned = dataset.isel(label_count=slice(None, None, -1)).assign_coords(label_count=dataset.label_count)
    assert {"log_rank", "time_ratio", "learned[label_count=5]"} <= set(failing(_transitions.guessing(turned)))


def test_no_run_that_learns_tells_nothing():
    found = {finding.id: finding.outcome for finding in claim.check(made_up(more=NEVER))}
    assert found["log_rank"] is Outcome.UNDECIDED


@pytest.mark.parametrize(("other_way", "count", "labels"), [(False, 4, 4), (True, 4, 16), (True, 5, 4)])
def test_labels_are_those_of_the_cell_or_of_the_other_way(monkeypatch, other_way, count, labels):
    asked = {}

    def curves(point, **how):
        asked.update(how)
        return {"accuracy": (("seed", "rate", "step"), np.arange(6.0).reshape(3, 1, 2))}

    monkeypatch.setattr(_networks, "learning_curves", curves)
    point = SimpleNamespace(learning_rate=0.3, label_count=count, pairs=4)
    found = measure.measure(point, key=None, other_way=other_way)
    assert (asked["labels"], asked["rates"]) == (labels, [0.3])
    axes, values = found["accuracy"]
    assert axes == ("seed", "step")
    np.testing.assert_array_equal(values, np.arange(6.0).reshape(3, 2))


def test_a_time_of_the_end_is_a_lower_limit():
    """Runs that end before half of them have learned have a median time with no upper limit."""
    dataset = made_up(last=6000)
    found = {finding.id: finding for finding in claim.check(dataset)}
    assert found["time_ratio"].outcome is Outcome.UNDECIDED
    assert found["time_ratio"].measured == pytest.approx(6000 / 2900, rel=0.05)
    late = {finding.id: finding for finding in claim.check(made_up(more=4000 + 20.0 * np.arange(12), last=6000))}
    assert late["time_ratio"].outcome is Outcome.UNDECIDED  # 1.5 times is a lower limit, too
