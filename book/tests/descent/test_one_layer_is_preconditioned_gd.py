"""What is particular to this claim: its check on made-up matrices, and its formulas, wrong in one place only."""

import json

import numpy as np
import pytest
import xarray as xr
from judging import judged, theory_under

from iclbook.claims.descent.one_layer_is_preconditioned_gd import claim
from icllab.theory import preconditioners

SETTINGS, RHOS = ("isotropic", "anisotropic", "whitened"), (0.0, 0.5)
FIXED = {"length": 20, "smallest": 0.25}


def made_up(off=0.01, ratio=1.001, spread=3e-4, error=3e-4, seeds=10, settings=SETTINGS):
    """Matrices ``off`` the closed form by a random direction, and ratios around ``ratio``."""
    rng, dim = np.random.default_rng(0), 3
    matrices = np.empty((1, len(settings), len(RHOS), 1, seeds, dim, dim))
    for i, setting in enumerate(settings):
        for j, rho in enumerate(RHOS):
            of_inputs, of_tasks = claim.covariances(setting, dim, FIXED["smallest"])
            best = preconditioners.optimal(of_inputs, length=20, task_covariance=of_tasks, noise_variance=rho).matrix
            away = rng.normal(size=(seeds, dim, dim))
            size = np.linalg.norm(best) / np.linalg.norm(away, axis=(1, 2), keepdims=True)
            matrices[0, i, j, 0] = best + off * size * away
    dims = ("dim", "setting", "rho", "step", "seed")
    shape = matrices.shape[:5]
    dataset = xr.Dataset(
        {
            "preconditioner": ((*dims, "row", "column"), matrices),
            "loss_ratio": (dims, ratio + spread * rng.normal(size=shape)),
            "loss_ratio_error": (dims, np.full(shape, error)),
            "other_entries": (dims, np.zeros(shape)),
        },
        coords={"dim": [dim], "setting": list(settings), "rho": list(RHOS), "step": [2000], "seed": np.arange(seeds)},
        attrs={"configuration": json.dumps({"fixed": FIXED})},
    )
    return claim.theory(dataset)


_, failing, _ = judged(claim.check)


def test_the_exact_loss_is_least_at_the_closed_form():
    np.testing.assert_allclose(made_up(off=0.0)["exact_ratio"], 1.0, rtol=1e-12)
    assert (made_up(off=0.01)["exact_ratio"] > 1).all()


def test_it_fails_where_the_loss_is_too_large_or_too_small():
    at = [f"[dim=3,setting={setting},rho={rho:g}]" for setting in SETTINGS for rho in RHOS]
    assert failing(made_up(ratio=1.02)) == [f"loss{where}" for where in at]
    assert failing(made_up(ratio=0.99)) == [f"none_beats{where}" for where in at]
    assert failing(made_up(off=0.5)) == [f"exact_loss{where}" for where in at]


def of_isotropic_inputs(dataset):
    """The closed form of isotropic inputs of the same trace in the place of the right one."""

    def formula(covariance, **law):
        return preconditioners.optimal(np.trace(covariance) / len(covariance) * np.ones(len(covariance)), **law)

    return claim.theory(dataset, formula)


@pytest.mark.parametrize("wrong", [theory_under(claim, "without_length"), of_isotropic_inputs])
def test_wrong_formulas_have_a_larger_loss(wrong):
    """So that the matrices are below them; of isotropic inputs the one of the same trace is right."""
    dataset = wrong(made_up())
    assert any(id.startswith("none_under") for id in failing(dataset))
    if wrong is of_isotropic_inputs:
        np.testing.assert_array_equal(
            dataset["exact_ratio"].sel(setting="isotropic"), made_up()["exact_ratio"].sel(setting="isotropic")
        )


def test_the_best_matrix_of_isotropic_inputs_loses_far_more_than_the_claim_allows():
    """So that networks trained on them fail under the anisotropic distribution."""
    of_inputs, of_tasks = claim.covariances("anisotropic", 3, 0.25)
    law = {"length": 20, "task_covariance": of_tasks, "noise_variance": 0.1}
    best, other = (preconditioners.optimal(of, **law).matrix for of in (of_inputs, np.eye(3)))
    losses = [preconditioners.loss(matrix, of_inputs, **law) for matrix in (best, other)]
    assert losses[1] / losses[0] > 1.05


def test_the_law_of_tasks_is_the_one_that_is_named():
    for setting in SETTINGS:
        of_inputs, of_tasks = claim.covariances(setting, 4, 0.25)
        if setting == "whitened":
            np.testing.assert_allclose(of_inputs @ of_tasks, np.eye(4), atol=1e-12)
        else:
            np.testing.assert_array_equal(of_tasks, np.eye(4))
        values = np.linalg.eigvalsh(of_inputs)
        np.testing.assert_allclose(values[[0, -1]], [1.0 if setting == "isotropic" else 0.25, 1.0], rtol=1e-12)
