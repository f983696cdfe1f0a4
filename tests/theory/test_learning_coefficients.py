"""Exact values against one another, against integrals of elementary functions, and against known tables."""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import erf

from icllab.theory.learning_coefficients import (
    LearningCoefficient,
    _bottleneck,
    deep_linear,
    gaussian_mixture,
    linear_attention,
    normal_crossing,
    of_product,
    of_sum,
    power_of_norm,
    quasi_homogeneous,
    reduced_rank_regression,
    reduced_rank_stratum,
    regular,
    tanh_network,
)

SIZES = [(m, h, n, r) for m, h, n in itertools.product(range(1, 7), repeat=3) for r in range(min(m, h, n) + 1)]


def close(found, value, multiplicity):
    return math.isclose(found.value, value, rel_tol=1e-14) and found.multiplicity == multiplicity


@pytest.mark.parametrize(
    ("found", "value", "multiplicity"),
    [
        (regular(10), 5, 1),
        (regular(0), 0, 1),
        (normal_crossing((1, 2)), 1 / 4, 1),
        (normal_crossing((1, 1)), 1 / 2, 2),
        (normal_crossing((2, 3, 3, 0)), 1 / 6, 2),
        (normal_crossing((1, 2), (0, 1)), 1 / 2, 2),
        (normal_crossing((1, 3), (0, 5)), 1 / 2, 1),
        (quasi_homogeneous((1 / 2, 1 / 4)), 3 / 4, 1),
        (power_of_norm(3, 2), 3 / 4, 1),
        (reduced_rank_regression(2, 2, 2, 0), 1.5, 1),
        (reduced_rank_regression(3, 2, 3, 1), 3.5, 2),
        (reduced_rank_regression(4, 2, 4, 2), 6, 1),
        (deep_linear((3, 2, 2, 3), 1), 3, 1),
        (deep_linear((2, 2, 2, 2), 0), 1.5, 3),
        (reduced_rank_stratum(3, 3, 3, 1, rank_in=2, rank_out=1), 4, 1),
        (reduced_rank_stratum(3, 3, 3, 1, rank_in=1, rank_out=2), 4, 1),
        (reduced_rank_stratum(3, 3, 3, 1, rank_in=2, rank_out=2), 4, 1),
        (reduced_rank_stratum(3, 3, 3, 1, rank_in=3, rank_out=1), 4.5, 1),
        (tanh_network(1), 1 / 2, 2),
        (tanh_network(2), 2 / 3, 1),
        (tanh_network(3), 5 / 6, 1),
        (tanh_network(4), 1, 2),
        (gaussian_mixture(1), 1 / 2, 2),
        (gaussian_mixture(2), 3 / 4, 1),
        (linear_attention(3, 2, 1), 3.5, 2),
    ],
)
def test_known_values(found, value, multiplicity):
    assert close(found, value, multiplicity)


def test_two_linear_layers_are_a_deep_linear_network_of_all_sizes_up_to_6():
    assert len(SIZES) == 657
    for m, h, n, r in SIZES:
        assert close(deep_linear((m, h, n), r), *reduced_rank_regression(m, h, n, r)), (m, h, n, r)


def test_the_layers_that_decide_exist_and_the_coefficient_does_not_depend_on_the_choice():
    """On 1000 random networks every set that satisfies the condition, by brute force, gives the same numbers."""
    generator = np.random.default_rng(0)
    for _ in range(1000):
        widths = generator.integers(1, 9, size=generator.integers(3, 7)).tolist()
        rank = int(generator.integers(0, min(widths) + 1))
        d = [width - rank for width in widths]
        found = set()
        for count in range(2, len(d) + 1):
            for inside in itertools.combinations(range(len(d)), count):
                chosen = [d[i] for i in inside]
                outside = min((d[i] for i in range(len(d)) if i not in inside), default=math.inf)
                s, many = sum(chosen), count - 1
                if max(chosen) < outside and s >= many * max(chosen) and s < many * outside:
                    found.add(tuple(sorted(chosen)))
        assert found == {tuple(_bottleneck(d))}, (widths, rank)


