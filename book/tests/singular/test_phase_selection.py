"""What is particular to this claim: its check on made-up energies."""

import json

import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.singular.phase_selection import claim

FIXED = {"barrier": 3.0, "effect": 0.15}
N = 2 ** np.arange(6, 13)


@pytest.fixture(scope="module")
def exact():
    """Samples that are the integrals, with errors of a hundredth."""
    generator, products = np.random.default_rng(1), 4
    steps = generator.normal(0, 1, (8, N[-1], products + 2)).cumsum(1)
    means = steps[:, N - 1] / N[:, None]
    means[..., 1] += FIXED["effect"]
    dims = ("products", "seed", "samples", "phase")
    shape = (1, 8, len(N), 2)
    dataset = xr.Dataset(
        {
            "sample_mean": (("products", "seed", "samples", "output"), means[None]),
            "phase_free_energy": (dims, np.zeros(shape)),
            "phase_free_energy_error": (dims, np.full(shape, 0.01)),
            "annealing_warnings": (dims, np.zeros(shape)),
        },
        coords={
            "products": [products],
            "seed": range(8),
            "samples": N,
            "phase": list(claim.PHASES),
            "output": range(products + 2),
        },
        attrs={"configuration": json.dumps({"fixed": FIXED})},
    )
    found = claim.theory(dataset)
    return found.assign(phase_free_energy=found["phase_free_energy_theory"])


_, failing, _ = judged(claim.check)


def test_samples_that_are_off_fail(exact):
    rich = exact["phase"] == "rich"
    away = exact.assign(phase_free_energy=exact["phase_free_energy"] + xr.where(rich, 0.2, 0.0))
    found = failing(away)
    energies = [id for id in found if id.startswith("energy[")]
    assert len(energies) == len(N)
    assert all("phase=rich" in id for id in energies)
    assert "crossing" in found


def test_a_remainder_that_grows_fails(exact):
    slope = exact["phase_gap_theory"] + 1.5 * np.log(exact["samples"])
    assert any(id.startswith("remainder") for id in failing(exact.assign(phase_gap_theory=slope)))


def test_wrong_formulas_are_wrong_in_one_place():
    right, wrong = claim.coefficients(4), claim.counted(4)
    assert right == ((0.5, 1), (2.5, 5))
    assert wrong == ((0.5, 1), (4.5, 1))


def test_the_crossing_of_the_mean_has_the_constant_of_the_largest_n(exact):
    """What the expansion leaves at the fewest samples does not move it."""
    known = {finding.name: finding for finding in claim.check(exact)}["mean_crossing"]
    early = exact["phase_gap_theory"] - 5.0 * (exact["samples"] == N[0])
    moved = {f.name: f for f in claim.check(exact.assign(phase_gap_theory=early))}["mean_crossing"]
    assert moved.predicted == pytest.approx(known.predicted, abs=1e-9)
    late = exact["phase_gap_theory"] - 5.0 * (exact["samples"] == N[-1])
    moved = {f.name: f for f in claim.check(exact.assign(phase_gap_theory=late))}["mean_crossing"]
    assert abs(moved.predicted - known.predicted) > 0.1
