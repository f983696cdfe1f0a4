"""The check on synthetic data, and how far the wrong ridge is from the right one."""

from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from asymptotics.scatter import scattered
from judging import theory_under

from iclbook.claims.asymptotics.ridge_tames_the_peak import claim
from iclbook.claims.asymptotics.ridge_tames_the_peak.measure import measure
from icllab.lab.checks import Outcome, worst
from icllab.theory import linear_attention

FIXED = {"alpha": 10.0, "kappa": 0.5, "rho": 0.01}
TAU, RIDGE, DIM = np.array([0.5, 1.0, 2.0]), np.array([0.0, 0.1, 1.0]), np.array([8, 16, 32])


def made_up(shift=1.0, peak=lambda dim: 3.0 * dim, noise=0.02, seeds=24, converged=1.0):
    """Errors at the closed form times ``shift`` with 1/d corrections; without ridge ``peak(d)`` at tau = 1."""
    clean = {}
    for name, error in (("icl_error", linear_attention.icl_error), ("idg_error", linear_attention.idg_error)):
        limit = np.tile(error(tau=TAU[:, None], ridge=RIDGE, **FIXED), (DIM.size, 1, 1))
        limit[:, 1, 0] = [peak(d) for d in DIM]
        clean[name] = xr.DataArray(shift * limit, {"dim": DIM, "tau": TAU, "ridge": RIDGE})
    return scattered(clean, fixed=FIXED, noise=noise, seeds=seeds, converged=converged)


def outcome(dataset, theory=claim.theory):
    return worst(finding.outcome for finding in claim.check(theory(dataset)))


@pytest.mark.parametrize(
    "change",
    [{"shift": 1.25}, {"peak": lambda dim: 0.1}, {"peak": lambda dim: 100 / dim}],
    ids=["shifted", "no peak", "a peak that shrinks"],
)
def test_it_fails_where_one_part_is_otherwise(change):
    assert outcome(made_up(**change)) is Outcome.FAILS


def test_it_is_undecided_where_a_solve_with_ridge_did_not_converge():
    """Without a ridge the problem is singular at the peak, and nothing is said of such a solve."""
    for ridge, expected in ((0.0, Outcome.HOLDS), (0.1, Outcome.UNDECIDED)):
        dataset = made_up()
        dataset["converged"].loc[{"dim": 16, "tau": 2.0, "ridge": ridge, "seed": 3}] = 0.0
        findings = {finding.id: finding.outcome for finding in claim.check(claim.theory(dataset))}
        assert findings.pop("solved") is expected
        assert set(findings.values()) == {Outcome.HOLDS}


def test_a_grid_without_the_peak_says_nothing_of_it():
    for part in (made_up().sel(tau=[0.5, 2.0]), made_up().sel(ridge=[0.1, 1.0])):
        names = {finding.id.split("[")[0] for finding in claim.check(claim.theory(part))}
        assert names == {"icl_error", "idg_error", "solved"}


def test_the_peak_is_compared_with_every_ridge_at_the_largest_dimension():
    findings = {finding.id: finding for finding in claim.check(claim.theory(made_up(noise=1e-6)))}
    for ridge in (0.1, 1.0):
        own = linear_attention.icl_error(tau=1.0, ridge=ridge, **FIXED)
        assert findings[f"peak_ratio[dim=32,ridge={ridge:g}]"].measured == pytest.approx(3.0 * 32 / own, rel=1e-4)
    finite = (1 + 2 / DIM + 5 / DIM**2) * DIM
    assert findings["peak_growth"].measured == pytest.approx(finite[2] / finite[0], rel=1e-4)


def test_the_wrong_formula_is_right_for_infinitely_many_contexts_only():
    wrong = theory_under(claim, "bare_ridge")
    assert outcome(made_up(), wrong) is Outcome.FAILS
    many = made_up().assign_coords(tau=[1e9, 2e9, 4e9])
    right, other = claim.theory(many), wrong(many)
    for name in ("icl_theory", "idg_theory"):
        np.testing.assert_allclose(other[name], right[name], rtol=1e-7)
        few = np.abs(wrong(made_up())[name] / claim.theory(made_up())[name] - 1).sel(ridge=[0.1, 1.0], tau=[0.5, 1.0])
        assert few.values.max() > 0.2


def test_a_ridge_that_is_all_leaves_the_labels_variance(getkey):
    """With Gamma = 0 the error is 1 + rho on fresh tasks; ``unscaled`` multiplies the ridge by d, ``implicit`` adds."""
    point = SimpleNamespace(dim=4, tau=2.0, ridge=(0.3, 1.2, 1e9), seed=(0, 3), **FIXED)
    key = getkey()
    found, unscaled = measure(point, key=key), measure(point, key=key, unscaled=True)
    dims, errors = found["icl_error"]
    assert dims == ("seed", "ridge")
    np.testing.assert_allclose(errors[:, 2], 1 + FIXED["rho"], rtol=1e-6)
    np.testing.assert_allclose(unscaled["icl_error"][1][:, 0], errors[:, 1], rtol=1e-3)
    implicit = measure(point, key=key, implicit=0.9)
    np.testing.assert_allclose(implicit["icl_error"][1][:, 0], errors[:, 1], rtol=1e-6)
    assert found["converged"][1].all()
