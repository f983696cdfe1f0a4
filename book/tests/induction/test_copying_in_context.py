"""What is particular to this claim: its check on made-up networks of both kinds, its ablations, and its guess."""

import itertools
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.induction.copying_in_context import claim, measure
from icllab.core.prompt import TokenPrompt
from icllab.lab.checks import Outcome
from icllab.tasks import PeriodicStrings

STEPS = np.arange(0, 2501, 25)
PERIODS = np.arange(2, 13)
FIXED = {"shortest": 4, "longest": 8, "tokens": 20}
SEEDS = 26


def rise(time, width=0.5):
    """From 0 to 1, a logistic function with so much of the time from a tenth to nine tenths."""
    return 1 / (1 + np.exp(np.clip(-2 * np.log(9) * (STEPS - time) / (width * time), -50, 50)))


def made_up(longer=(0.9, 0.1), times=(300.0, 900.0), one_layer=0.38, end=1.0, score=1.1, held_out=0.9, target=0.05):
    """Half of the networks copy by previous-token attention, the others without; all jitter a little."""
    jitter = 1 + 0.03 * np.sin(np.arange(SEEDS))
    by = np.arange(SEEDS) % 2 == 0
    time = np.where(by, *times) * jitter
    curve = np.stack([0.03 + 0.37 * rise(0.2 * t) + (end - 0.4) * rise(t) for t in time])
    previous = np.stack([0.02 + 0.38 * w * rise(t) for t, w in zip(time, by, strict=True)])
    induction = np.stack([0.1 + 0.8 * rise(score * t) for t in time])
    other = np.where(by, *longer) * jitter
    by_period = np.where(PERIODS[None] > 8, other[:, None], end * jitter[:, None] / jitter.max())
    alone = 0.9 * jitter
    ablated = np.stack([np.where(by, 0.1, 0.9) * jitter, alone, target * jitter, alone], axis=1)
    flat = np.stack([np.minimum(curve[0], one_layer)] * SEEDS)
    both = {
        "accuracy": (flat, curve),
        "held_out_accuracy": (flat, held_out * curve),
        "previous_token_score": (0 * flat, previous),
        "induction_score": (0 * flat, induction),
    }
    dims = ("layers", "seed")
    data = {name: ((*dims, "step"), np.stack(some)) for name, some in both.items()}
    data["period_accuracy"] = ((*dims, "period"), np.stack([by_period] * 2))
    data["ablation_accuracy"] = ((*dims, "ablation"), np.stack([ablated] * 2))
    coords = {"layers": [1, 2], "seed": np.arange(SEEDS), "step": STEPS, "period": PERIODS}
    coords["ablation"] = list(claim.ABLATIONS)
    attrs = {"configuration": json.dumps({"fixed": FIXED})}
    return claim.theory(xr.Dataset(data, coords=coords, attrs=attrs))


outcomes, failing, outcome = judged(claim.check)


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"one_layer": 0.7}, "one_layer"),
        ({"end": 0.7}, "learned"),
        ({"longer": (0.5, 0.1)}, "longer_needed"),
        ({"longer": (0.9, 0.6)}, "longer_not_needed"),
        ({"times": (900.0, 300.0)}, "sooner"),
        ({"score": 2.0}, "time_induction"),
        ({"held_out": 0.6}, "held_out"),
        ({"target": 0.8}, "without_target"),
    ],
)
def test_each_part_of_it_can_fail(changes, named):
    assert named in failing(made_up(**changes))


def test_networks_of_one_kind_alone_leave_it_undecided():
    dataset = made_up().isel(seed=slice(0, None, 2))
    assert not failing(dataset)
    assert outcome(dataset) is Outcome.UNDECIDED
    assert outcome(made_up().isel(seed=slice(1, None, 2))) is Outcome.UNDECIDED


def test_networks_between_the_kinds_are_of_neither():
    dataset = made_up()
    ablated = dataset["ablation_accuracy"].copy()
    ablated.loc[{"ablation": claim.PREVIOUS, "seed": [0, 1]}] = 0.5
    kind = claim.kinds(dataset.assign(ablation_accuracy=ablated).sel(layers=2), 0.4)
    assert kind["needed"].values.tolist() == [False, False, True, False] + [True, False] * 11
    assert kind["not needed"].values.tolist() == [False, False, False, True] + [False, True] * 11


def test_one_layer_alone_is_judged_as_far_as_it_goes():
    assert outcomes(made_up().isel(layers=[0])) == {"one_layer": Outcome.HOLDS}


