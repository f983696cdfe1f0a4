"""Whether a training curve waits before it falls."""

import jax
import numpy as np
import xarray as xr

from icllab.diagnostics.curves.transition_times import transitions

STATISTIC = "icllab.diagnostics.curves.transition_times.transitions"
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
    "routing/compositions",
    "routing/daughters_in_the_whole",
    "routing/interactions",
    "routing/one_by_one",
    "routing/one_daughter",
    "routing/peaks_in_networks",
)
FAMILY = (
    "Losses exp(-log 2 (t/T)^b) of 100 records from t = 20 to 2000 with T between 300 and 600, and noise of 5 % of the "
    "fall: b = 1 is an exponential, b below 1 a stretched one, and b = 8 almost a jump."
)
AXIS = "exponent of time, b"
STRENGTHS = (0.6, 1.0, 1.3, 1.6, 2.0, 3.0, 8.0)
SMOOTH, ABRUPT, NEVER = "smooth", "abrupt", "no transition"
FALSE = {0.6: (ABRUPT, NEVER), 1.0: (ABRUPT, NEVER), 8.0: (SMOOTH, NEVER)}
REPLICATES = 200

STEPS, NOISE = np.linspace(20.0, 2000.0, 100), 0.05


def verdicts(strength, *, replicates, key):
    """Verdicts with known plateau and end, 1 and 0, as for the accuracy of an induction head."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    half = rng.uniform(300.0, 600.0, size=(replicates, 1))
    losses = np.exp(-np.log(2) * (STEPS / half) ** strength) + NOISE * rng.normal(size=(replicates, len(STEPS)))
    records = xr.DataArray(losses, dims=("member", "step"), coords={"step": STEPS})
    table = transitions(records, plateau=1.0, end=0.0)
    crossed, abrupt = table["crossed"].values, table["abrupt"].values
    return [ABRUPT if a else SMOOTH if c else NEVER for c, a in zip(crossed, abrupt, strict=True)]
