"""What is particular to this claim: its check on made-up drops, its flow, and what a seed's kinds share."""

import itertools
import json
from types import SimpleNamespace

import equinox as eqx
import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.induction import _accuracy, _networks
from iclbook.claims.induction._matrix_head import MatrixHead, SquaredError
from iclbook.claims.induction.exponentials_or_products import claim, measure
from icllab.lab.checks import Outcome
from icllab.theory import induction_factors

STEPS = np.arange(0, 4001, 10)
FIXED = {"pairs": 4, "label_count": 16}


def made_up(effects=(0.4, 0.5, 0.3), width=0.6, last=4000, seeds=12, kinds=None, stuck=0):
    """Losses that fall through the loss of guessing in so much of their time, times the effects of what is there."""
    rng = np.random.default_rng(0)
    kinds = claim.FACTORS if kinds is None else kinds
    shape = [len(values) for values in kinds.values()]
    rows, rises = np.empty((2, 1, seeds, *shape, len(STEPS)))
    for at in itertools.product(*map(range, shape)):
        chosen = [values[i] for i, values in zip(at, kinds.values(), strict=True)]
        pairs = zip(chosen, claim.FACTORS.values(), effects, strict=True)
        share = width * np.prod([effect for one, (having, _), effect in pairs if one == having])
        guess = induction_factors.guessing_loss(pairs=4, objective=chosen[1])
        for seed in range(seeds):
            half = 1500 * np.exp(0.1 * rng.normal())
            own = share * half * np.exp(0.02 * rng.normal())
            slope = own / (np.log(9) + np.log(3))  # of a logistic from 0.9 to 0.25
            rows[0, seed, *at] = guess / (1 + np.exp((STEPS - half) / slope)) + guess * np.exp(-STEPS / 300)
            level = 1 / (1 + np.exp(-(STEPS - half) / (own / np.log(9))))  # a width of its own, from a tenth to a half
            rises[0, seed, *at] = 1 / 4 + 3 / 4 * level
    rows[0, :stuck, 0, 0, 0] = 1.1
    dims = ("dim", "seed", *kinds, "step")
    dataset = xr.Dataset(
        {"label_loss": (dims, rows), "right_share": (dims, rises)},
        coords={"dim": [31], "seed": np.arange(seeds), "step": STEPS} | {k: list(v) for k, v in kinds.items()},
        attrs={"configuration": json.dumps({"fixed": FIXED})},
    )
    return claim.theory(dataset.sel(step=slice(0, last)))


outcomes, failing, outcome = judged(claim.check)


COUNTS = {"attention": (4, 3), "objective": (2, 1), "strengths": (4, 4)}  # of the flow, and in networks


def test_it_holds_where_all_is_as_claimed():
    found = outcomes(made_up())
    assert set(found.values()) == {Outcome.HOLDS}
    for name, (flow, networks) in COUNTS.items():
        assert sum(id.startswith(f"flow_{name}") for id in found) == flow
        assert sum(id.startswith(f"networks_{name}") for id in found) == networks
    excepted = "networks_attention[dim=31,objective=squared error,strengths=products]"
    assert excepted not in found
    assert excepted.replace("squared error", "cross-entropy") in found


@pytest.mark.parametrize("place", range(3))
def test_it_fails_where_a_factor_does_nothing(place):
    effects = [0.4, 0.5, 0.3]
    effects[place] = 1.0
    name = list(claim.FACTORS)[place]
    found = failing(made_up(effects=effects))
    assert len(found) == COUNTS[name][1]
    assert all(id.startswith(f"networks_{name}") for id in found)


def test_it_fails_where_the_flow_is_otherwise():
    dataset = made_up()
    even = {name: xr.full_like(dataset[name], 0.5) for name in ("flow_width", "flow_rise_width")}
    assert sum(name.startswith("flow_") for name in failing(dataset.assign(even))) == 10


