"""What is particular to this claim: its check on made-up power laws, and its network."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged, theory_under

from iclbook.claims.induction import _race
from iclbook.claims.induction.race_of_memorising import claim, measure
from icllab.lab.checks import Outcome
from icllab.theory import memorisation_race

PAIRS, CLASSES, SEEDS = np.array([8, 16, 32]), np.array([64, 128, 256, 512]), np.arange(12)
SIZES = _race.Sizes(pairs=6, dim=63, hidden=16, batch=64, rate=0.5, std=0.1)


def made_up(theory=claim.theory, nu=0.92, late=1.0, shift=1.0, power=0.0, wins=None):
    """Networks on a power law of memorising, with the context ``late``, thresholds ``shift`` times the prediction."""
    rng = np.random.default_rng(0)
    context = np.array([memorisation_race.context_time(int(n)) for n in PAIRS])[:, None] * late
    context = context * np.exp(0.02 * rng.normal(size=(len(PAIRS), len(SEEDS))))
    drive = 0.2 * CLASSES[:, None] ** nu * np.exp(0.03 * rng.normal(size=(len(PAIRS), len(CLASSES), len(SEEDS))))
    needed = np.exp(np.log(context / 2).mean(axis=1))
    threshold = shift * (needed / 0.2) ** (1 / nu) * (PAIRS / 16.0) ** power
    ratios = np.geomspace(0.3, 3.0, 9) * np.exp(np.log(threshold / PAIRS).mean())
    margin = np.log(ratios[None, :, None] * PAIRS[:, None, None] / threshold[:, None, None])
    copies = np.exp(8 * margin + 0.5 * rng.normal(size=(len(PAIRS), len(ratios), len(SEEDS))))
    copies = copies if wins is None else 0 * copies + (2.0 if wins else 0.1)
    dataset = xr.Dataset(
        {
            "memorising_drive": (("pairs", "classes", "seed"), drive),
            "memorising_time": (("pairs", "classes", "seed"), 3 * drive),
            "context_time": (("pairs", "seed"), context),
            "start_match": (("pairs", "seed"), 0 * context),
            "start_value": (("pairs", "seed"), 0 * context),
            "copy_logit": (("pairs", "classes_per_pair", "seed"), copies),
        },
        coords={"pairs": PAIRS, "classes": CLASSES, "classes_per_pair": ratios, "seed": SEEDS},
        attrs={"configuration": json.dumps({"fixed": {}})},
    )
    return theory(dataset)


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"nu": 1.0}, {"exponent_time", "exponent_drive"}),
        ({"late": 1.3}, {"context_time"}),
        ({"shift": 1.7}, {"threshold"}),
        ({"power": 0.7}, {"power"}),
        ({"wins": True}, {"few"}),
        ({"wins": False}, {"many"}),
        ({"theory": theory_under(claim, "reverse")}, {"power", "threshold"}),
    ],
)
def test_it_fails_where_one_thing_is_otherwise(changes, found):
    assert found <= names(made_up(**changes)) <= found | {"threshold"}


def runs(parts, classes=40, steps=80, seeds=2, sizes=SIZES):
    keys = jnp.stack([jax.random.key(seed) for seed in range(seeds)])
    records = _race.train(np.full(seeds, classes), keys, sizes=sizes, parts=parts, steps=steps, every=8)
    return {name: np.asarray(values, float) for name, values in records.items()}


def test_the_context_alone_takes_the_time_of_the_closed_form():
    curves = runs(_race.Parts("none"), steps=160, seeds=4, sizes=SIZES._replace(std=0.0))
    times = 0.5 * (8 * np.arange(20) + 3.5)
    copies = _race.copy_logit(curves["value"], curves["match"], SIZES.pairs)
    measured = [_race.crossing(times, curve, 1.0) for curve in copies]
    assert np.mean(measured) == pytest.approx(memorisation_race.context_time(SIZES.pairs), rel=0.1)
    assert copies[0, 0] == pytest.approx(curves["value"][0, 0] / SIZES.pairs, rel=0.2)  # attention is even at first


def test_what_each_part_does():
    frozen = runs(_race.Parts(frozen=True))
    assert np.ptp(frozen["value"], axis=1).max() == np.ptp(frozen["match"], axis=1).max() == 0.0
    assert frozen["remaining"][:, -1].max() < 0.2  # memorised
    turned = runs(_race.Parts(reshuffled=True, context=False))
    assert abs(turned["loss"][:, 1:] - np.log(2)).max() < 0.1  # nothing can be
    few, many = (runs(_race.Parts("table", context=False), classes=k, steps=160)["loss"][:, -1] for k in (20, 40))
    earlier = runs(_race.Parts("table", context=False), classes=20, steps=80)["loss"][:, -1]
    np.testing.assert_allclose(earlier, many, rtol=0.1)  # a table takes twice the time for twice the classes
    assert np.all(few < 0.8 * many)


def test_runs_of_one_start_have_prompts_of_their_own():
    keys = jnp.stack([jax.random.key(seed) for seed in range(2)])
    starts = jnp.stack([keys[0]] * 2)
    arguments = {"sizes": SIZES, "parts": _race.Parts(), "steps": 8, "every": 1}
    common = _race.train(np.full(2, 40), keys, starts=starts, **arguments)
    apart = _race.train(np.full(2, 40), keys, **arguments)
    assert common["match"][0, 0] == common["match"][1, 0] != apart["match"][1, 0]
    assert common["loss"][0, 0] != common["loss"][1, 0]
    np.testing.assert_array_equal(common["loss"][0], apart["loss"][0])


def test_a_level_that_is_never_reached_has_an_infinite_time():
    time = np.array([1.0, 2.0, 3.0])
    assert _race.crossing(time, np.array([0.0, 1.0, 3.0]), 2.0) == 2.5
    assert _race.crossing(time, np.array([2.0, 0.0, 0.0]), 2.0) == 1.0
    assert _race.crossing(time, np.zeros(3), 2.0) == np.inf


def test_times_of_several_numbers_of_classes_and_seeds_are_those_of_one_at_a_time():
    sizes = {"pairs": 4, "dim": 15, "hidden": 8, "batch": 16, "rate": 0.5, "std": 0.1, "longest": 60.0, "race": 3.0}
    names = ("memorising_time", "memorising_drive")

    def measured(classes, seeds):
        point = SimpleNamespace(**sizes, classes=classes, seed=seeds, classes_per_pair=(3, 6))
        rows = measure.measure(point, key=jax.random.key(7), weights="table")
        return {name: np.asarray(rows[name][1]) for name in (*names, "copy_logit")}

    together = measured((8, 24), (0, 1))
    for i, classes in enumerate((8, 24)):
        alone = measured((classes,), (0, 1))
        for name in names:
            np.testing.assert_array_equal(alone[name][0], together[name][i])
    for j, seed in enumerate((0, 1)):
        alone = measured((8, 24), (seed,))
        for name in (*names, "copy_logit"):
            np.testing.assert_array_equal(alone[name][:, 0], together[name][:, j])
    assert len(np.unique(together["memorising_drive"])) == 4


def test_only_the_first_item_of_a_prompt_is_of_the_class_of_the_query():
    """Items are orthogonal, so that the products tell their classes."""
    classes, items = 5, jnp.eye(8)
    sizes = SIZES._replace(pairs=6, batch=400)
    prompt = _race._prompt(jax.random.key(2), items, jnp.ones(8), classes, sizes, _race.Parts())
    products = np.asarray(prompt["products"])
    np.testing.assert_array_equal(products[:, 0], 1.0)
    np.testing.assert_array_equal(products[:, 1:], 0.0)
