"""What is particular to this claim: its check on made-up jumps of every kind of attention."""

import json

import equinox as eqx
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.induction import _networks
from iclbook.claims.induction.no_softmax_no_cliff import claim, measure
from icllab.lab.checks import Outcome

STEPS = np.arange(0, 4001, 25)
KINDS = sorted(claim.KINDS)


def made_up(width=0.12, softmax=0.15, time=1500.0, last=4000, kinds=KINDS, seeds=12):
    """Jumps from a plateau at 1/4 of so wide a share of their time, at two rates and from several starts."""
    rng = np.random.default_rng(0)
    rows = np.empty((len(kinds), 2, seeds, len(STEPS)))
    for i, kind in enumerate(kinds):
        for r in range(2):
            for s in range(seeds):
                at = time / (1 + r) * np.exp(0.2 * rng.normal())
                share = (softmax if kind == claim.SOFTMAX else width) * np.exp(0.1 * rng.normal())
                jump = 1 / (1 + np.exp(-2 * np.log(9) * (STEPS - at) / (share * at)))
                guess = 1 / (1 + np.exp(-2 * np.log(9) * (STEPS - 0.5 * at) / (0.3 * at)))
                rows[i, r, s] = 1 / 16 + 3 / 16 * guess + 3 / 4 * jump
    dataset = xr.Dataset(
        {"accuracy": (("attention", "rate", "seed", "step"), rows)},
        coords={"attention": list(kinds), "rate": [0.15, 0.3], "seed": np.arange(seeds), "step": STEPS},
        attrs={"configuration": json.dumps({"fixed": {"pairs": 4, "label_count": 16}})},
    )
    return dataset.sel(step=slice(0, last))


_, failing, outcome = judged(claim.check)


def named(ids):
    """Names of findings, without their coordinates."""
    return [name.split("[")[0] for name in ids]


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS


def test_it_fails_where_the_jump_is_gradual_without_softmax():
    wide = failing(made_up(width=0.8))
    assert named(wide).count("relative_width") == 6
    assert named(wide).count("width_ratio_pairs") == 6
    assert not any(f"attention={claim.SOFTMAX}]" in name for name in wide if name.startswith("relative_width"))


def test_it_fails_where_it_is_sharp_but_three_times_as_gradual_as_with_softmax():
    assert set(named(failing(made_up(width=0.25, softmax=0.03)))) == {"width_ratio_pairs"}


def test_it_fails_where_networks_guess_and_never_jump_but_not_where_one_does_not():
    assert set(named(failing(made_up(time=9000.0)))) == {"jumping"}
    asleep = made_up()
    asleep["accuracy"][0, 0, 0] = 1 / 4
    assert outcome(asleep) is Outcome.UNDECIDED
    asleep = made_up(seeds=24)
    asleep["accuracy"][0, 0, :2] = 1 / 4
    assert outcome(asleep) is Outcome.HOLDS


def test_it_is_undecided_with_one_seed_or_without_softmax():
    assert outcome(made_up(seeds=1)) is Outcome.UNDECIDED
    found = {
        f.outcome for f in claim.check(made_up().drop_sel(attention=claim.SOFTMAX)) if f.id.startswith("width_ratio")
    }
    assert found == {Outcome.UNDECIDED}


@pytest.mark.parametrize("last", [150, 4000])
def test_it_fails_where_the_accuracy_comes_near_1_exponentially(last):
    dataset = made_up(last=last, kinds=KINDS[:1])
    smooth = 1 - 15 / 16 * np.exp(-5 * dataset.step / last) + 0 * dataset["accuracy"]
    assert "relative_width" in named(failing(dataset.assign(accuracy=smooth)))


@pytest.mark.parametrize("way", ["zero order", "patterns given"])
def test_controls_have_the_patterns_that_they_say(way, getkey):
    start = _networks.start(0, key=getkey(), fields={"attention": ("linear", "linear")}, pairs=2, labels=4, dim=3)
    prompt = start.task.sample(key=getkey())
    found = eqx.filter_jit(measure.WAYS[way](start.network).trace)(prompt).activations
    if way == "zero order":
        np.testing.assert_allclose(found["attention1"], np.tril(np.ones((5, 5))) / np.arange(1, 6)[:, None], rtol=1e-6)
        np.testing.assert_allclose(found["attention2"], 1 / 5, rtol=1e-6)
    else:
        np.testing.assert_array_equal(np.asarray(found["attention1"])[[1, 3], [0, 2]], 1.0)
        np.testing.assert_array_equal(np.asarray(found["attention2"])[1::2], np.asarray(prompt.matches))
