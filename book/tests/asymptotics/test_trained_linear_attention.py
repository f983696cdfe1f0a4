"""What is particular to this claim: its check on synthetic data, and what gradient descent and the factors conserve."""

import json

import jax
import numpy as np
import pytest
import xarray as xr

from iclbook.claims.asymptotics.trained_linear_attention import claim
from iclbook.claims.asymptotics.trained_linear_attention.measure import measure
from icllab.lab.checks import Outcome

FIXED = {"alpha": 1.0, "kappa": 2.0, "rho": 0.1}
WAYS = ["exact", "descent", "Adam", "layer"]
DIMS, TAUS, RIDGES = np.array([6, 12, 24]), np.array([0.4, 3.0]), np.array([0.0, 0.3])


def made_up(excess=0.2, shift=1.0, noise=0.02, seeds=24, off=0.0, trained=1e-9):
    """Errors that follow the closed form; Adam and the layer ``excess`` above it where they may, ``off`` where not."""
    rng = np.random.default_rng(0)
    coords = {"dim": DIMS, "tau": TAUS, "ridge": RIDGES, "training": WAYS, "seed": np.arange(seeds)}
    shape = tuple(len(values) for values in coords.values())
    many = (TAUS < 1)[:, None] & (RIDGES == 0)[None]
    other = np.where(many[..., None], np.array([0, 0, 1, 1]), 0)[None, ..., None]
    distance = np.broadcast_to(np.where(other == 1, 0.5, np.array([0, off, off, off])[:, None]), shape)
    empty = xr.Dataset(coords=coords, attrs={"configuration": json.dumps({"fixed": FIXED})})
    limit = claim.theory(empty)["icl_theory"].values[None, :, :, None, None]
    size = 1 + 3 / DIMS[:, None, None, None, None]
    common = np.exp(noise * rng.normal(size=(*shape[:3], 1, seeds)))
    own = np.exp(excess * other * (1 + 0.3 * rng.normal(size=shape)))
    variables = {
        "icl_error": shift * limit * size * common * own,
        "gamma_distance": distance,
        "gamma_norm": np.exp(other * excess * (1 + 0.3 * rng.normal(size=shape))),
        "training_error": np.full(shape, trained),
    }
    dims = ("dim", "tau", "ridge", "training", "seed")
    return claim.theory(empty.assign({name: (dims, values) for name, values in variables.items()}))


def test_it_fails_where_one_minimum_is_not_reached():
    failing = [f.id for f in claim.check(made_up(off=0.02)) if f.outcome is Outcome.FAILS]
    assert len(failing) == 3 * 3 + 1  # everything where there is one minimum, gradient descent where there are many
    assert all(name.startswith("distance[") for name in failing)


def test_it_fails_where_the_others_end_at_a_smaller_norm_and_error():
    failing = [f.id for f in claim.check(made_up(excess=-0.2)) if f.outcome is Outcome.FAILS]
    assert len(failing) == 2 * 2 * 3  # two ways, norm and error, three dimensions
    assert all({"tau=0.4", "ridge=0"} <= set(name[:-1].split("[")[1].split(",")) for name in failing)
    assert {name.split("[")[0] for name in failing} == {"norm", "error"}


def test_it_fails_where_the_closed_form_is_a_quarter_off():
    failing = [f.id for f in claim.check(made_up(shift=1.25)) if f.outcome is Outcome.FAILS]
    assert len(failing) == 4
    assert all(name.startswith("closed_form[") for name in failing)


@pytest.mark.slow
def test_gradient_descent_ends_at_the_least_norm_and_adam_and_the_layer_do_not(getkey):
    experiment, key = claim.claim, getkey()
    grid = experiment.grid("smoke", {"tau": [0.4], "dim": [4]}, seeds=2)
    point = experiment.point(next(grid.cells()), grid.traced)
    with jax.enable_x64(True):
        found = measure(point, key=key)
        point.seed, point.training = (1,), ("exact", "descent")
        alone = measure(point, key=key)
    dims, distance = found["gamma_distance"]
    assert dims == ("seed", "training", "ridge")
    assert distance[:, 0].max() == 0
    assert distance[:, 1].max() < claim.NEAR < distance[:, 2:, 0].min()
    norm = found["gamma_norm"][1][..., 0]
    assert (norm[:, 2:] > 1).all()  # of all that fit exactly, the least norm is the least
    assert np.isnan(distance[:, 3, 1]).all()  # a decay of P and Q is no ridge on their product
    for name, (_, values) in alone.items():  # a seed does not depend on those beside it
        np.testing.assert_allclose(values[0], found[name][1][1, :2], rtol=1e-9, atol=1e-12)
