"""What is particular to this claim: its integrals against another quadrature, and its check on made-up energies."""

import json

import numpy as np
import pytest
import xarray as xr
from judging import judged
from scipy.integrate import dblquad, quad
from scipy.special import k0

from icllab.claims.singular.phase_selection import claim
from icllab.experiments.checks import Outcome

FIXED = {"barrier": 3.0, "effect": 0.15}
N = 2 ** np.arange(6, 13)


def test_an_integral_by_another_quadrature():
    """One product, by the density K0 of a product of normal numbers; one weight, by the two-dimensional integral."""
    means, n = np.array([0.1, 0.2, -0.15]), 20.0

    def misfit(s, z):
        answer = (3.0 * s * (1 - s), 0.15 * s**2 * (3 - 2 * s), s * z)
        return n / 2 * sum((a - m) ** 2 for a, m in zip(answer, means, strict=True))

    def prior(s):
        return np.exp(-((s - 0.5) ** 2) / 2) / np.sqrt(2 * np.pi)

    def product(s):
        def density(z):
            return np.exp(-misfit(s, z)) * k0(abs(z)) / np.pi

        return sum(quad(density, *ends, limit=200)[0] for ends in ((-8, 0), (0, 8)))

    for phase, ends in (("simple", (-3, 0.5)), ("rich", (0.5, 4))):
        known = -np.log(quad(lambda s: prior(s) * product(s), *ends, epsabs=1e-12)[0])
        assert claim.integral(phase, means, n, **FIXED) == pytest.approx(known, abs=1e-4)
        one = dblquad(lambda z, s: np.exp(-misfit(s, z) - z * z / 2) * prior(s) / np.sqrt(2 * np.pi), *ends, -7, 7)[0]
        assert claim.integral(phase, means, n, **FIXED, layers=1) == pytest.approx(-np.log(one), abs=1e-4)


def test_the_integrals_tend_to_the_expansion():
    """Without noise the remainder settles: d times what log log n has still to say, log(1 + 1.5 / log n), and less."""
    rests = []
    for n in (1e3, 1e4, 1e5):
        gap = np.subtract(*(claim.integral(p, np.array([0, 0.15, 0, 0]), n, **FIXED) for p in ("rich", "simple")))
        rest = gap + n * FIXED["effect"] ** 2 / 2 - np.log(n) + 2 * np.log(np.log(n))
        rests.append(rest + 2 * np.log1p((3 * np.log(2) - np.euler_gamma) / np.log(n)))
    assert rests[2] == pytest.approx(rests[1], abs=0.002)
    assert rests[1] == pytest.approx(rests[0], abs=0.005)


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


_, failing, outcome = judged(claim.check)


def test_nothing_fails_where_all_is_as_claimed(exact):
    """Eight data sets tell all but the growth of the remainder and the mean n of the crossing."""
    left = [finding for finding in claim.check(exact) if finding.outcome is not Outcome.HOLDS]
    assert all(finding.outcome is Outcome.UNDECIDED for finding in left)
    assert {finding.id.split("[")[0] for finding in left} <= {"remainder", "mean_crossing"}


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


def test_too_few_n_and_warnings_are_undecided(exact):
    assert outcome(exact.isel(samples=[0, -1])) is Outcome.UNDECIDED
    assert outcome(exact.assign(annealing_warnings=exact["annealing_warnings"] + 1)) is Outcome.UNDECIDED


def test_wrong_formulas_are_wrong_in_one_place():
    right, wrong = claim.coefficients(4), claim.counted(4)
    assert right == ((0.5, 1), (2.5, 5))
    assert wrong == ((0.5, 1), (4.5, 1))
