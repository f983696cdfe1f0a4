"""Both coefficients of every map by annealing, and the density by counting; neither knows a formula."""

import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.routing.degeneracy_and_the_sign.claim import (
    DENSITIES,
    DIM,
    MULTIPLICITIES,
    SIGNS,
    SINGULAR,
    UNITS,
)
from icllab.diagnostics import SMC, LocalPosterior, ZeroShot, context_coefficients
from icllab.diagnostics.singular.pushed_density import pushed_density

VERSION = 3


def map_of(name, away):
    """A map, and the point: all weights ``away`` from zero."""
    if name in UNITS:
        point = {"a": jnp.full(UNITS[name], away), "b": jnp.full((DIM, UNITS[name]), away)}
        return lambda w: w["b"] @ w["a"], point
    if name == SINGULAR:
        return lambda w: jnp.stack([w[0] ** 2, w[1]]), jnp.full(2, away)
    if name == "w1 w2":
        return lambda w: w[0] * w[1], jnp.full(2, away)
    return lambda w: jnp.sum(w**2), jnp.full(DIM, away)


def measure(point, *, key, away=0.0, power=1):
    """One cell: coefficients with their errors, and the signs as diagnostics tell them; of a ``power`` of the map."""
    of_annealing, of_draws = jax.random.split(key)
    base, at = map_of(point.map, away)

    def context_map(w):
        return base(w) ** power

    image = context_map(at)

    def zero_shot(u):
        if point.map == SINGULAR:
            offset = u - image
            return offset[0] ** 2 * offset[1] ** 8
        return jnp.sum((u - image) ** 2) / 2

    coefficients = context_coefficients(
        LocalPosterior.from_function(
            lambda w: zero_shot(context_map(w)),
            at,
            nbeta=point.nbeta_singular if point.map == SINGULAR else point.nbeta,
            localization=point.localization,
        ),
        ZeroShot(zero_shot, context_map, MULTIPLICITIES),
        key=of_annealing,
        sampler=SMC(particles=point.particles, repeats=point.repeats, moves=(2, 60)),
    )
    density = pushed_density(
        context_map, at, localization=point.localization, key=of_draws, draws=point.draws, groups=point.groups
    )
    sides = coefficients.sel(side=list(point.side))
    warnings = [text for text in coefficients.attrs["warnings"] if text.startswith(tuple(point.side))]
    return {
        "learning_coefficient": (("side",), sides["estimate"].values),
        "learning_coefficient_error": (("side",), sides["estimate_error"].values),
        "fitted_multiplicity": (("side",), sides["multiplicity"].values.astype(float)),
        "coefficient_difference": ((), float(coefficients["difference"])),
        "coefficient_difference_error": ((), float(coefficients["difference_error"])),
        "coefficient_sign": ((), np.float64(SIGNS[coefficients.attrs["sign"]])),
        "density_exponent": ((), float(density["exponent"][0])),
        "density_exponent_error": ((), float(density["exponent_error"][0])),
        "density_sign": ((), np.float64(DENSITIES[density.attrs["density"]])),
        "annealing_warnings": ((), len(warnings)),
    }
