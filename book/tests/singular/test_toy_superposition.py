"""What is particular to this claim: its check on made-up worlds."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from jax.flatten_util import ravel_pytree
from judging import theory_under

from iclbook.claims.singular.toy_superposition import claim, measure
from icllab.lab.checks import Outcome
from icllab.theory import superposition

STEPS = np.array([0, *np.unique(np.geomspace(3, 30000, 50).round())])
NBETA = [30.0, 100.0, 400.0]
SHARES = [[0.1, 0.3, 0.4, 0.2], [0.0, 0.1, 0.5, 0.4], [0.0, 0.0, 0.1, 0.9]]


def made_up(error=0.05, early=2000.0, arrived=True, shares=SHARES, **shifts):
    """The exact numbers with a scatter of half a standard error; one descent falls late, one stays."""
    names = list(claim.POLYGONS)
    found = [superposition.polygon(k, positive=p) for k, p in claim.POLYGONS.values()]
    square, pentagon = found[1].loss, found[3].loss
    losses = np.stack([np.where(early > STEPS, square, pentagon), np.full(len(STEPS), square)]) + 0.1 / (1 + STEPS)
    last = found[3] if early < STEPS[-1] else found[1]
    ends = np.array([last.coefficient.value, found[1].coefficient.value]) + error / 2
    coefficients = np.full((2, len(STEPS)), np.nan)
    coefficients[:, -1] = ends
    scatter = error * np.where(np.arange(len(names)) % 2, 0.5, -0.5)
    columns = {
        "polygon_loss": ("polygon", [one.loss for one in found]),
        "polygon_slope": ("polygon", np.full(len(names), 1e-16)),
        "hessian_half_rank": ("polygon", [5.5, 7.0, 7.5, 7.0, 8.5, 8.5]),
        "learning_coefficient": ("polygon", [one.coefficient.value for one in found] + scatter),
        "learning_coefficient_error": ("polygon", np.full(len(names), error)),
        "sampler_warnings": ("polygon", np.zeros(len(names))),
        "annealing_warnings": ((), 0.0),
        "descent_loss": (("seed", "step"), losses + (0 if arrived else 0.01)),
        "descent_coefficient": (("seed", "step"), coefficients),
        "descent_coefficient_error": (("seed", "step"), np.where(np.isnan(coefficients), np.nan, error)),
        "descent_warnings": (("seed", "step"), np.where(np.isnan(coefficients), np.nan, 0.0)),
        "posterior_share": (("nbeta", "corners"), np.array(shares)),
        "posterior_share_error": (("nbeta", "corners"), np.full((3, 4), 0.01)),
    }
    dataset = xr.Dataset(
        columns,
        coords={"polygon": names, "step": STEPS, "nbeta": NBETA, "corners": list(claim.COUNTS)},
        attrs={"names": json.dumps(claim.claim.vocabulary.described())},
    )
    for name, shift in shifts.items():
        dataset[name] = dataset[name] + shift
    return claim.theory(dataset)


def outcomes(dataset):
    return {finding.outcome for finding in claim.check(dataset)}


def failing(dataset):
    return {finding.id.split("[")[0] for finding in claim.check(dataset) if finding.outcome is Outcome.FAILS}


def test_it_holds_where_all_is_as_claimed():
    assert outcomes(made_up()) == {Outcome.HOLDS}
    assert claim.ends(made_up()) == ["5", "4+"]


@pytest.mark.parametrize(
    ("made", "what"),
    [
        ({"polygon_loss": 1e-8}, {"loss"}),
        ({"polygon_slope": 1e-8}, {"slope"}),
        ({"learning_coefficient": 0.3}, {"coefficient"}),
        ({"shares": SHARES[::-1]}, {"gain"}),
        ({"shares": [SHARES[0], SHARES[1], SHARES[1]]}, {"six_last"}),
    ],
)
def test_it_fails_where_one_number_is_off(made, what):
    assert what <= failing(made_up(**made))


@pytest.mark.parametrize("control", ["regular", "no_constants"])
def test_a_wrong_formula_is_wrong_in_one_place_only(control):
    dataset = made_up()
    theory = theory_under(claim, control)
    assert theory is not None
    other = theory(dataset)
    changed = [name for name in dataset.data_vars if not dataset[name].equals(other[name])]
    found = {finding.id for finding in claim.check(other) if finding.outcome is Outcome.FAILS}
    if control == "regular":
        assert changed == ["learning_coefficient_theory"]
        squares = {f"coefficient[polygon={name}]" for name in ("4", "4+", "4++")}
        assert found - squares == {finding for finding in found if finding.startswith("end[polygon=4")}
        assert squares < found
    else:
        assert {"loss[polygon=4+]", "loss[polygon=4++]", "loss[polygon=5+]"} <= found


def test_the_loss_is_the_mean_over_one_feature_at_a_time():
    """By a sum over points of the feature, with the rectifier and without; at no polygon."""
    rng = np.random.default_rng(0)
    w = {"weights": rng.normal(size=(2, 6)), "bias": 0.3 * np.array([1, -1, 1, -1, 1, -1])}
    x = (np.arange(2000) + 0.5) / 2000
    inputs = x[:, None, None] * np.eye(6)
    answers = inputs @ w["weights"].T @ w["weights"] + w["bias"]
    for rectified, answer in ((True, np.maximum(answers, 0)), (False, answers)):
        cut = (answers > 0).mean(axis=0)  # from below where a feature lowers an answer, from above where it raises one
        assert ((cut > 0.1) & (cut < 0.9) & (w["bias"] > 0)).any()
        assert ((cut > 0.1) & (cut < 0.9) & (w["bias"] < 0)).any()
        wanted = ((inputs - answer) ** 2).sum(-1).mean()
        assert float(measure.Loss(rectified)(w)) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(("lengths", "expected"), [((0.7,) * 5 + (0.5,), 2), ((0.7,) * 4 + (0.5, 0.0), 1), ((0.9,), 0)])
def test_corners_are_the_columns_that_are_long_enough(lengths, expected):
    """Columns of six tenths and more count, whichever way they point."""
    angles = 2 * np.pi * np.arange(len(lengths)) / 7
    weights = np.array([np.cos(angles), np.sin(angles)]) * lengths
    found = measure.corners({"weights": jnp.asarray(weights)})
    np.testing.assert_array_equal(found, np.arange(4) == expected)


def test_of_polygons_loss_and_half_the_rank_are_those_of_the_hessian_written_out(monkeypatch):
    sampled = xr.Dataset({"estimate": 2.5, "mcse": 0.5}, attrs={"warnings": ["one", "two"]})
    monkeypatch.setattr(measure, "coefficient_at_temperature", lambda *args, **how: sampled)
    sizes = {"warm_up": 8, "n": 10.0, "localization": 1.0, "noise": 0.1, "rate": 0.1, "nbeta": (1.0,)}
    point = SimpleNamespace(**sizes, polygon=("4", "5", "6"), seed=(0,), step=(1,))
    with jax.enable_x64(True):
        found = measure.measure(point, key=jax.random.key(0))
        for i, name in enumerate(point.polygon):
            flat, shape = ravel_pytree(measure.at_polygon(name))
            values = np.linalg.eigvalsh(jax.hessian(lambda w, shape=shape: measure.Loss(True)(shape(w)))(flat))
            rank = np.sum(np.abs(values) > 1e-6 * np.abs(values).max())
            assert found["hessian_half_rank"][1][i] == rank / 2
            assert found["polygon_loss"][1][i] == pytest.approx(float(measure.Loss(True)(shape(flat))))
    assert found["polygon_slope"][1].max() < 1e-8
    assert (found["learning_coefficient"][1] == 2.5).all()
    assert (found["learning_coefficient_error"][1] == 0.5).all()
    assert (found["sampler_warnings"][1] == 2).all()
