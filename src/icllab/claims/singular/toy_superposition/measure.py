"""Six features in two dimensions: the polygons, descents from noisy squares, and the posterior."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.claims.singular.toy_superposition.claim import CHECKED, COUNTS, FEATURES, LATE, POLYGONS, PRESENT
from icllab.core.grid import tabulated
from icllab.diagnostics import HMC, SMC, free_energy, hessian_spectrum, learning_coefficient
from icllab.theory import superposition

VERSION = 1


class Loss(eqx.Module):
    """The squared error, integrated over the one feature that is not zero; not ``rectified``, its output is linear."""

    rectified: bool = eqx.field(static=True)

    def __call__(self, w):
        """The mean over features at ``weights`` (2, 6) and ``bias`` (6,)."""
        g = w["weights"].T @ w["weights"]
        b, own = jnp.broadcast_to(w["bias"][:, None], g.shape), jnp.eye(FEATURES)
        low, high = jnp.zeros_like(g), jnp.ones_like(g)
        if self.rectified:
            cut = jnp.clip(-b / jnp.where(g == 0, 1, g), 0, 1)
            low = jnp.where(g > 0, cut, 0)
            high = jnp.where(g < 0, cut, jnp.where((g == 0) & (b <= 0), 0, 1))
        cube, square = (high**3 - low**3) / 3, (high**2 - low**2) / 2
        answered = g**2 * cube + 2 * g * b * square + b**2 * (high - low)
        return jnp.sum(own / 3 - 2 * own * (g * cube + b * square) + answered) / FEATURES


@eqx.filter_jit
def descended(loss, at, rate, steps):
    """So many steps of gradient descent from there, and the loss after them."""
    slope = jax.grad(loss)
    there = jax.lax.fori_loop(0, steps, lambda _, w: jax.tree.map(lambda a, g: a - rate * g, w, slope(w)), at)
    return there, loss(there)


def corners(w):
    """Which of :data:`COUNTS` there are."""
    count = jnp.sum(jnp.sum(w["weights"] ** 2, axis=0) > PRESENT**2)
    return jnp.stack([count <= 3, count == 4, count == 5, count == 6]).astype(float)


def at_polygon(name):
    """The weights and biases of a polygon."""
    found = superposition.polygon(POLYGONS[name][0], features=FEATURES, positive=POLYGONS[name][1])
    return {"weights": jnp.asarray(found.weights), "bias": jnp.asarray(found.bias)}


def measure(point, *, key, rectified=True):
    """One cell: the polygons, descents of every seed, and the posterior at several temperatures."""
    loss = Loss(rectified)
    of_polygons, of_descents, of_posterior = jax.random.split(key, 3)

    def coefficient(at, key):
        sampler = HMC(warm_up=point.warm_up, draws=2 * point.warm_up, dispersion=0.1)
        how = {"n": point.n, "nbeta": point.n, "localization": point.localization, "sampler": sampler}
        found = learning_coefficient(loss, at, estimand="at_temperature", **how, key=key)
        return float(found["estimate"]), float(found["mcse"]), len(found.attrs["warnings"])

    def of_polygon(polygon):
        there = at_polygon(polygon)
        value, gradient = jax.value_and_grad(loss)(there)
        own = jax.random.fold_in(of_polygons, list(POLYGONS).index(polygon))
        estimate, error, warned = coefficient(there, own)
        return {
            "polygon_loss": float(value),
            "polygon_slope": max(float(jnp.max(jnp.abs(part))) for part in jax.tree.leaves(gradient)),
            "hessian_half_rank": float(hessian_spectrum(loss, there, key=key, threshold=1e-6)["rank"]) / 2,
            "learning_coefficient": estimate,
            "learning_coefficient_error": error,
            "sampler_warnings": warned,
        }

    def descent(seed):
        of_weights, of_bias, of_chains = jax.random.split(jax.random.fold_in(of_descents, seed), 3)
        at, done, rows = at_polygon("4"), 0, []
        at = {
            "weights": at["weights"] + point.noise * jax.random.normal(of_weights, (2, FEATURES)),
            "bias": jnp.where(at["bias"] < 0, 0, at["bias"]) + point.noise * jax.random.normal(of_bias, (FEATURES,)),
        }
        for t, step in enumerate(point.step):
            at, value = descended(loss, at, jnp.asarray(point.rate), jnp.asarray(step - done))
            done = step
            asked = step >= LATE and (len(point.step) - 1 - t) % CHECKED == 0
            rows.append((value, *(coefficient(at, jax.random.fold_in(of_chains, t)) if asked else [np.nan] * 3)))
        names = ("descent_loss", "descent_coefficient", "descent_coefficient_error", "descent_warnings")
        return {name: (("step",), column) for name, column in zip(names, np.array(rows, float).T, strict=True)}

    def posterior():
        share, warned = np.full((2, len(point.nbeta), len(COUNTS)), np.nan), np.nan
        if len(point.nbeta) > 1:
            origin = {"weights": jnp.zeros((2, FEATURES)), "bias": jnp.zeros(FEATURES)}
            how = {"nbeta": point.nbeta, "observe": corners, "sampler": SMC(repeats=point.repeats)}
            found = free_energy(loss, origin, key=of_posterior, **how)
            share[:], warned = (found["observed"], found["observed_error"]), len(found.attrs["warnings"])
        names = ("posterior_share", "posterior_share_error")
        shares = {name: (("nbeta", "corners"), values) for name, values in zip(names, share, strict=True)}
        return {**shares, "annealing_warnings": ((), warned)}

    return {**tabulated(of_polygon, polygon=point.polygon), **tabulated(descent, seed=point.seed), **posterior()}
