"""The three coefficients of every map, by annealing; the estimator knows no formula."""

import jax.numpy as jnp
import numpy as np

from icllab.claims.routing.degeneracy_and_the_sign.claim import DIM, SIGNS, UNITS
from icllab.diagnostics import SMC, ZeroShot, learning_coefficient

VERSION = 1


def map_of(name, away):
    """A map, and the point: all weights ``away`` from zero."""
    if name in UNITS:
        point = {"a": jnp.full(UNITS[name], away), "b": jnp.full((DIM, UNITS[name]), away)}
        return lambda w: w["b"] @ w["a"], point
    if name == "w1 w2":
        return lambda w: w[0] * w[1], jnp.full(2, away)
    return lambda w: jnp.sum(w**2), jnp.full(DIM, away)


def measure(point, *, key, away=0.0):
    """One cell: coefficients with their errors, and the signs as the diagnostic tells them."""
    context_map, at = map_of(point.map, away)
    image = context_map(at)

    def zero_shot(u):
        return jnp.sum((u - image) ** 2) / 2

    coefficients = learning_coefficient(
        lambda w: zero_shot(context_map(w)),
        at,
        zero_shot=ZeroShot(zero_shot, context_map),
        nbeta=point.nbeta,
        localization=point.localization,
        key=key,
        sampler=SMC(particles=point.particles, repeats=point.repeats),
    ).sel(side=list(point.side))
    values = {"vanishes": 1, "tie": 0, "diverges": -1}
    return {
        "learning_coefficient": (("side",), coefficients["estimate"].values),
        "learning_coefficient_error": (("side",), coefficients["estimate_error"].values),
        "fitted_multiplicity": (("side",), coefficients["multiplicity"].values.astype(float)),
        "coefficient_difference": ((), float(coefficients["difference"])),
        "coefficient_difference_error": ((), float(coefficients["difference_error"])),
        "coefficient_sign": ((), np.float64(SIGNS[coefficients.attrs["sign"]])),
        "density_sign": ((), np.float64(values[coefficients.attrs["density"]])),
        "annealing_warnings": ((), len(coefficients.attrs["warnings"])),
    }
