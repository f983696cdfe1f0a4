"""Every solver against NumPy's least squares on the design matrix written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.models import reduced
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression

DIM = 6
PARAMETERS = DIM * (DIM + 1)
ANISOTROPIC = 4.0 ** -np.arange(DIM)
RANK_FOUR = np.array([1.0, 0.5, 0.0, 2.0, 0.0, 1.0])
ISOTROPIC = np.full(DIM, 1.0 / DIM)


def make_task(covariance=ISOTROPIC):
    one = jnp.ones(())
    return LinearRegression(DIM, 12, GaussianInputs(jnp.asarray(covariance, one.dtype)), GaussianWeights(one), 0.1)


def dense(samples, ridge):
    """Minimum-norm least squares (or ridge regression) by singular values, in float64."""
    n = int(samples.prompts)
    x, h, y = (
        np.asarray(part, np.float64).reshape(-1, *part.shape[2:])[:n]
        for part in (samples.query, samples.features, samples.label)
    )
    z = (x[:, :, None] * h[:, None, :]).reshape(n, -1)
    if ridge:
        z = np.concatenate([z, np.sqrt(n / DIM * ridge) * np.eye(z.shape[1])])
        y = np.concatenate([y, np.zeros(z.shape[1])])
    return np.linalg.lstsq(z, y, rcond=1e-10)[0].reshape(DIM, DIM + 1)


@pytest.mark.parametrize(
    ("solver", "prompts", "ridge"),
    [
        ("primal_pcg", 90, 0.0),
        ("primal_pcg", 90, 0.02),
        ("primal_pcg", 25, 0.02),
        ("primal_pcg", 25, 0.0),
        ("dual_cg", 25, 0.0),
        ("dual_cg", 25, 0.02),
        ("dual_cg", 90, 0.02),
        ("dual_cholesky", 25, 0.0),
        ("dual_cholesky", PARAMETERS, 0.0),
        ("dual_cholesky", 90, 0.02),
        ("primal_cholesky", PARAMETERS + 3, 0.0),
        ("primal_cholesky", 90, 0.02),
        ("auto", 25, 0.0),
        ("auto", 90, 0.0),
        ("auto", 40, 0.02),
    ],
)
def test_it_is_the_dense_solution(solver, prompts, ridge):
    """To 1e-8 of its norm; with fewer prompts than parameters and no ridge that is the one of least norm."""
    with jax.enable_x64(True):
        samples = reduced.sample(make_task(), prompts=prompts, key=jax.random.key(prompts))
        model = reduced.fit_features(
            make_task(), samples, ridge=ridge, solver=solver, precision="float64", tolerance=1e-12
        )
        expected = dense(samples, ridge)
    assert model.converged
    assert np.linalg.norm(np.asarray(model.gamma) - expected) < 1e-8 * np.linalg.norm(expected)


@pytest.mark.parametrize("covariance", [ANISOTROPIC, RANK_FOUR])
@pytest.mark.parametrize("prompts", [20, 150])
def test_whatever_the_input_covariance(covariance, prompts):
    """Condition number 1000, and directions that no input has."""
    with jax.enable_x64(True):
        task = make_task(covariance)
        samples = reduced.sample(task, prompts=prompts, key=jax.random.key(2))
        model = reduced.fit_features(task, samples, ridge=0.0, precision="float64", tolerance=1e-12)
        expected = dense(samples, 0.0)
    assert model.converged
    assert np.linalg.norm(np.asarray(model.gamma) - expected) < 1e-7 * np.linalg.norm(expected)


def test_whitening_makes_the_iterations_independent_of_the_covariances():
    counts = []
    for covariance in (ISOTROPIC, ANISOTROPIC):
        model = reduced.fit(make_task(covariance), prompts=400, ridge=0.0, key=jax.random.key(3), solver="primal_pcg")
        assert model.converged
        counts.append(int(model.report.iterations))
    assert abs(counts[0] - counts[1]) <= 2


@pytest.mark.parametrize(("solver", "prompts", "ridge"), [("primal_pcg", 90, 0.0), ("dual_cg", 25, 0.0)])
def test_float32_products_give_the_errors_of_float64_ones(solver, prompts, ridge):
    task = make_task()
    samples = reduced.sample(task, prompts=prompts, key=jax.random.key(4))
    low, high = (
        reduced.fit_features(task, samples, ridge=ridge, solver=solver, precision=precision)
        for precision in ("float32", "float64")
    )
    assert low.converged
    assert high.converged
    np.testing.assert_allclose(low.icl_error(), high.icl_error(), rtol=1e-4)


def test_float32_products_reach_a_tolerance_that_only_float64_residuals_can_tell():
    with jax.enable_x64(True):
        samples = reduced.sample(make_task(), prompts=90, key=jax.random.key(6))
        model = reduced.fit_features(make_task(), samples, ridge=0.0, solver="primal_pcg", tolerance=1e-11)
        expected = dense(samples, 0.0)
    assert model.converged
    assert np.linalg.norm(np.asarray(model.gamma) - expected) < 1e-8 * np.linalg.norm(expected)


def test_a_dual_without_a_solution_does_not_converge_and_says_so():
    """With more prompts than parameters the kernel is singular and the labels are not in its range."""
    for solver in ("dual_cg", "dual_cholesky"):
        model = reduced.fit(make_task(), prompts=90, ridge=0.0, key=jax.random.key(7), solver=solver)
        assert not model.converged
        assert np.all(np.isfinite(model.gamma))
