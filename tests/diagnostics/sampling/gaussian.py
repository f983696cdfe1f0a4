"""A quadratic loss under a Gaussian prior, whose moments are known: what every sampler of chains is measured on."""

import jax.numpy as jnp
import numpy as np

from icllab.diagnostics.sampling import convergence
from icllab.diagnostics.sampling.posteriors import Posterior
from icllab.theory import quadratic_posterior

H = np.array([3.0, 1.0, 0.2])
NBETA, GAMMA = 7.0, 0.5


def quadratic(w):
    return jnp.sum(jnp.asarray(H, w.dtype) * w**2) / 2 + 1.5


def target(dtype="float64"):
    return Posterior(quadratic, jnp.zeros(3, dtype), jnp.asarray(NBETA, dtype), jnp.asarray(GAMMA, dtype))


def require_moments(found, step=0.0, relative=0.03):
    """Loss and distance within four Monte Carlo errors, each below 3 per cent; ``step``: of Langevin dynamics' bias."""
    wanted = quadratic_posterior.gaussian_coefficient(H, nbeta=NBETA, localization=GAMMA, step_size=step)
    mean, error = convergence.mean_and_mcse(NBETA * np.asarray(found.terms)[:, :, 0])
    assert error < relative * wanted
    assert abs(mean - wanted) < 4 * error
    curvature = NBETA * H + GAMMA
    wanted = np.sum(1 / curvature / (1 - step * curvature / 4))
    mean, error = convergence.mean_and_mcse(np.asarray(found.distance))
    assert error < relative * wanted
    assert abs(mean - wanted) < 4 * error
    assert found.terms.shape == (*found.distance.shape, 1)
    assert found.last.shape == (8, 3)
