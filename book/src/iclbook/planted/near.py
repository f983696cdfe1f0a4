"""Whether an estimate is within a margin of a number, as checks of claims have it."""

import jax
import numpy as np
import xarray as xr

from icllab.lab import checks, estimates

STATISTIC = "icllab.lab.checks.near"
FAMILY = (
    "The mean of ten normal seeds with a standard error of a tenth of the margin; at 1 the expectation is the margin."
)
AXIS = "distance / margin"
STRENGTHS = (0.0, 0.5, 0.8, 1.0, 1.2, 1.5, 2.0)
FALSE = {0.0: ("fails", "undecided"), 1.0: ("holds", "fails"), 2.0: ("holds", "undecided")}
REPLICATES = 400

SEEDS = 10


def verdicts(strength, *, replicates, key):
    """One finding for each replicate."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    values = strength + 0.1 * np.sqrt(SEEDS) * rng.normal(size=(replicates, SEEDS))
    estimate = estimates.mean(xr.DataArray(values, dims=("replicate", "seed")))
    return [finding.outcome.value for finding in checks.near("mean", "mean", estimate, 0.0, margin=1.0)]
