"""Crossings against Lambert's function and a dense grid; the expansion against an exact integral."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import lambertw

from icllab.theory.free_energy import Phase, asymptotic, crossings, posterior_weights
from icllab.theory.learning_coefficients import LearningCoefficient, normal_crossing


def test_without_multiplicity_crossings_are_values_of_lamberts_function():
    """n dL = dlambda log n has the solutions -W(-dL / dlambda) = log n."""
    for loss, more in [(0.01, 3.0), (0.1, 0.5), (1e-5, 20.0)]:
        found = crossings(Phase(loss, LearningCoefficient(1.0)), Phase(0.0, LearningCoefficient(1.0 + more)))
        known = np.exp(-lambertw(-loss / more, [0, -1]).real)
        assert found == pytest.approx(known, rel=1e-12)


def test_every_crossing_is_found():
    generator = np.random.default_rng(0)
    counts = set()
    grid = np.linspace(1e-6, 60, 400_001)
    for _ in range(300):
        first = Phase(0.0, LearningCoefficient(1.0, 1))
        loss = float(generator.choice([0, 1e-3, -1e-3, 0.3, -0.3]))
        value, fold = 1 + float(generator.normal(0, 3)), int(generator.integers(1, 6))
        second = Phase(loss, LearningCoefficient(value, fold), float(generator.normal(0, 2)))
        found = crossings(first, second)
        gap = np.exp(grid) * loss + (value - 1) * grid - (fold - 1) * np.log(grid) + second.constant
        places = grid[:-1][np.diff(np.sign(gap)) != 0]
        inside = np.log(found[(found > np.exp(grid[0])) & (found < np.exp(grid[-1]))])
        assert len(inside) == len(places)
        assert inside == pytest.approx(places, abs=2e-4)
        counts.add(len(places))
        for n in found[(found < 1e15) & (found > 1 + 1e-9)]:
            scale = abs(asymptotic(first, n)) + abs(asymptotic(second, n)) + abs(n * loss) + 1
            assert abs(asymptotic(first, n) - asymptotic(second, n)) < 1e-9 * scale
    assert counts >= {0, 1, 2}


def test_three_crossings_exist():
    """Two phases can change places three times: at a few samples, where the expansion is a formula only."""
    first, second = Phase(0.1, LearningCoefficient(5.0)), Phase(0.0, LearningCoefficient(13.6, 7), -9.67)
    found = crossings(first, second)
    assert len(found) == 3
    for n in found:
        assert asymptotic(first, n) == pytest.approx(asymptotic(second, n), rel=1e-10)


def test_the_posterior_moves_where_free_energies_are_equal():
    simple, rich = Phase(0.01, LearningCoefficient(1.0)), Phase(0.0, LearningCoefficient(4.0))
    n = crossings(simple, rich)[-1]
    assert posterior_weights([simple, rich], n) == pytest.approx([0.5, 0.5], abs=1e-9)
    shares = posterior_weights([simple, rich], [n / 2, 2 * n])
    assert shares.sum(axis=0) == pytest.approx([1, 1], abs=1e-15)
    assert shares[0, 0] > 0.99
    assert shares[1, 1] > 0.99
    difference = asymptotic(rich, 500) - asymptotic(simple, 500)
    assert posterior_weights([simple, rich], 500)[0] == pytest.approx(1 / (1 + math.exp(-difference)), rel=1e-12)


def test_a_phase_of_less_loss_and_complexity_is_never_left():
    assert crossings(Phase(0.0, LearningCoefficient(1.0)), Phase(0.01, LearningCoefficient(4.0))).size == 0


def test_the_expansion_is_that_of_an_exact_integral():
    """K = u^2 v^2 on the unit square: -log Z - F tends to a constant, the error being of order 1 / log n."""

    def exact(n):
        def inner(log_u):
            s = math.sqrt(n) * math.exp(log_u)
            return math.sqrt(math.pi) * math.erf(s) / 2 / math.sqrt(n)

        return -math.log(quad(inner, -80, 0, limit=4000)[0])

    phase = Phase(0.0, normal_crossing((1, 1)))
    gaps = [exact(n) - asymptotic(phase, n) for n in (1e8, 1e16, 1e32)]
    # the next term is c' / log n, which halves when log n doubles
    assert gaps[0] - gaps[1] == pytest.approx(2 * (gaps[1] - gaps[2]), rel=0.1)
    assert abs(gaps[2]) < 1
