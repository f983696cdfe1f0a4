"""Fitted heads, taken to infinite dimension, against the closed forms: twelve points all over the five parameters."""

import jax
import numpy as np
import pytest

from icllab.core.statistics import extrapolate, mean_and_error
from icllab.models import reduced
from icllab.tasks import LinearRegression
from icllab.theory.linear_attention import icl_error, idg_error

DIMS, SEEDS = (10, 20, 40), 64

# tau, alpha, kappa, rho, ridge: both sides of tau = 1 and of kappa = 1, short and long contexts, little and much noise.
POINTS = (
    (0.2, 4.0, 1.0, 0.1, 0.0),
    (0.3, 1.0, 4.0, 0.5, 0.0),
    (0.5, 10.0, 0.5, 0.01, 0.0),
    (0.5, 2.0, 1.5, 0.05, 0.1),
    (0.8, 4.0, 0.5, 0.25, 0.3),
    (1.0, 10.0, 2.0, 0.01, 0.1),
    (1.0, 1.0, 1.0, 1.0, 1.0),
    (1.5, 3.0, 2.0, 0.1, 0.0),
    (2.0, 10.0, 1.0, 0.01, 0.0),
    (2.0, 1.0, 0.5, 0.5, 0.01),
    (3.0, 20.0, 0.5, 1.0, 0.05),
    (5.0, 40.0, 2.0, 0.01, 0.0),
)


def measured(dim, tau, alpha, kappa, rho, ridge):
    """Both population errors for every seed, ``[2, seed]``; every fit converged."""
    errors = []
    for seed in range(SEEDS):
        of_pool, of_contexts = jax.random.split(jax.random.fold_in(jax.random.key(2025), 1000 * dim + seed))
        task = LinearRegression.from_scaling(dim=dim, alpha=alpha, kappa=kappa, rho=rho, key=of_pool)
        prompts = reduced.prompts_at(tau, dim, per="d(d+1)")
        model = reduced.fit(task, prompts=prompts, ridge=ridge, key=of_contexts)
        assert model.converged
        errors.append((model.icl_error(), model.idg_error()))
    return np.array(errors).T


@pytest.fixture(scope="module")
def scores():
    """The number of standard errors between simulation and theory, ``[point, 2]``."""
    found = []
    for point in POINTS:
        mean, error = np.moveaxis([mean_and_error(measured(dim, *point)) for dim in DIMS], 0, -1)
        names = dict(zip(("tau", "alpha", "kappa", "rho", "ridge"), point, strict=True))
        theory = np.array([icl_error(**names), idg_error(**names)])
        limit, uncertainty = np.array([extrapolate(DIMS, m, e, order=2) for m, e in zip(mean, error, strict=True)]).T
        print(point, " ".join(f"{t:.4f} {m:.4f}±{u:.4f}" for t, m, u in zip(theory, limit, uncertainty, strict=True)))
        assert np.all(uncertainty < 0.08 * theory), (point, uncertainty / theory)
        found.append((limit - theory) / uncertainty)
    return np.array(found)


@pytest.mark.slow
def test_every_point_agrees_within_three_standard_errors(scores):
    assert np.all(np.abs(scores) < 3), scores


@pytest.mark.slow
def test_the_standard_errors_are_neither_too_large_nor_too_small(scores):
    """The mean square of 24 scores; independent normal ones leave (0.4, 2.0) once in two hundred times."""
    assert 0.4 < np.mean(scores**2) < 2.0
