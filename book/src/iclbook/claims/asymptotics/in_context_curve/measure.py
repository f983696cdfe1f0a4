"""Losses by number of examples: networks trained on an anisotropic prior of tasks, and classical estimators."""

import jax
import jax.numpy as jnp
import numpy as np

import icllab as icl
from iclbook.claims.asymptotics._transformers import train, transformer
from iclbook.claims.asymptotics.in_context_curve.claim import TRANSFORMERS
from icllab import algorithms, diagnostics
from icllab.core.grid import tabulated
from icllab.lab.networks import require_answers
from icllab.models import LinearAttention
from icllab.tasks import LinearRegression
from icllab.tasks.regression_distributions import GaussianInputs, GaussianWeights

VERSION = 1


def measure(point, *, key, prior="anisotropic", updates=None, network=None):
    """Loss of every predictor on anisotropic tasks; networks are trained on tasks of ``prior``.

    ``network``: a user's, in the place of the one without positions.
    """
    dim, length, longest = point.dim, round(point.alpha * point.dim), max(point.position)
    of_weights, of_prompts, of_test = jax.random.split(key, 3)
    variances = point.ratio ** -np.arange(dim)
    priors = {"anisotropic": variances * dim / variances.sum(), "isotropic": np.ones(dim), "noise": np.zeros(dim)}

    def task(length, prior="anisotropic"):
        unit = jnp.ones(())
        weights = GaussianWeights(jnp.asarray(priors[prior], unit.dtype))
        return LinearRegression(dim, length, GaussianInputs(unit), weights, jnp.asarray(point.rho, unit.dtype))

    def untrained(name):
        if name == "linear attention":
            return lambda key: LinearAttention.lu(dim=dim, std=0.1, answers="every", key=key)
        shape = {"dim": dim, "width": point.width, "layers": 2, "positions": TRANSFORMERS[name], "length": longest}
        return lambda key: transformer(**shape, key=key)

    estimators = {
        "least squares": algorithms.LeastSquares(),
        "ridge": algorithms.Ridge(point.rho),
        "Bayes": algorithms.bayes_optimal(task(length)),
    }
    given = {} if network is None else {"no positions": network}
    for predictor in given.values():
        require_answers(predictor, task(longest))
    runs = {
        name: train(
            icl.ensemble(untrained(name), seeds=point.seed, key=of_weights),
            task(length, prior),
            point,
            key=of_prompts,
            updates=updates,
        )
        for name in point.predictor
        if name not in estimators | given
    }

    def losses(seed):
        members = {name: run.member(point.seed.index(seed)) for name, run in runs.items()}
        predictors = {name: {**estimators, **members, **given}[name] for name in point.predictor}
        of_seed = jax.random.fold_in(of_test, seed)
        table = diagnostics.per_length(predictors, task(longest), key=of_seed, prompts=point.prompts)["loss"]
        return {"loss": (("predictor", "position"), table.sel(position=list(point.position)).values)}

    return tabulated(losses, seed=point.seed)
