"""A median above its bound: 42 samples with heavy tails, by two of them in order."""

import jax
import jax.numpy as jnp
import xarray as xr

from icllab.lab import checks, intervals

STATISTIC = "icllab.lab.intervals.median"
CLAIMS = (
    "descent/functional_gd",
    "induction/equal_labels_abolish",
    "induction/ladder",
)
FAMILY = (
    "42 ratios whose logarithm is Student's with two degrees of freedom, width .06; asked is whether one exceeds 1."
)
AXIS = r"median of $\ln r$"
STRENGTHS = (-0.1, -0.05, 0.0, 0.02, 0.05, 0.1, 0.2)
FALSE = {-0.1: ("holds",), -0.05: ("holds",), 0.0: ("holds", "fails"), 0.05: ("fails",), 0.2: ("fails",)}
REPLICATES = 1000
MEMBERS, WIDTH = 42, 0.06


def verdicts(strength, *, replicates, key):
    """One verdict for each replicate."""
    ratios = jnp.exp(strength + WIDTH * jax.random.t(key, 2.0, (replicates, MEMBERS)))
    estimate = intervals.median(xr.DataArray(ratios, dims=("replicate", "seed")))
    return [finding.outcome.value for finding in checks.above("r", "ratio", estimate, 1.0)]