def test_the_rise_is_timed_from_a_tenth_to_a_half_of_the_way():
    """Of a share that rises as a straight line from 1/4 to 1 between the steps 1000 and 2000: 400 over 1500."""
    line = 1 / 4 + 3 / 4 * np.clip((STEPS - 1000) / 1000, 0, 1)
    curve = xr.DataArray([line, line[:1].repeat(len(STEPS))], dims=("seed", "step"), coords={"step": STEPS})
    found = claim.rise_widths(curve, 1 / 4)
    np.testing.assert_allclose(found, [400 / 1500, np.nan])


def test_a_loss_timed_alike_says_nothing_of_the_objective():
    """Attention that forms alike under both objectives fails it, however much sooner one loss falls."""
    dataset = made_up()
    same = dataset["right_share"].sel(objective=["squared error"] * 2).assign_coords(objective=dataset.objective)
    found = failing(claim.theory(dataset.assign(right_share=same)))
    assert len(found) == 1
    assert all(id.startswith("networks_objective") for id in found)


def test_it_is_undecided_where_losses_have_not_dropped_or_seeds_are_few():
    assert outcome(made_up(stuck=2)) is Outcome.UNDECIDED
    assert not failing(made_up(stuck=2))
    assert outcome(made_up(seeds=2)) is Outcome.UNDECIDED
    kinds = {**claim.FACTORS, "attention": ("softmax",)}
    found = {name: one for name, one in outcomes(made_up(kinds=kinds)).items() if name.startswith("networks_attention")}
    assert set(found.values()) == {Outcome.UNDECIDED}


def test_widths_are_those_of_the_curves():
    """Of a fall as a straight line from 1 to 0 between two times: 0.65 of the distance, over the time of a half."""
    dataset = made_up(seeds=2)
    line = np.clip((2000 - STEPS) / 1000, 0, 1)
    guess = [induction_factors.guessing_loss(pairs=4, objective=one) for one in dataset.objective.values]
    straight = xr.DataArray(guess, dims="objective") * xr.DataArray(line, dims="step")
    found = claim.theory(dataset.assign(label_loss=straight + 0 * dataset["label_loss"]))["drop_width"]
    np.testing.assert_allclose(found, 650 / 1500, rtol=1e-10)


def test_the_flow_is_the_one_of_the_theory():
    found = made_up(seeds=2)["flow_width"].sel(flow_attention="first order", flow_objective="squared error")
    sizes = {"pairs": 4, "labels": 16, "attention": "first order", "objective": "squared error"}
    for strengths, factors in (("weights", 1), ("products", 2)):
        how = {"time": 300.0, "factors": factors, "levels": (0.9, 0.5, 0.25)}
        top, half, foot = induction_factors.flow((0.01,) * 3, **sizes, **how).crossings.values()
        assert float(found.sel(flow_strengths=strengths)) == pytest.approx((foot - top) / half, rel=1e-9)


@pytest.mark.parametrize(
    ("attention", "strengths", "ratio"),
    [
        ("softmax", "weights", 0.52),
        ("first order", "weights", 0.44),
        ("softmax", "products", 0.66),
        ("first order", "products", 3.5),
    ],
)
def test_on_the_flow_the_cross_entropy_shortens_the_forming_of_attention_of_weights(attention, strengths, ratio):
    widths = made_up(seeds=2)["flow_rise_width"].sel(flow_attention=attention, flow_strengths=strengths)
    found = float(widths.sel(flow_objective="cross-entropy") / widths.sel(flow_objective="squared error"))
    assert found == pytest.approx(ratio, rel=0.02)


def test_kinds_of_a_seed_begin_alike_and_seeds_differently():
    sizes = {"pairs": 2, "label_count": 4, "dim": 5, "batch": 4, "prompts": 64, "rate": 0.01, "scale": 1.0}
    kinds = {"attention": ("softmax",), "objective": ("cross-entropy",), "strengths": ("products", "weights")}
    point = SimpleNamespace(**sizes, **kinds, step=(0, 2), seed=(0, 1))
    axes, losses = measure.measure(point, key=jax.random.key(0))["label_loss"]
    assert axes == ("seed", *claim.FACTORS, "step")
    losses = losses[:, 0, 0]
    np.testing.assert_allclose(losses[:, 0, 0], losses[:, 1, 0], rtol=1e-5)
    assert np.abs(losses[0] - losses[1]).min() > 1e-4
    # After two steps: gradients of factors and of what they multiply to differ.
    assert np.abs(losses[:, 0, 1] - losses[:, 1, 1]).min() > 1e-6


