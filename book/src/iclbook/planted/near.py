"""Whether an estimate is within a margin of a number, as checks of claims have it."""

import jax
import numpy as np
import xarray as xr

from icllab.lab import checks, estimates

STATISTIC = "icllab.lab.checks.near"
CLAIMS = (
    "asymptotics/trained_linear_attention",
    "context_map/flag_token",
    "descent/components_one_by_one",
    "descent/depth_needs_rotation",
    "descent/gd_plus_plus",
    "descent/merged_heads_drop_once",
    "descent/softmax_layers_are_steps",
    "descent/softmax_saddles",
    "descent/which_algorithm",
    "induction/abrupt_learning",
    "induction/copying_in_context",
    "induction/equal_labels_abolish",
    "induction/four_strategies",
    "induction/plateaus_are_ngrams",
    "induction/race_of_memorising",
    "language/induction_bump",
    "routing/daughters_in_the_whole",
    "routing/degeneracy_and_the_sign",
    "routing/half_the_degeneracy",
    "routing/phases_with_contexts",
    "routing/susceptibility_peaks",
    "singular/effective_dimension_across_the_cliff",
    "singular/exact_coefficients",
    "singular/phase_selection",
)
FAMILY = (
    "The mean of ten normal seeds with a standard error of a tenth of the margin; at 1 the expectation is the margin."
)
AXIS = "distance / margin"
STRENGTHS = (0.0, 0.5, 0.8, 1.0, 1.2, 1.5, 2.0)
FALSE = {0.0: ("fails", "undecided"), 1.0: ("holds", "fails"), 2.0: ("holds", "undecided")}
REPLICATES = 400

SEEDS = 10


def verdicts(strength, *, replicates, key):
    """The outcome of one finding for each replicate."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    values = strength + 0.1 * np.sqrt(SEEDS) * rng.normal(size=(replicates, SEEDS))
    estimate = estimates.mean(xr.DataArray(values, dims=("replicate", "seed")))
    return [finding.outcome.value for finding in checks.near("mean", "mean", estimate, 0.0, margin=1.0)]
