"""Estimators of scikit-learn, fitted to every prefix of a prompt, beside the predictors of the same name."""

import jax
import jax.numpy as jnp
import numpy as np
import sklearn
from sklearn import kernel_ridge, linear_model
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import PairwiseKernel

from icllab import algorithms
from icllab.core.prompt import RegressionPrompt

PEER = "scikit-learn"
DIM, LENGTH, PROMPTS = 5, 16, 20


def VERSION():
    """The version of the package."""
    return sklearn.__version__


def draws():
    """Inputs on the sphere of radius sqrt(dim), labels of a linear task with noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(PROMPTS, LENGTH, DIM))
    x *= np.sqrt(DIM) / np.linalg.norm(x, axis=2, keepdims=True)
    w = rng.normal(size=(PROMPTS, DIM, 1))
    return x, (x @ w)[:, :, 0] + 0.5 * rng.normal(size=(PROMPTS, LENGTH))


def theirs(estimator, x, y):
    """Predictions at every position that has an example before it."""
    return np.array([estimator.fit(x[:i], y[:i]).predict(x[i : i + 1])[0] for i in range(1, LENGTH)])


def exponential(u, v):
    """The kernel of the exponential of the inner product over the dimension."""
    return np.exp(u @ v / DIM)


PAIRS = {
    "ridge of 0.25": (
        "linear_model.Ridge(alpha=0.25, fit_intercept=False)",
        linear_model.Ridge(alpha=0.25, fit_intercept=False, solver="cholesky"),
        "algorithms.Ridge(0.25)",
        lambda: algorithms.Ridge(0.25),
    ),
    "least squares, and least norm below the dimension": (
        "linear_model.LinearRegression(fit_intercept=False)",
        linear_model.LinearRegression(fit_intercept=False),
        "algorithms.LeastSquares()",
        algorithms.LeastSquares,
    ),
    "kernel ridge, linear kernel": (
        'KernelRidge(alpha=0.5, kernel="linear")',
        kernel_ridge.KernelRidge(alpha=0.5, kernel="linear"),
        'algorithms.KernelRidge(0.5, kernel="linear", temperature=1.0)',
        lambda: algorithms.KernelRidge(0.5, kernel="linear", temperature=1.0),
    ),
    "kernel ridge, exponential kernel": (
        "KernelRidge(alpha=0.5, kernel=exponential)",
        kernel_ridge.KernelRidge(alpha=0.5, kernel=exponential),
        'algorithms.KernelRidge(0.5, kernel="exponential", temperature=5.0)',
        lambda: algorithms.KernelRidge(0.5, kernel="exponential", temperature=float(DIM)),
    ),
    "posterior mean of a Gaussian process, linear kernel": (
        'GaussianProcessRegressor(PairwiseKernel(metric="linear"), alpha=0.5, optimizer=None)',
        GaussianProcessRegressor(PairwiseKernel(metric="linear"), alpha=0.5, optimizer=None),
        'algorithms.GaussianProcess(0.5, kernel="linear", temperature=1.0)',
        lambda: algorithms.GaussianProcess(0.5, kernel="linear", temperature=1.0),
    ),
    "Lasso, fitted here by scikit-learn": (
        "linear_model.Lasso(alpha=0.1, fit_intercept=False)",
        linear_model.Lasso(alpha=0.1, fit_intercept=False, max_iter=100_000),
        "algorithms.FromSklearn(Lasso(alpha=0.1, fit_intercept=False))",
        lambda: algorithms.FromSklearn(linear_model.Lasso(alpha=0.1, fit_intercept=False, max_iter=100_000)),
    ),
}


def cases(checkout):
    """Every pair on twenty prompts of float64."""
    x, y = draws()
    with jax.enable_x64(True):
        for case, (name, estimator, ours, build) in PAIRS.items():
            predictor = build()
            difference = max(
                np.abs(
                    theirs(estimator, *pair) - np.asarray(predictor(RegressionPrompt(*map(jnp.asarray, pair))))[1:]
                ).max()
                for pair in zip(x, y, strict=True)
            )
            row = {"case": case, "theirs": name, "ours": ours, "difference": difference}
            yield row | {"unit": "absolute", "tolerance": 1e-9, "note": ""}
