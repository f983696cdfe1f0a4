"""What is particular to this claim: its check on flows of eight numbers, and its simulation against them."""

import functools
import json
import types

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged, theory_under

from iclbook.claims.induction.coopetition import claim, measure
from icllab.lab.checks import Outcome
from icllab.theory import coopetition

SEEDS, STEPS = np.arange(4), np.array([0, 200, 4000])
FLOW = coopetition.flow
FIXED = {"dim": 10, "cost": 0.05, "rate": 1.0, "std": 0.3}


@functools.cache
def _kept(overlaps, sizes, squares, floors, cost, dim, times, held):
    return FLOW(overlaps, sizes, squares=squares, floors=floors, cost=cost, dim=dim, times=times, held=held)


@pytest.fixture(autouse=True)
def _flows_once(monkeypatch):
    """Integrate each flow once."""

    def flow(overlaps, sizes, *, squares, floors, cost, dim, times, held):
        arrays = (tuple(map(float, part)) for part in (overlaps, sizes, squares, floors))
        return _kept(*arrays, float(cost), dim, tuple(map(float, times)), held)

    monkeypatch.setattr(coopetition, "flow", flow)


def made_up(floors=claim.FLOORS, cost=0.05, earlier=0.7, spread=0.02, theory=claim.theory):
    """Curves of the flow from random starts, with other floors or another cost, and made-up times."""
    rng = np.random.default_rng(0)
    shape = len(floors), 2, len(SEEDS)
    errors = np.empty((*shape, len(STEPS), 2))
    starts = {name: np.empty((*shape, 4)) for name in ("overlap", "size_beside", "target_square")}
    for at in np.ndindex(shape):
        held = ("d",) if at[1] else ()
        x, r, squares = np.array([0.25, 0.26, 0.27, 0.26]), np.full(4, 0.3), np.ones(4)
        x[3], r[3] = (0.0, 0.0) if held else (x[3], r[3])
        law = {"floors": list(floors.values())[at[0]], "cost": cost, "dim": 10, "times": STEPS, "held": held}
        errors[at] = 2 * coopetition.flow(x, r, squares=squares, **law).errors
        for name, value in zip(starts, (x, r, squares), strict=True):
            starts[name][at] = value
    axes = ("setting", "arrangement", "seed")
    alone = 400 * np.exp(spread * rng.normal(size=(len(floors), 1, len(SEEDS))))
    ratio = np.array([earlier, 1.0])[:, None] * np.exp(spread * rng.normal(size=shape))
    dataset = xr.Dataset(
        {
            "relative_error": ((*axes, "step", "mechanism"), errors + 1e-4 * rng.random(errors.shape)),
            "learned_step": (axes, alone * ratio),
            "least_error": (axes, errors[..., 0].min(axis=-1)),
            **{name: ((*axes, "vector"), values) for name, values in starts.items()},
        },
        coords={
            "setting": list(claim.FLOORS),
            "arrangement": [claim.TOGETHER, claim.ALONE],
            "seed": SEEDS,
            "step": STEPS,
            "mechanism": list(claim.MECHANISMS),
            "vector": list("abcd"),
        },
        attrs={"configuration": json.dumps({"fixed": FIXED})},
    )
    return theory(dataset)


outcomes, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"earlier": 1.4}, {"earlier"}),
        ({"cost": 0.0}, {"fades", "flow"}),
        ({"floors": {"second free": (0.0, 0.1), "first free": (0.1, 0.0), "both floored": (0.1, 0.02)}}, {"fades"}),
        ({"floors": claim.FLOORS | {"both floored": (0.1, 0.0)}}, {"both"}),
        ({"theory": theory_under(claim, "free_flow")}, {"flow"}),
    ],
)
def test_it_fails_where_one_thing_is_otherwise(changes, found):
    assert found <= names(made_up(**changes))
    assert names(made_up(**changes)) <= found | {"flow", "stays", "learned"}


def test_no_difference_in_time_is_no_cooperation():
    assert outcomes(made_up(earlier=1.0))["earlier"] is Outcome.UNDECIDED


def test_the_simulation_is_the_flow_from_its_own_start():
    point = types.SimpleNamespace(
        setting="both floored",
        arrangement=(claim.TOGETHER, claim.ALONE),
        step=(0, 200, 800),
        seed=(0, 1),
        **FIXED | {"rate": 0.25},
    )
    measured = measure.measure(point, key=jax.random.key(3))
    for i, held in enumerate([(), ("d",)]):
        for j in range(2):
            x, r, squares = (measured[name][1][i, j] for name in ("overlap", "size_beside", "target_square"))
            np.testing.assert_allclose(squares, 1.0, rtol=1e-5)
            law = {"squares": squares, "floors": (0.1, 0.02), "cost": 0.05, "dim": 10, "held": held}
            path = coopetition.flow(x, r, times=0.25 * np.array(point.step), **law)
            np.testing.assert_allclose(measured["relative_error"][1][i, j], 2 * path.errors, atol=0.01)
    errors, times = (measured[name][1] for name in ("relative_error", "learned_step"))
    assert np.all((errors[..., 1, 0] < 0.5) == (times <= 200))
    assert np.all(errors[1, ..., 1] == pytest.approx(1.0))  # alone
