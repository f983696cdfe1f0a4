"""What is particular to this claim: distances from the family on made-up matrices, and its check on them."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr

from iclbook.claims.descent.multi_layer_preconditioner import claim, measure
from icllab.lab.checks import Outcome, worst
from icllab.theory import preconditioners

STEPS, LAYERS = (0, 1000, 6000), 3


def made_up(near=0.05, other=0.3, contraction=0.05, seeds=10, settings=("whitened", "anisotropic"), spread=0.05):
    """Matrices that go from random ones to the family, up to a part that is as far from it as is asked for."""
    rng, dim = np.random.default_rng(0), 4
    sigma = claim.covariance(dim)
    values, vectors = np.linalg.eigh(sigma)
    inner = vectors / np.sqrt(values)  # from coordinates in which inputs are white
    shape = (1, len(settings), len(STEPS), seeds, LAYERS, dim, dim)
    a, b = np.empty(shape), np.empty(shape)
    for at in np.ndindex(shape[:-2]):
        part, step = settings[at[1]], STEPS[at[2]]
        for matrices, last in ((a, near if part == "whitened" else other), (b, contraction)):
            size = 1e6 if step == 0 else last * np.exp(spread * rng.normal())
            away = rng.normal(size=(dim, dim))
            away -= np.trace(away) / dim * np.eye(dim)
            matrices[at] = np.eye(dim) + size * np.sqrt(dim) * away / np.linalg.norm(away)
        a[at] = inner @ a[at] @ inner.T * (1 + at[4])
    dims = ("dim", "setting", "step", "seed", "layer", "row", "column")
    coords = {"dim": [dim], "setting": list(settings), "step": list(STEPS), "seed": np.arange(seeds)}
    coords |= {"layer": [1, 2, 3], "row": np.arange(dim), "column": np.arange(dim)}
    dataset = xr.Dataset({"preconditioner": (dims, a), "contraction": (dims, b)}, coords=coords)
    return dataset.assign(test_loss=(dims[:4], np.ones(shape[:4]))).expand_dims(layers=[LAYERS])


def outcome(dataset):
    return worst(finding.outcome for finding in claim.check(claim.theory(dataset)))


def failing(dataset):
    return [found.id for found in claim.check(claim.theory(dataset)) if found.outcome is Outcome.FAILS]


def test_distances_are_those_that_the_matrices_were_made_with():
    """The identity plus a traceless part of relative size r is r/sqrt(1 + r^2) from a multiple of the identity."""
    dataset = claim.theory(made_up(spread=0.0)).isel(dim=0, layers=0)
    for name, size in (("whitened", 0.05), ("anisotropic", 0.3)):
        found = dataset["preconditioner_distance"].sel(setting=name).isel(step=-1)
        np.testing.assert_allclose(found, size / np.hypot(1, size), rtol=1e-6)
    np.testing.assert_allclose(dataset["contraction_distance"].isel(step=-1), 0.05 / np.hypot(1, 0.05), rtol=1e-6)


def test_the_last_contraction_is_left_out():
    dataset = made_up()
    wild = dataset.assign(
        contraction=dataset["contraction"].where(dataset.layer < 3, 1e3 * dataset["contraction"] ** 2)
    )
    np.testing.assert_array_equal(
        claim.theory(wild)["contraction_distance"], claim.theory(dataset)["contraction_distance"]
    )


def test_random_matrices_are_as_far_as_their_trace_is_small():
    """Of normal entries the trace has a d^2-th of the square: the mean distance is near sqrt(1 - 1/d^2)."""
    of_isotropic = claim.theory(made_up(), metric=np.eye)["random_distance"]
    np.testing.assert_allclose(of_isotropic, np.sqrt(1 - 1 / 16), atol=0.01)


def test_it_fails_where_the_matrices_stay_away_or_another_law_leads_nearer():
    assert failing(made_up(near=0.4, other=0.9)) == ["preconditioner_near[dim=4]", "preconditioner_falls[dim=4]"]
    assert failing(made_up(contraction=0.4)) == ["contraction_near[dim=4]", "contraction_falls[dim=4]"]
    assert failing(made_up(other=0.02)) == ["other_tasks[dim=4]"]


@pytest.mark.parametrize("dim", [2, 5])
def test_matrices_of_isotropic_inputs_are_far_from_the_family(dim):
    """So that networks trained on them fail, even those that become the best of their own distribution."""
    assert preconditioners.identity_distance(np.eye(dim), claim.covariance(dim)) > 1.9 * claim.NEAR


@pytest.mark.parametrize("dim", [2, 5])
def test_the_covariance_has_the_variances_named_in_directions_that_are_not_the_axes(dim):
    sigma = claim.covariance(dim)
    np.testing.assert_allclose(np.linalg.eigvalsh(sigma), np.sort(claim.VARIANCES[:dim]), rtol=1e-12)
    a, _ = preconditioners.family(sigma, np.ones(1))
    assert np.max(preconditioners.identity_distance(a, sigma)) < 1e-12
    assert np.abs(sigma - np.diag(np.diag(sigma))).max() > 0.05


def test_a_loss_is_a_mean_over_prompts(monkeypatch):
    """Of networks that are not there: each number stands at its step, seed and entry."""
    blocks = np.arange(8.0).reshape(2, 2, 2)
    member = SimpleNamespace(member=lambda i: i)
    run = SimpleNamespace(trajectory=SimpleNamespace(at=lambda step: member))
    monkeypatch.setattr(measure._layers, "train", lambda *_, **how: run)
    monkeypatch.setattr(measure._layers, "blocks", lambda network: (blocks + 10 * network, -blocks))
    monkeypatch.setattr(measure._layers, "on_shared_prompts", lambda networks, task, **how: np.array([[1.0, 2, 6]]))
    sizes = {"dim": 2, "length": 3, "layers": 2, "layer": (2,), "row": (0, 1), "column": (1,), "prompts": 3}
    point = SimpleNamespace(**sizes, setting="whitened", step=(0, 5), seed=(3, 4))
    found = measure.measure(point, key=jax.random.key(0))
    np.testing.assert_array_equal(found["test_loss"][1], np.full((2, 2), 3.0))
    np.testing.assert_array_equal(found["preconditioner"][1][0, :, 0, :, 0], [[5, 7], [15, 17]])
    np.testing.assert_array_equal(found["contraction"][1][1, 0, 0, :, 0], [-5, -7])
