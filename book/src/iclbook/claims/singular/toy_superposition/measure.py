"""Six features in two dimensions: the polygons, descents from noisy squares, and the posterior."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.singular.toy_superposition.claim import CHECKED, COUNTS, FEATURES, LATE, POLYGONS, PRESENT
from icllab.core.grid import tabulated
from icllab.diagnostics import (
    HMC,
    SMC,
    LocalPosterior,
    SpectrumSolver,
    coefficient_at_temperature,
    free_energy,
    hessian_spectrum,
)
from icllab.theory import superposition

VERSION = 1


class Loss(eqx.Module):
    """Squared error, integrated over the one feature that is not zero; unless ``rectified``, of a linear output.

    ``factor`` multiplies it.
    """

    rectified: bool = eqx.field(static=True)
    factor: float = eqx.field(static=True, default=1.0)

    def __call__(self, w):
        """Mean over features at ``weights`` (2, 6) and ``bias`` (6,)."""
        g = w["weights"].T @ w["weights"]
        b, identity = jnp.broadcast_to(w["bias"][:, None], g.shape), jnp.eye(FEATURES)
        low, high = jnp.zeros_like(g), jnp.ones_like(g)
        if self.rectified:
            cut = jnp.clip(-b / jnp.where(g == 0, 1, g), 0, 1)
            low = jnp.where(g > 0, cut, 0)
            high = jnp.where(g < 0, cut, jnp.where((g == 0) & (b <= 0), 0, 1))
        cube, square = (high**3 - low**3) / 3, (high**2 - low**2) / 2
        squares = g**2 * cube + 2 * g * b * square + b**2 * (high - low)
        terms = identity / 3 - 2 * identity * (g * cube + b * square) + squares
        return self.factor * jnp.sum(terms) / FEATURES


@eqx.filter_jit
def descend(loss, at, rate, steps):
    """Weights and loss after steps of gradient descent."""
    slope = jax.grad(loss)
    end = jax.lax.fori_loop(0, steps, lambda _, w: jax.tree.map(lambda a, g: a - rate * g, w, slope(w)), at)
    return end, loss(end)


def corners(w):
    """Indicators of :data:`COUNTS`, the number of corners."""
    count = jnp.sum(jnp.sum(w["weights"] ** 2, axis=0) > PRESENT**2)
    return jnp.stack([count <= 3, count == 4, count == 5, count == 6]).astype(float)


def at_polygon(name):
    """Weights and biases of a polygon."""
    polygon = superposition.polygon(POLYGONS[name][0], features=FEATURES, positive=POLYGONS[name][1])
    return {"weights": jnp.asarray(polygon.weights), "bias": jnp.asarray(polygon.bias)}


def measure(point, *, key, rectified=True, localization=None, factor=1.0):
    """One cell: polygons, descents of every seed, and the posterior at several temperatures.

    ``localization``: another one for chains; ``factor``: see :class:`Loss`.
    """
    loss = Loss(rectified)
    of_polygons, of_descents, of_posterior = jax.random.split(key, 3)

    def coefficient(at, key):
        sampler = HMC(warm_up=point.warm_up, draws=2 * point.warm_up, dispersion=0.1)
        gamma = localization or point.localization
        posterior = LocalPosterior.from_function(loss, at, nbeta=point.n, localization=gamma)
        result = coefficient_at_temperature(posterior, checks=(), sampler=sampler, key=key)
        return float(result["estimate"]), float(result["mcse"]), len(result.attrs["warnings"])

    def measure_polygon(polygon):
        weights = at_polygon(polygon)
        value, gradient = jax.value_and_grad(loss)(weights)
        polygon_key = jax.random.fold_in(of_polygons, list(POLYGONS).index(polygon))
        estimate, error, warnings = coefficient(weights, polygon_key)
        return {
            "polygon_loss": float(value),
            "polygon_slope": max(float(jnp.max(jnp.abs(part))) for part in jax.tree.leaves(gradient)),
            "hessian_half_rank": float(
                hessian_spectrum(loss, weights, key=key, solver=SpectrumSolver(threshold=1e-6))["hessian_rank"]
            )
            / 2,
            "learning_coefficient": estimate,
            "learning_coefficient_error": error,
            "sampler_warnings": warnings,
        }

    def measure_descent(seed):
        of_weights, of_bias, of_chains = jax.random.split(jax.random.fold_in(of_descents, seed), 3)
        at, previous, rows = at_polygon("4"), 0, []
        at = {
            "weights": at["weights"] + point.noise * jax.random.normal(of_weights, (2, FEATURES)),
            "bias": jnp.where(at["bias"] < 0, 0, at["bias"]) + point.noise * jax.random.normal(of_bias, (FEATURES,)),
        }
        for t, step in enumerate(point.step):
            at, value = descend(loss, at, jnp.asarray(point.rate), jnp.asarray(step - previous))
            previous = step
            due = step >= LATE and (len(point.step) - 1 - t) % CHECKED == 0
            rows.append((value, *(coefficient(at, jax.random.fold_in(of_chains, t)) if due else [np.nan] * 3)))
        names = ("descent_loss", "descent_coefficient", "descent_coefficient_error", "descent_warnings")
        return {name: (("step",), column) for name, column in zip(names, np.array(rows, float).T, strict=True)}

    def measure_posterior():
        share, warnings = np.full((2, len(point.nbeta), len(COUNTS)), np.nan), np.nan
        if len(point.nbeta) > 1:
            origin = {"weights": jnp.zeros((2, FEATURES)), "bias": jnp.zeros(FEATURES)}
            sampler = SMC(repeats=point.repeats)
            tempered = Loss(rectified, factor)
            posterior = LocalPosterior.from_function(tempered, origin, nbeta=point.nbeta, localization=1.0)
            annealing = free_energy(posterior, observe=corners, sampler=sampler, key=of_posterior)
            share[:], warnings = (annealing["observed"], annealing["observed_error"]), len(annealing.attrs["warnings"])
        names = ("posterior_share", "posterior_share_error")
        shares = {name: (("nbeta", "corners"), values) for name, values in zip(names, share, strict=True)}
        return {**shares, "annealing_warnings": ((), warnings)}

    polygons = tabulated(measure_polygon, polygon=point.polygon)
    return {**polygons, **tabulated(measure_descent, seed=point.seed), **measure_posterior()}
