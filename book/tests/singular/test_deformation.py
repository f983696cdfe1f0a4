"""What is particular to this claim: its check on made-up energies."""

import json

import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.singular.deformation import claim

SPLITS, TILTS, N = (-0.5, 0.0, 1.0), tuple(np.round(np.arange(-0.1, 0.36, 0.05), 2)), (30, 100, 300, 1000)


@pytest.fixture(scope="module")
def exact():
    """Samples that are the integrals, with small errors."""
    dims = ("split", "tilt", "samples", "phase")
    shape = (len(SPLITS), len(TILTS), len(N), 2)
    errors = np.full(shape, 0.005)
    dataset = xr.Dataset(
        {
            "phase_free_energy": (dims, np.zeros(shape)),
            "phase_free_energy_error": (dims, errors),
            "phase_place": (dims, np.zeros(shape)),
            "phase_place_error": (dims, 0.2 * errors),
            "annealing_warnings": (("split", "tilt", "phase"), np.zeros((*shape[:2], 2))),
        },
        coords={"split": list(SPLITS), "tilt": list(TILTS), "samples": list(N), "phase": list(claim.SIDES)},
        attrs={"configuration": json.dumps({"fixed": {"free": 4}})},
    )
    found = claim.theory(dataset)
    names = ("phase_free_energy", "phase_place")
    return found.assign({name: found[f"{name}_theory"] for name in names})


_, failing, _ = judged(claim.check)


def test_a_shifted_diagram_fails(exact):
    right = exact["phase"] == "right"
    shifted = exact.assign(phase_free_energy=exact["phase_free_energy"] - xr.where(right, 3.0, 0.0))
    found = failing(shifted)
    assert {"gap", "line", "phases"} <= {id.split("[")[0] for id in found}


def test_a_change_of_another_kind_fails(exact):
    """Wells that stay apart at p < 0, and that meet at p = 1."""
    n, right = exact["samples"], exact["phase"] == "right"
    for split, power, said in ((-0.5, 0.45, "gradual"), (1.0, -0.3, "abrupt")):
        scale = xr.where(exact["split"] == split, (n / 30.0) ** power, 1.0)
        left = exact["phase_place"].sel(phase="left")
        changed = exact.assign(phase_place=xr.where(right, left + scale * (exact["phase_place"] - left), left))
        assert any(id.startswith(said) for id in failing(changed))


def test_an_exponent_and_its_error():
    value, error = claim.exponent(np.array([1.0, 10.0, 100.0]), np.array([5.0, 0.5, 0.05]), np.full(3, 1e-3))
    assert value == pytest.approx(-1)
    assert error == pytest.approx(np.hypot(1e-3 / 5, 1e-3 / 0.05) / np.log(100), rel=1e-9)
