"""Posteriors without an answer at their point: the right result of an estimator is a warning."""

import numpy as np

from icllab.diagnostics.sampling.priors import Prior
from icllab.posteriors.crossings import COLD, quadratics, rotation
from icllab.posteriors.problems import Draft, family


def slope(xp, w, arrays, rows, sizes):
    """A quadratic loss with a slope at the point."""
    u = arrays["rotation"] @ (w - arrays["centre"])
    return xp.sum(arrays["slope"] * u) + xp.sum(arrays["curvatures"] * u**2) / 2


def walled(xp, w, arrays, rows, sizes):
    """A loss that ends at a wall through the point, towards which it falls."""
    u = arrays["rotation"] @ (w - arrays["centre"])
    return xp.where(u[0] < 0, xp.inf, xp.sum(arrays["slope"] * u) + xp.sum(arrays["curvatures"] * u**2) / 2)


def unbounded(xp, w, arrays, rows, sizes):
    """A loss that falls without end, with a gradient of zero at the point."""
    u = arrays["rotation"] @ (w - arrays["centre"])
    return xp.sum(arrays["curvatures"] * u**2) / 2 - xp.sum(arrays["slope"] * u**4)


def _draft(rng, formula, size=4, prior=None):
    arrays = {"rotation": rotation(rng, size), "centre": rng.normal(size=size), "slope": np.zeros(size)}
    arrays["slope"][0] = rng.uniform(0.5, 1.5)
    arrays["curvatures"] = rng.uniform(0.5, 2.0, size)
    if formula is unbounded:
        arrays["curvatures"][0] = 0.0
    if formula is quadratics:
        prior = Prior(centre=arrays["centre"] + rng.uniform(3, 5), std=0.05)
    return Draft(formula, arrays, arrays["centre"], dict, prior=prior)


for _name, _formula in {
    "on_a_slope": slope,
    "at_a_wall": walled,
    "unbounded_below": unbounded,
    "prior_elsewhere": quadratics,
}.items():
    family(_name, "refused", COLD)(lambda rng, nbeta, gamma, formula=_formula: _draft(rng, formula))
