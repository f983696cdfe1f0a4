"""The check on synthetic data, the limits it states, and the one place where the misprint is wrong."""

from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from asymptotics.scatter import scattered
from judging import theory_under

from iclbook.claims.asymptotics.context_length import claim
from iclbook.claims.asymptotics.context_length.measure import measure
from icllab.lab.checks import Outcome, worst
from icllab.theory import linear_attention

RHO = 1.0
DIM, TAU, ALPHA, KAPPA = (np.array([8, 16, 32]), np.array([4.0, 16.0]), np.array([64.0, 256.0]), np.array([0.5, 2.0]))


def made_up(rho=RHO, tau=TAU, alpha=ALPHA, noise=0.05, seeds=24, converged=1.0):
    """Errors at the closed form of ``rho``, ``tau`` and ``alpha``, on the grid of the true ones."""
    limit = linear_attention.icl_error(tau=tau[:, None, None], alpha=alpha[:, None], kappa=KAPPA, rho=rho)
    limit = xr.DataArray(limit, {"tau": TAU, "alpha": ALPHA, "kappa": KAPPA})
    clean = {"icl_error": limit.expand_dims({"dim": DIM})}
    return scattered(clean, fixed={"rho": RHO}, noise=noise, seeds=seeds, converged=converged)


def outcome(dataset, theory=claim.theory):
    return worst(finding.outcome for finding in claim.check(theory(dataset)))


@pytest.mark.parametrize(
    "change",
    [{"rho": 0.5}, {"alpha": ALPHA[::-1]}, {"tau": 4 * TAU}],
    ids=["less noise", "errors that fall with the context", "more contexts"],
)
def test_it_fails_where_one_part_is_otherwise(change):
    assert outcome(made_up(**change)) is Outcome.FAILS


def test_the_misprint_is_wrong_in_the_joint_limit_of_few_tasks_alone():
    right, wrong = claim.theory(made_up()), theory_under(claim, "slide_limit")(made_up())
    xr.testing.assert_equal(wrong.drop_vars("icl_limit"), right.drop_vars("icl_limit"))
    np.testing.assert_array_equal(wrong.icl_limit.sel(kappa=2.0), right.icl_limit.sel(kappa=2.0))
    assert np.all(right.icl_limit.sel(kappa=0.5) > 1.5 * wrong.icl_limit.sel(kappa=0.5))
    failing = [finding.id for finding in claim.check(wrong) if finding.outcome is Outcome.FAILS]
    assert failing == ["joint_limit[kappa=0.5,alpha/tau=16]"]


@pytest.mark.parametrize("tau", [2.0, 4.0, 32.0])
@pytest.mark.parametrize("rho", [0.1, 1.0])
def test_the_limits_it_states_are_those_of_the_closed_form(tau, rho):
    alpha = np.array([1e9, 2e9])
    few, many = (linear_attention.icl_error(tau=tau, alpha=alpha, kappa=k, rho=rho) for k in KAPPA)
    np.testing.assert_allclose(np.diff(few) / 1e9, 0.5 * rho / ((1 + rho) * (tau - 1)), rtol=1e-6)
    np.testing.assert_allclose(many, rho * (1 + 2 / (tau - 1)), rtol=1e-6)


def test_what_the_grid_cannot_show_is_not_judged():
    for part in (made_up().isel(tau=[0], alpha=[0]), made_up().isel(alpha=[0])):
        found = {finding.id.split("[")[0]: finding.about for finding in claim.check(claim.theory(part))}
        assert found == {"icl_error": "claim", "line": "data", "solved": "data"}


def test_each_half_of_the_sentence_is_judged_where_it_is_said():
    findings = {finding.id: finding for finding in claim.check(claim.theory(made_up(noise=1e-6)))}
    assert [found for found in findings if found.startswith("slope")] == ["slope[tau=4,kappa=0.5]"]
    assert findings["bounded[tau=4,kappa=2]"].predicted == pytest.approx(RHO * (1 + 2 / 3))
    assert findings["slope[tau=4,kappa=0.5]"].predicted == pytest.approx(0.5 * RHO / ((1 + RHO) * 3))
    few = linear_attention.icl_error(tau=4.0, alpha=ALPHA, kappa=0.5, rho=RHO)
    assert findings["slope[tau=4,kappa=0.5]"].measured == pytest.approx((few[1] - few[0]) / 192, rel=0.01)


def test_the_number_of_tasks_matters_unless_every_context_has_its_own(getkey):
    point, key = SimpleNamespace(dim=4, tau=3.0, alpha=8.0, rho=RHO, kappa=(0.5, 2.0), seed=(0, 5)), getkey()
    pools, fresh = measure(point, key=key), measure(point, key=key, fresh=True)
    dims, errors = pools["icl_error"]
    assert dims == ("kappa", "seed")
    assert np.all(errors[0] > errors[1])
    np.testing.assert_array_equal(fresh["icl_error"][1][0], fresh["icl_error"][1][1])
    point.seed = (5,)
    np.testing.assert_array_equal(measure(point, key=key)["icl_error"][1][:, 0], errors[:, 1])
