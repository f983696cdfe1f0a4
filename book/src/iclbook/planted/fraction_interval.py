"""More than half of the members: a fraction of 24 by its exact interval."""

import jax
import numpy as np
import xarray as xr

from icllab.lab import checks, intervals

STATISTIC = "icllab.lab.intervals.fraction"
CLAIMS = (
    "descent/depth_needs_rotation",
    "descent/merged_heads_drop_once",
    "induction/abrupt_learning",
    "induction/bimodal_at_the_threshold",
    "induction/copying_in_context",
    "induction/equal_labels_abolish",
    "induction/exponentials_or_products",
    "induction/initial_weights",
    "induction/no_softmax_no_cliff",
    "induction/plateaus_are_ngrams",
    "induction/race_of_memorising",
    "induction/two_of_nine",
    "singular/llc_along_training",
)
FAMILY = "24 independent members, each of which has the property with a probability p; asked is whether p exceeds 1/2."
AXIS = "probability $p$"
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)
FALSE = {0.0: ("holds",), 0.25: ("holds",), 0.5: ("holds", "fails"), 0.75: ("fails",), 1.0: ("fails",)}
REPLICATES = 1000
MEMBERS = 24


def verdicts(strength, *, replicates, key):
    """One verdict for each replicate."""
    members = np.asarray(jax.random.uniform(key, (replicates, MEMBERS))) < strength
    estimate = intervals.fraction(xr.DataArray(members, dims=("replicate", "seed")))
    return [finding.outcome.value for finding in checks.above("p", "fraction", estimate, 0.5)]
