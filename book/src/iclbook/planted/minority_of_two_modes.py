"""Do outcomes of runs have two modes, or do all runs end in one?"""

import jax
import numpy as np

from icllab.core.statistics import dip_p_value

STATISTIC = "icllab.core.statistics.dip_p_value"
CLAIMS = ("induction/bimodal_at_the_threshold",)
FAMILY = "48 runs whose outcomes scatter by 0.03 about 0.97 or, a share, about 0.55. Two modes: a dip with p < 0.01."
AXIS = "share of the rarer mode"
STRENGTHS = (0.0, 0.0625, 0.125, 0.1875, 0.25, 0.375, 0.5)
FALSE = {0.0: ("two modes",), 0.5: ("one mode",)}
REPLICATES = 200

RUNS, MODES, SCATTER, BIMODAL = 48, (0.97, 0.55), 0.03, 0.01


def verdicts(strength, *, replicates, key):
    """One verdict for each replicate."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    modes = np.where(rng.random((replicates, RUNS)) < strength, *MODES[::-1])
    samples = modes + SCATTER * rng.normal(size=modes.shape)
    return ["two modes" if dip_p_value(row, 1000) < BIMODAL else "one mode" for row in samples]
