"""More than twice as long: the ratio of medians of times, of which some are censored."""

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
FAMILY = "Two groups of 32 log-normal times of spread .55, with medians 4000 and 4000 r, all censored at 14 000."
AXIS = "ratio of the medians $r$"
STRENGTHS = (0.5, 1.0, 2.0, 3.0, 4.0, 8.0, 100.0)
FALSE = {0.5: ("holds",), 1.0: ("holds",), 2.0: ("holds", "fails"), 4.0: ("fails",), 100.0: ("fails",)}
REPLICATES = 1000
MEMBERS, MEDIAN, SPREAD, HORIZON, BOUND = 32, 4000.0, 0.55, 14_000.0, 2.0


def verdicts(strength, *, replicates, key):
    """One verdict for each replicate."""
    scales = MEDIAN * jnp.array([1.0, strength])[:, None, None]
    times = scales * jnp.exp(SPREAD * jax.random.normal(key, (2, replicates, MEMBERS)))
    times = xr.DataArray(times, dims=("group", "replicate", "seed"))
    medians = [intervals.median(group.clip(max=HORIZON), group < HORIZON) for group in times]
    return [finding.outcome.value for finding in checks.above("r", "ratio", medians[1] / medians[0], BOUND)]
