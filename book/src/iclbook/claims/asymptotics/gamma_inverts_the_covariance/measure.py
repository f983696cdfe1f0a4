"""Fit linear attention to a pool of tasks, and decompose its matrix in the eigenbasis of their covariance."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import fminbound

from iclbook.claims.asymptotics.gamma_inverts_the_covariance.claim import SETTINGS, inputs_spectrum
from icllab.core.grid import tabulated
from icllab.models import reduced
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression, WeightPool

VERSION = 1


def measure(point, *, key, shuffled=False, power=0.5):
    """Parts of Gamma for every seed, each with its own pool; ``shuffled``: labels of the contexts are permuted.

    ``power``: exponent of the inputs' covariance on both sides of Gamma; one half undoes an inverse.
    """
    dim, setting = point.dim, SETTINGS[point.setting]
    spectrum = inputs_spectrum(point.setting, dim)
    inputs, law = GaussianInputs(jnp.asarray(spectrum / dim, "float32")), GaussianWeights(jnp.ones(()))
    prompts = reduced.prompts_at(setting["tau"], dim, per="d(d+1)")

    def fit_seed(seed):
        of_pool, of_contexts, of_shuffle = jax.random.split(jax.random.fold_in(key, seed), 3)
        weights, second = law, np.eye(dim)
        if np.isfinite(setting["kappa"]):
            weights = WeightPool.init(law, round(setting["kappa"] * dim), dim, key=of_pool)
            tasks = np.asarray(weights.weights, float)
            second = tasks.T @ tasks / len(tasks)
        task = LinearRegression(dim, round(setting["alpha"] * dim), inputs, weights, setting["rho"])
        samples = reduced.sample(task, prompts=prompts, key=of_contexts)
        fit = reduced.fit_features(
            task, samples.shuffled(key=of_shuffle) if shuffled else samples, ridge=setting["ridge"]
        )
        gamma = np.asarray(fit.gamma, float)
        return {**decompose(gamma, spectrum, second, point.eigenvalue, power=power), "converged": fit.converged}

    return tabulated(fit_seed, seed=point.seed)


def decompose(gamma, spectrum, second, places, *, power=0.5):
    r"""Parts of :math:`\Sigma^{1/2}\Gamma\Sigma^{1/2}` in the eigenbasis of :math:`\Sigma^{1/2}R\Sigma^{1/2}`.

    ``gamma`` is [dim, dim + 1], ``spectrum`` the diagonal of Sigma, ``second`` the moment R of the tasks. The diagonal
    of Gamma itself is interpolated at the eigenvalues ``places``.
    """
    square, last = gamma[:, :-1], gamma[:, -1]
    root, frame = np.sqrt(spectrum), spectrum**power
    eigenvalues, vectors = np.linalg.eigh(root[:, None] * second * root)
    rotated = vectors.T @ (frame[:, None] * square * frame) @ vectors
    diagonal = np.diag(rotated)
    ridge = best_ridge(eigenvalues, diagonal)
    along = np.sum(vectors * (square @ vectors), axis=0)
    return {
        "gamma_diagonal": (("eigenvalue",), interpolate(eigenvalues, along, places)),
        "fitted_ridge": ridge,
        "off_diagonal": (np.sum(rotated**2) - np.sum(diagonal**2)) / (len(diagonal) - 1),
        "diagonal_misfit": np.sum((diagonal - eigenvalues / (eigenvalues + ridge)) ** 2),
        "last_column": np.sum((frame * last) ** 2),
    }


def best_ridge(eigenvalues, diagonal):
    r"""The :math:`\nu` that minimises the squared distance between a diagonal and :math:`r/(r+\nu)`."""

    def misfit(log_ridge):
        return np.sum((diagonal - eigenvalues / (eigenvalues + np.exp(log_ridge))) ** 2)

    # A coarse grid first: without signal the misfit is flat at both ends.
    grid = np.linspace(-9.0, 9.0, 73)
    centre = grid[np.argmin([misfit(point) for point in grid])]
    return float(np.exp(fminbound(misfit, centre - 0.25, centre + 0.25, xtol=1e-7)))


def interpolate(eigenvalues, values, places):
    """Values at places between the eigenvalues, linear in their logarithms; NaN outside."""
    logarithms = np.log(np.maximum(eigenvalues, 1e-300))
    return np.interp(np.log(places), logarithms, values, left=np.nan, right=np.nan)
