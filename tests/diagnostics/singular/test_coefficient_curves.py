"""Curves of estimates over temperatures, and datasets side by side."""

import math

import numpy as np
import pytest
import xarray as xr
from refusals import assert_refused

from icllab.diagnostics.singular.coefficient_curves import along, sample_size, with_growth


def test_the_sample_size_of_a_temperature():
    n = np.array([5.0, 100.0, 1e6])
    np.testing.assert_allclose(sample_size(n / np.log(n)), n, rtol=1e-10)
    assert math.isnan(sample_size(2.0))  # n / log n is at least e


def test_the_growth_of_a_flat_curve_is_its_level():
    """And of lambda = c / log n, whose free energy does not grow, zero; errors are those of weighted sums."""
    n = np.geomspace(1e2, 1e6, 5)
    flat = xr.Dataset(
        {"estimate": ("nbeta", np.full(5, 3.0)), "mcse": ("nbeta", np.full(5, 0.1))}, coords={"nbeta": n / np.log(n)}
    )
    np.testing.assert_allclose(with_growth(flat)["growth_estimate"], 3.0, rtol=1e-9)
    falling = flat.assign(estimate=("nbeta", 2 / np.log(n)))
    np.testing.assert_allclose(with_growth(falling)["growth_estimate"], 0, atol=1e-9)
    log = np.log(n)
    inner = 0.1 * math.hypot(log[3], log[1]) / (log[3] - log[1])
    assert float(with_growth(flat)["growth_error"][2]) == pytest.approx(inner, rel=1e-9)


def test_what_is_missing_is_missed_beside_it_alone():
    """One estimate that is NaN, and a temperature below e: NaN there and beside, and the level everywhere else."""
    n = np.geomspace(1e2, 1e6, 7)
    level, error = np.full(7, 2.0), np.full(7, 0.1)
    level[3] = error[3] = math.nan

    def grown(nbeta, level, error):
        curve = xr.Dataset({"estimate": ("nbeta", level), "mcse": ("nbeta", error)}, coords={"nbeta": nbeta})
        return with_growth(curve)

    found = grown(n / np.log(n), level, error)
    known = [True, True, False, False, False, True, True]
    for name in ("growth_estimate", "growth_error"):
        assert np.isfinite(found[name].values).tolist() == known
    np.testing.assert_allclose(found["growth_estimate"][known], 2.0, rtol=1e-9)
    assert (found["growth_error"][known] > 0.1).all()
    cold = grown(np.array([2.0, *(n / np.log(n))]), np.full(8, 2.0), np.full(8, 0.1))
    assert np.isfinite(cold["growth_estimate"].values).tolist() == [False, False, *[True] * 6]
    np.testing.assert_allclose(cold["growth_estimate"][2:], 2.0, rtol=1e-9)
    assert np.isfinite(cold["growth_error"][2:]).all()


def test_side_by_side():
    """What all share stays an attribute, what they do not is a variable, and warnings say whose they are."""
    one, two = (
        xr.Dataset(
            {"estimate": value, "trace": ("draw", [value, 2.0])},
            attrs={"method": "hmc", "mode": mode, "warnings": said},
        )
        for value, mode, said in ((1.0, "map", ["bad"]), (3.0, "vmap", []))
    )
    found = along("member", {0: one, 1: two})
    assert found["estimate"].values.tolist() == [1, 3]
    assert found["trace"].dims == ("member", "draw")
    assert found["mode"].values.tolist() == ["map", "vmap"]
    assert found.attrs == {"method": "hmc", "warnings": ["member 0: bad"]}
    further = along("nbeta", {10.0: found, 20.5: along("member", {0: one, 1: one})})
    assert further["estimate"].sizes == {"nbeta": 2, "member": 2}
    assert further["mode"].values.tolist() == [["map", "vmap"], ["map", "map"]]
    assert further.attrs["warnings"][:2] == ["nbeta 10: member 0: bad", "nbeta 20.5: member 0: bad"]
    assert "mode" not in further.attrs
    temperatures = [one.assign_attrs(nbeta=10.0), two.assign_attrs(nbeta=20.0)]
    assert "nbeta" not in along("nbeta", dict(zip((10.0, 20.0), temperatures, strict=True))).attrs
    assert_refused(lambda: along("step", [one, two]), "estimates: expected at least one estimate by its coordinate")
