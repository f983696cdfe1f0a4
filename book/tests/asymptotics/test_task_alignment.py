"""What is particular to this claim: theories wrong in one place only, and its check on synthetic data."""

import json

import numpy as np
import pytest
import xarray as xr
from judging import theory_under

from iclbook.claims.asymptotics.task_alignment import claim
from icllab.lab.checks import Outcome

DIMS, EXPONENTS, SETTINGS = np.array([20, 40, 80]), np.array([0.7, 1.0]), ["many contexts", "with ridge"]


FORMS, PREDICTED = {}, claim.closed_forms


def remembered(*points, **changed):
    """The closed forms, which take most of the time, once for every set of points and parameters."""
    key = repr((points, changed))
    if key not in FORMS:
        FORMS[key] = PREDICTED(*points, **changed)
    return FORMS[key]


@pytest.fixture(autouse=True)
def _few_forms(monkeypatch):
    monkeypatch.setattr(claim, "LINE", claim.LINE[::12])
    monkeypatch.setattr(claim, "closed_forms", remembered)


def made_up(shift=1.0, noise=0.01, seeds=24, converged=1.0, swapped=False, **changed):
    """A Dataset that follows the closed forms times ``shift`` at large d, with 1/d corrections."""
    rng = np.random.default_rng(0)
    found = claim.closed_forms(DIMS, EXPONENTS, SETTINGS, claim.TESTS, **changed)
    transfer, idg = (found[f"{kind}_error_theory"][1] for kind in ("transfer", "idg"))
    finite = (1 + 4 / DIMS + 10 / DIMS**2)[:, None, None]
    common = np.exp(noise * rng.normal(size=(*idg.shape, seeds)))
    own = np.exp(noise / 10 * rng.normal(size=(*transfer.shape, seeds)))
    errors = shift * transfer[..., None] * finite[..., None, None] * common[..., None, :] * own
    axes = ("dim", "exponent", "setting")
    dataset = xr.Dataset(
        {
            "transfer_error": ((*axes, "test_covariance", "seed"), errors[:, :, :, ::-1] if swapped else errors),
            "idg_error": ((*axes, "seed"), shift * idg[..., None] * finite[..., None] * common),
            "converged": ((*axes, "seed"), np.full(common.shape, converged)),
        },
        coords={
            "dim": DIMS,
            "exponent": EXPONENTS,
            "setting": SETTINGS,
            "test_covariance": list(claim.TESTS),
            "seed": np.arange(seeds),
        },
    )
    return claim.theory(dataset.assign_attrs(configuration=json.dumps({"fixed": {}})))


def test_it_fails_where_the_order_is_the_opposite():
    findings = claim.check(made_up(swapped=True))
    above = [f for f in findings if f.id.split("[")[0] in ("isotropic_matched", "reversed_isotropic")]
    assert len(above) == 2 * 4
    assert all(f.outcome is Outcome.FAILS for f in above)


def test_wrong_theories_are_wrong_in_one_place_only():
    dataset = made_up()
    right = dataset.transfer_error_theory
    opposite = theory_under(claim, "opposite")(dataset).transfer_error_theory
    np.testing.assert_array_equal(opposite.sel(test_covariance="isotropic"), right.sel(test_covariance="isotropic"))
    np.testing.assert_array_equal(opposite.sel(test_covariance="matched"), right.sel(test_covariance="reversed"))
    traces = theory_under(claim, "traces_only")(dataset).transfer_error_theory
    for test in claim.TESTS:
        np.testing.assert_allclose(traces.sel(test_covariance=test), traces.sel(test_covariance="matched"), rtol=1e-13)
    endless = theory_under(claim, "endless_pool")(dataset)
    matched = endless.transfer_error_theory.sel(test_covariance="matched")
    np.testing.assert_allclose(endless.idg_error_theory, matched, rtol=1e-12)


@pytest.mark.parametrize("test", claim.TESTS)
def test_all_test_covariances_have_the_trace_of_pretraining(test):
    spectrum = claim.power_law(30, 0.8)
    assert claim.covariance(test, spectrum).sum() == pytest.approx(30, rel=1e-14)
