"""Whether the density of the pushed-forward prior diverges, vanishes or does neither at a point."""

import jax
import numpy as np

from icllab.diagnostics.singular.pushed_density import density_exponent

STATISTIC = "icllab.diagnostics.singular.pushed_density.density_exponent"
CLAIMS = ()
FAMILY = (
    "Distances of 16 times 65 536 draws from a point of the plane; the density there is a power, and normal far away."
)
AXIS = "exponent a of the density"
STRENGTHS = (-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0)
FALSE = dict.fromkeys(STRENGTHS[:3], ("vanishes",)) | dict.fromkeys(STRENGTHS[4:], ("diverges",))
FALSE |= {0.0: ("diverges", "vanishes")}
REPLICATES = 200
DIMENSION, TAIL = 2, 0.01


def verdicts(strength, *, replicates, key):
    """One verdict for each set of draws."""
    seeds = np.asarray(jax.random.bits(key, (replicates,))).tolist()
    return [_verdict(DIMENSION + strength, seed) for seed in seeds]


def _verdict(freedom, seed):
    radii = np.sqrt(np.random.default_rng(seed).chisquare(freedom, (16, 2**16)))
    return density_exponent(radii, dimension=DIMENSION, tail=TAIL).attrs["density"]