def test_the_share_of_attention_is_that_of_the_right_label_among_labels(getkey):
    task = _networks.task(key=getkey(), labels=4, pairs=3, dim=5)
    head = MatrixHead.init(task, attention="first order", factors=1, scale=1.0, key=getkey())
    batch = task.sample_many(6, key=getkey())
    found = measure._shares(*_accuracy.stack([head]), batch)
    right, every = 0.0, 0.0
    for i in range(6):
        prompt = jax.tree.map(lambda leaf, i=i: leaf[i], batch)
        pattern = np.asarray(eqx.filter_jit(head.pattern)(prompt))[0]
        assert pattern.shape == (7,)
        right += pattern[1 + 2 * int(np.argmax(np.asarray(prompt.matches)))]
        every += pattern[1::2].sum()
    np.testing.assert_allclose(found, [right / every], rtol=1e-4)


def test_given_attention_leaves_the_readout_alone(getkey):
    task = _networks.task(key=getkey(), labels=4, pairs=2, dim=5)
    head = MatrixHead.init(task, attention="softmax", factors=2, scale=1.0, key=getkey())
    prompt = task.sample(key=getkey())
    found = eqx.filter_jit(measure.Formed(head))(prompt)
    vector = np.asarray(task.label_vectors)[int(prompt.labels[-1])]
    expected = vector @ np.asarray(head.readout[0]) @ np.asarray(head.readout[1])
    np.testing.assert_allclose(np.asarray(found)[0], expected, rtol=1e-4, atol=1e-6)


def test_each_kind_is_trained_as_it_says(monkeypatch):
    """Rates, objectives and factors of all eight, and keys that differ between seeds and uses, not between kinds."""
    calls = []

    def fit(head, task, *, key, sweep, steps, record, **_):
        rule = steps.rules[0]
        calls.append((head, task, key, sweep["optimizer.rate"][0], float(rule.value), record.held_out))
        loss = xr.DataArray(np.zeros((1, 2, 1)), dims=("member", "step", "position"), coords={"step": [0, 1]})
        return SimpleNamespace(dataset=xr.Dataset({"held_out_loss": loss}))

    monkeypatch.setattr(measure.icl, "fit", fit, raising=False)
    monkeypatch.setattr(measure, "shares", lambda run, steps, batch: np.zeros(len(steps)))
    sizes = {"pairs": 2, "label_count": 4, "dim": 5, "batch": 4, "prompts": 8, "rate": 0.5, "scale": 1.0}
    point = SimpleNamespace(**sizes, **claim.FACTORS, step=(0, 1), seed=(0, 1))
    measure.measure(point, key=jax.random.key(0))
    assert len(calls) == 16
    rates = {}
    for head, task, _, rate, enough, _ in calls[:8]:
        squared = isinstance(task, SquaredError)
        rates[head.attention, squared, len(head.match)] = rate
        guess = induction_factors.guessing_loss(pairs=2, objective=claim.FACTORS["objective"][squared])
        assert enough == pytest.approx(0.2 * guess, rel=1e-6)
    expected = {(s, c): 0.5 * (2 if s else 1) * (2 if c == 1 else 1) for s in (False, True) for c in (1, 2)}
    assert rates == {(kind, *other): rate for kind in claim.FACTORS["attention"] for other, rate in expected.items()}
    keys = [jax.random.key_data(key).tolist() for _, _, key, *_ in calls]
    assert all(key == keys[0] for key in keys[:8])
    assert keys[0] != keys[8]
    heads = [np.asarray(calls[i][0].match[0]) for i in (0, 8)]
    assert np.abs(heads[0] - heads[1]).max() > 0.1
    items = [np.asarray(calls[i][5].items) for i in (0, 7, 8)]
    np.testing.assert_array_equal(items[0], items[1])
    assert np.abs(items[0] - items[2]).max() > 0.1