def test_a_deep_linear_network_does_not_care_for_the_order_of_its_hidden_layers_and_is_never_above_regular():
    generator = np.random.default_rng(1)
    for _ in range(200):
        first, last, *hidden = generator.integers(1, 8, size=generator.integers(3, 7)).tolist()
        rank = int(generator.integers(0, min(first, last, *hidden) + 1))
        found = deep_linear((first, *hidden, last), rank)
        assert close(deep_linear((last, *reversed(hidden), first), rank), *found)
        assert found.value <= first * last / 2 + 1e-12  # the map itself is regular


def test_the_whole_model_has_the_least_of_its_strata():
    for m, h, n, r in SIZES:
        whole = reduced_rank_regression(m, h, n, r)
        strata = [
            reduced_rank_stratum(m, h, n, r, rank_in=r + a, rank_out=r + b)
            for a in range(min(m, h) - r + 1)
            for b in range(min(n, h) - r + 1)
            if r + a + b <= h
        ]
        assert math.isclose(min(s.value for s in strata), whole.value, rel_tol=1e-14), (m, h, n, r)
        worst = reduced_rank_stratum(m, h, n, r, rank_in=r, rank_out=r)
        assert close(worst, *whole), (m, h, n, r)


def test_sums_and_products_are_those_of_normal_crossings():
    for powers in itertools.product(range(1, 4), repeat=3):
        factors = [normal_crossing((k,)) for k in powers]
        assert close(of_product(*factors), *normal_crossing(powers))
        assert close(of_sum(*factors), *quasi_homogeneous([1 / (2 * k) for k in powers]))
    assert of_sum(LearningCoefficient(0.5, 2), LearningCoefficient(0.75, 3)) == (1.25, 4)
    assert of_product(LearningCoefficient(0.5, 2), LearningCoefficient(0.5, 3)) == (0.5, 5)


def test_a_product_of_two_squares_by_quadrature():
    """On the unit square Z(n) is an integral of an error function, and n E[K] is -d log Z / d log n."""

    def partition(n):
        s = math.sqrt(n)
        inner = quad(lambda log_u: math.sqrt(math.pi) * erf(s * math.exp(log_u)) / (2 * s), -60, 0, limit=2000)
        return inner[0]

    value, multiplicity = normal_crossing((1, 1))
    gaps = []
    for n in (1e6, 1e9, 1e12):
        slope = -(math.log(partition(n * 1.001)) - math.log(partition(n / 1.001))) / (2 * math.log(1.001))
        gaps.append((multiplicity - 1) / (value - slope) - math.log(n))
    # Z ~ c n^-1/2 (log n + c'): c' is constant, so at(n) is right to that order.
    assert gaps == pytest.approx([gaps[-1]] * 3, abs=0.02)
    assert abs(gaps[-1]) < 5
    assert LearningCoefficient(value, multiplicity).at(1e12) == pytest.approx(slope, abs=0.01)


def test_a_germ_with_weights_by_quadrature():
    def partition(n):
        # of exp(-n t^k) nothing is left beyond 40 of its widths
        one, two = (quad(lambda t, k=k: math.exp(-n * t**k), 0, 40 ** (1 / k) * n ** (-1 / k))[0] for k in (2, 4))
        return one * two

    slope = -math.log(partition(4e6) / partition(1e6)) / math.log(4)
    assert slope == pytest.approx(quasi_homogeneous((1 / 2, 1 / 4)).value, abs=1e-6)


def test_the_target_of_an_estimate():
    assert LearningCoefficient(1.5, 3).at(1e5) == pytest.approx(1.5 - 2 / math.log(1e5), rel=1e-15)
    assert LearningCoefficient(1.5).at([10, 100]).tolist() == [1.5, 1.5]
