"""Is the time of the whole that of the one context alone, within a factor of 1.5?"""

import jax
import numpy as np
import xarray as xr

from iclbook.claims.routing.daughters_in_the_whole import claim
from icllab.lab.checks import Outcome

STATISTIC = "iclbook.claims.routing.daughters_in_the_whole.claim.same_time"
CLAIMS = ("routing/daughters_in_the_whole",)
FAMILY = "Times of 120 networks, whose ratio scatters by a factor of 1.7 around a ratio."
AXIS = "time of the whole over that of the context alone, $T/T_c$"
STRENGTHS = (1.0, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0)
FALSE = {1.0: ("other",), 1.2: ("other",), 1.5: ("same", "other"), 2.0: ("same",), 3.0: ("same",)}
REPLICATES = 400

SEEDS, SCATTER = 120, np.log(1.7)
NAMES = {Outcome.HOLDS: "same", Outcome.FAILS: "other", Outcome.UNDECIDED: "undecided"}


def verdicts(strength, *, replicates, key):
    """``same``, ``other`` or ``undecided``, one for each replicate."""
    noise = SCATTER * np.asarray(jax.random.normal(key, (replicates, SEEDS)), float)
    ratios = [xr.DataArray(strength * np.exp(row), dims="seed") for row in noise]
    return [NAMES[claim.same_time(ratio)[0].outcome] for ratio in ratios]