def test_the_guess_is_the_best_of_all_fixed_distances():
    """Every period's prompt written out, and every choice of a distance for every position."""
    shortest, longest, tokens = 2, 3, 7
    right = np.zeros((tokens, tokens))
    asked = 0
    for p in range(shortest, longest + 1):
        string = np.arange(tokens) % p
        for i in range(p, tokens - 1):
            asked += 1
            for d in range(1, i + 2):
                right[i, d - 1] += string[i + 1 - d] == string[i + 1]
    assert claim.guessing(shortest=shortest, longest=longest, tokens=tokens) == right.max(axis=1).sum() / asked
    assert claim.guessing(shortest=5, longest=5, tokens=12) == 1.0


def test_what_is_kept_of_the_patterns_by_hand():
    """Tokens 3 1 2 3 1: from the second 3 the target is the token 1 at place 1, from the second 1 the 2 at place 2."""
    kept = np.asarray(measure._kept(jnp.array([3, 1, 2, 3, 1])))
    named = dict(zip(("none", *claim.ABLATIONS), kept, strict=True))
    np.testing.assert_array_equal(named["none"], 1)
    np.testing.assert_array_equal(np.argwhere(named["previous token"][0] == 0), [[i, i - 1] for i in range(1, 5)])
    np.testing.assert_array_equal(np.argwhere(named["same token"][0] == 0), [[3, 0], [4, 1]])
    np.testing.assert_array_equal(np.argwhere(named["induction target"][1] == 0), [[3, 1], [4, 2]])
    np.testing.assert_array_equal(named["all but induction target"][1], 1 - named["induction target"][1])
    for name, block in itertools.product(claim.ABLATIONS, (0, 1)):
        if (block == 0) != (name in ("previous token", "same token")):
            np.testing.assert_array_equal(named[name][block], 1)


def test_a_shifted_target_is_the_tokens_earlier_self():
    tokens = jnp.array([3, 1, 2, 3, 1])
    kept = np.asarray(measure._kept(tokens, shifted=True))
    named = dict(zip(("none", *claim.ABLATIONS), kept, strict=True))
    np.testing.assert_array_equal(np.argwhere(named["induction target"][1] == 0), [[3, 0], [4, 1]])
    np.testing.assert_array_equal(named["all but induction target"][1], 1 - named["induction target"][1])


def test_it_fails_on_gradual_curves_of_both_kinds():
    point = SimpleNamespace(
        made_up="gradual", step=tuple(STEPS), seed=tuple(range(24)), prompts=1024, period=tuple(PERIODS), layers=2
    )
    point.ablation = claim.ABLATIONS
    found = measure.measure(point, key=None, made_up="gradual")
    dataset = xr.Dataset(
        {name: ((*axes, "layers"), values[..., None]) for name, (axes, values) in found.items()},
        coords={
            "layers": [2],
            "seed": list(point.seed),
            "step": STEPS,
            "period": PERIODS,
            "ablation": list(point.ablation),
        },
        attrs={"configuration": json.dumps({"fixed": FIXED})},
    )
    assert {"longer_not_needed", "sooner", "width", "time_induction"} <= set(failing(claim.theory(dataset)))


def test_shuffled_prompts_have_the_same_tokens_in_any_order(getkey):
    task = PeriodicStrings(vocabulary=9, shortest=3, longest=3, tokens=7)
    tokens = np.asarray(measure.Shuffled(task).sample_many(200, key=getkey()).tokens)
    assert all(sorted(np.unique(row, return_counts=True)[1]) == [2, 2, 3] for row in tokens)
    repeats = np.mean(tokens[:, 3:] == tokens[:, :-3])
    # Two places of seven hold one token with probability (3 * 2 + 2 * 1 + 2 * 1) / (7 * 6).
    assert abs(repeats - 10 / 42) < 4 * 0.5 / (200 * 4) ** 0.5


def test_the_order_of_a_shuffled_prompt_is_not_drawn_by_the_key_of_its_tokens(getkey, monkeypatch):
    keys, tokens = [], jnp.arange(9)

    def sample(self, *, key):
        keys.append(key)
        return TokenPrompt(tokens)

    monkeypatch.setattr(PeriodicStrings, "sample", sample)
    key = getkey()
    task = PeriodicStrings(vocabulary=9, shortest=3, longest=3, tokens=9)
    found = measure.Shuffled(task).sample(key=key).tokens
    for other in (key, *keys):
        assert not np.array_equal(found, jax.random.permutation(other, tokens))
