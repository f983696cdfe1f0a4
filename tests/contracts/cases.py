"""What the contract tests run through: a new task, predictor, model or claim joins by adding one line."""

import equinox as eqx
import jax
import jax.numpy as jnp

from icllab.experiments import registry
from icllab.models import edited, reduced
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression, WeightPool

KEY = jax.random.key(7)


def _pool_task():
    return LinearRegression.from_scaling(dim=4, alpha=2.0, kappa=1.0, rho=0.1, key=KEY)


def _full_covariances():
    covariance = jnp.eye(4) + 0.3
    pool = WeightPool.drawn(GaussianWeights(covariance), 5, 4, key=KEY)
    return LinearRegression(4, 6, GaussianInputs(covariance), pool, 0.2)


TASKS = {
    "lu_letey": _pool_task,
    "full_covariances": _full_covariances,
    "raventos": lambda: LinearRegression.convention("raventos", dim=4, length=6),
    "vonoswald": lambda: LinearRegression.convention("vonoswald", dim=4, length=6),
}


def _reduced():
    return reduced.fit(_pool_task(), prompts=60, ridge=0.1, key=KEY)


MODELS = {
    "reduced_linear_attention": _reduced,
    "edited": lambda: edited(_reduced(), lambda name, value: 2.0 * value if name == "weights" else value),
}

PREDICTORS = {**MODELS}

CLAIMS = sorted(registry.claims())


def cast(tree, dtype):
    """Every floating-point leaf in the given type."""
    return jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, tree)
