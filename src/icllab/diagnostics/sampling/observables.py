r"""Functions of the parameters under a posterior: their values at a point and at draws, and whether chains agree."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from icllab.core.errors import expected
from icllab.diagnostics.sampling import convergence
from icllab.diagnostics.sampling.local_loss import LocalLoss
from icllab.diagnostics.sampling.sampled_losses import VectorLoss, shape_of
from icllab.diagnostics.stretches import map_in_stretches


def posterior_settings(route: Any, nbeta: float, localization: float) -> dict[str, Any]:
    """Attributes of a dataset that is computed from draws of a posterior."""
    settings = {"route": type(route).__name__, "settings": repr(route), "nbeta": nbeta}
    return settings | {"localization": localization, "resolution": localization / nbeta}


def require_test(sampler: Any) -> None:
    """Raise unless the chains have a Metropolis test."""
    if not sampler.tested:
        hint = "without one, and on batches, covariances are those of the noise too"
        raise expected("route", "Quadrature(), LinearResponse(), or chains with a test: HMC()", sampler, hint)


def at_centre(observables: Any, local: LocalLoss) -> tuple[VectorLoss, np.ndarray]:
    """Observables as a function of a vector, and their values at the point.

    Raises:
        InputError: They are no finite vector there.
    """
    flat = function_of_vector(observables, local)
    shape_of("observables", "functions of parameters", flat, local.centre)
    values = jnp.asarray(flat(local.centre))
    if values.ndim != 1 or not bool(jnp.isfinite(values).all()):
        raise expected("observables", "finite numbers at the point given", np.asarray(values).tolist())
    return flat, np.asarray(values, np.float64)


def function_of_vector(function: Any, local: LocalLoss) -> VectorLoss:
    """A function of all parameters as one of the vector."""
    return VectorLoss(function, local.loss.static, None, local.loss.unravel, local.loss.held)


def disagreements(values: np.ndarray) -> list[str]:
    """A sentence if chains disagree on an observable, [chain, draw, observable]."""
    varying = [i for i in range(values.shape[2]) if np.ptp(values[:, :, i]) > 0]
    worst = max((convergence.rhat(values[:, :, i]) for i in varying), default=1.0)
    return [] if worst <= 1.01 else [f"chains disagree: R-hat of what is observed is up to {worst:.3f}, above 1.01"]


def at_draws(flat: VectorLoss, parameters: Array, at_point: Array) -> Array:
    """Observables above those at the point, one draw of all chains after the other."""
    of_draw = eqx.Partial(_above_point, flat, at_point)
    return jnp.swapaxes(map_in_stretches(of_draw, jnp.swapaxes(parameters, 0, 1)), 0, 1)


def _above_point(flat: VectorLoss, at_point: Array, chains: Array) -> Array:
    return jax.vmap(lambda w: flat(w) - at_point)(chains)
