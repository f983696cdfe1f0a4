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
    there = context_map(at)

    def zero_shot(u):
        return jnp.sum((u - there) ** 2) / 2

    found = learning_coefficient(
        lambda w: zero_shot(context_map(w)),
        at,
        zero_shot=ZeroShot(zero_shot, context_map),
        nbeta=point.nbeta,
        localization=point.localization,
        key=key,
        sampler=SMC(particles=point.particles, repeats=point.repeats),
    ).sel(side=list(point.side))
    told = {"vanishes": 1, "tie": 0, "diverges": -1}
    return {
        "learning_coefficient": (("side",), found["estimate"].values),
        "learning_coefficient_error": (("side",), found["estimate_error"].values),
        "fitted_multiplicity": (("side",), found["multiplicity"].values.astype(float)),
        "coefficient_difference": ((), float(found["difference"])),
        "coefficient_difference_error": ((), float(found["difference_error"])),
        "coefficient_sign": ((), np.float64(SIGNS[found.attrs["sign"]])),
        "density_sign": ((), np.float64(told[found.attrs["density"]])),
        "annealing_warnings": ((), len(found.attrs["warnings"])),
    }
