"""Warnings of a limit: a loss that is not a sum of products of powers, and a curve that ends elsewhere."""

import jax
import numpy as np
import pytest

from icllab import posteriors
from icllab.diagnostics import learning_coefficient
from icllab.diagnostics.singular.limits import POPULATIONS, _growth_warnings


def of_tanh(problem, units, count=256):
    """Draws from the posterior of tanh units: of the inner weights by weighing, of the outer ones exactly."""
    rng, arrays = np.random.default_rng(0), problem.parts.arrays
    inner = rng.normal(size=(40_000, units))
    hidden = np.tanh(inner[:, :, None] * arrays["x"])
    gram = np.einsum("nip,njp,p->nij", hidden, hidden, arrays["weight"]) * problem.nbeta * arrays["scale"]
    precision = gram + np.eye(units)
    weight = np.linalg.det(precision) ** -0.5
    rows = rng.choice(len(inner), count, p=weight / weight.sum())
    roots = np.linalg.cholesky(np.linalg.inv(precision[rows]))
    outer = np.einsum("nij,nj->ni", roots, rng.normal(size=(count, units)))
    return np.concatenate([outer, inner[rows]], axis=1).reshape(16, -1, 2 * units)


def warnings_of(problem, particles):
    with jax.enable_x64(True):
        return _growth_warnings(problem.local_loss(), particles)


@pytest.mark.parametrize(
    "number", [None, pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow)]
)
def test_two_units_of_tanh_are_warned_of(number):
    """The coefficient is 2/3, which the curve passes before it turns: see docs/posteriors.md."""
    problem = posteriors.problem("tanh_2", key=None if number is None else jax.random.key(number))
    (sentence,) = warnings_of(problem, of_tanh(problem, 2))
    assert "not a sum of products of powers" in sentence


def test_one_unit_of_tanh_is_not():
    """It saturates: powers are at most 4."""
    problem = posteriors.problem("tanh_1")
    assert warnings_of(problem, of_tanh(problem, 1)) == []


@pytest.mark.parametrize(
    "name", ["crossing_1_2", "crossing_1_1_1", "layers_2_2_2_rank_0", "two_crossings", "quadratic"]
)
def test_sums_of_products_are_not(name):
    """At places of the prior: powers are at least the order of the point, or there are curvatures."""
    problem = posteriors.problem(name)
    particles = problem.at + np.random.default_rng(1).normal(size=(16, 16, problem.at.size))
    assert warnings_of(problem, particles) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sentence"), [("tanh_2", "along rays"), ("cusp", "along rays"), ("two_phases", "other minima")]
)
@pytest.mark.parametrize("number", [3, 4])
def test_limits_that_are_wrong_are_warned_of(name, sentence, number):
    problem = posteriors.problem(name, key=jax.random.key(number))
    with jax.enable_x64(True):
        limit = learning_coefficient(problem, key=jax.random.key(5), sampler=POPULATIONS)
    assert any(sentence in text for text in limit.attrs["warnings"])
