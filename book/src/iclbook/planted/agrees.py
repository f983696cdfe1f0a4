"""Whether an estimate agrees with a prediction, as checks of claims have it."""

import jax
import numpy as np
import xarray as xr

from icllab.lab import checks, estimates

STATISTIC = "icllab.lab.checks.agrees"
CLAIMS = (
    "asymptotics/context_length",
    "asymptotics/double_descent",
    "asymptotics/gamma_inverts_the_covariance",
    "asymptotics/ridge_tames_the_peak",
    "asymptotics/task_alignment",
    "asymptotics/task_diversity",
    "asymptotics/trained_linear_attention",
    "asymptotics/transformer_double_descent",
    "descent/gd_plus_plus",
    "descent/layers_are_steps",
    "descent/softmax_depth_limit",
    "induction/abrupt_learning",
    "induction/cliff",
    "induction/learning_or_recognition",
    "induction/plateaus_are_ngrams",
    "induction/two_of_nine",
    "induction/weights_or_context",
    "induction/what_must_go_right",
    "routing/phases_with_contexts",
    "singular/additivity",
    "singular/deformation",
    "singular/effective_dimension_across_the_cliff",
    "singular/linear_attention_is_reduced_rank",
    "singular/llc_along_training",
    "singular/per_length",
    "singular/phase_selection",
    "singular/toy_superposition",
)
FAMILY = (
    "The mean of ten normal seeds, whose expectation is so many standard errors from the prediction; the bound of the "
    "error is twice the true one."
)
AXIS = "deviation / standard error of the mean"
STRENGTHS = (0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0)
FALSE = {0.0: ("fails", "undecided"), 12.0: ("holds",)}
REPLICATES = 400

SEEDS = 10


def verdicts(strength, *, replicates, key):
    """The outcome of one finding for each replicate."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    values = strength / np.sqrt(SEEDS) + rng.normal(size=(replicates, SEEDS))
    estimate = estimates.mean(xr.DataArray(values, dims=("replicate", "seed")))
    findings = checks.agrees("mean", "mean", estimate, 0.0, largest_error=2 / np.sqrt(SEEDS))
    return [finding.outcome.value for finding in findings]
