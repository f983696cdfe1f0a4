"""Eigenvalues of sample covariances, drawn anew for every seed."""

import jax
import jax.numpy as jnp

from icllab.core.grid import batched

VERSION = 1


def measure(point, *, key, heavy=False):
    """Measure the traces at one dimension, of all ridges and seeds; ``heavy``: samples differ in scale."""
    samples = round(point.kappa * point.dim)

    def trace(ridge, seed):
        of_samples, of_scales = jax.random.split(jax.random.fold_in(key, seed))
        x = jax.random.normal(of_samples, (samples, point.dim))
        if heavy:  # with mean square one
            x = x * jax.random.normal(of_scales, (samples, 1))
        eigenvalues = jnp.linalg.eigvalsh(x.T @ x / samples)
        return jnp.mean(1 / (eigenvalues + ridge))

    traces = batched(trace, ridge=jnp.array(point.ridge), seed=jnp.array(point.seed))
    return {"trace": (("ridge", "seed"), traces)}
