"""Whether a second group of runs makes its transition later than a first."""

import jax
import numpy as np
import xarray as xr

from icllab.diagnostics.curves.survival import delay

STATISTIC = "icllab.diagnostics.curves.survival.delay"
CLAIMS = (
    "induction/abrupt_learning",
    "induction/copying_in_context",
    "induction/equal_labels_abolish",
    "induction/exponentials_or_products",
    "induction/initial_weights",
    "induction/needs_two_layers",
    "induction/no_softmax_no_cliff",
    "induction/what_must_go_right",
    "induction/what_the_curriculum_does",
)
FAMILY = (
    "Two groups of four runs with log-normal times of spread 0.3, those of the second so many spreads later; runs end "
    "at 2.5 times the first median. The verdict is that of the exact p-value at 5 %."
)
AXIS = "delay / spread of the logarithm of the times"
STRENGTHS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0)
SAME, LATER, EARLIER = "no difference", "later", "earlier"
FALSE = {0.0: (LATER, EARLIER), 6.0: (SAME, EARLIER)}
REPLICATES = 2000

MEMBERS, SPREAD, END = 4, 0.3, 2.5


def group(rng, shift):
    """Event times of one group, censored at the end of the runs."""
    times = np.exp(SPREAD * (shift + rng.normal(size=MEMBERS)))
    return xr.Dataset({"observed_time": ("member", np.minimum(times, END)), "crossed": ("member", times < END)})


def verdicts(strength, *, replicates, key):
    """One verdict for each replicate; all 70 divisions of eight runs are enumerated, so that no seed matters."""
    rng, names = np.random.default_rng(np.asarray(jax.random.key_data(key))), []
    for _ in range(replicates):
        table = delay(group(rng, 0.0), group(rng, strength))
        significant = float(table["exact_p_value"]) < 0.05
        names.append((LATER if float(table["log_rank"]) < 0 else EARLIER) if significant else SAME)
    return names
