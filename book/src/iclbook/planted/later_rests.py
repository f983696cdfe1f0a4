"""Do later rests of softmax heads hardly lengthen with a smaller start?"""

import jax
import numpy as np
import xarray as xr

from iclbook.claims.descent.softmax_saddles import claim

STATISTIC = "iclbook.claims.descent.softmax_saddles.claim.check"
CLAIMS = ("descent/softmax_saddles",)
FAMILY = (
    "Eight pairs of networks whose time from the first drop to the third is longer by a ratio from a quarter of the "
    "start, and scatters by a factor of 1.45 about it, as measured; 4, the inverse of the start, is linear attention."
)
AXIS = "time from the smaller start over that from the larger"
STRENGTHS = (0.7, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0)
FALSE = {0.7: ("fails",), 1.0: ("fails",), 2.0: ("holds", "fails"), 4.0: ("holds",), 6.0: ("holds",)}
REPLICATES = 400

SEEDS, TIME, SCATTER = 8, 400.0, np.log(1.45)
LEVELS = xr.DataArray([1.0, 0.641, 0.377, 0.210, 0.136], dims="plateau")


def verdicts(strength, *, replicates, key):
    """``holds``, ``fails`` or ``undecided``, one for each replicate."""
    noise = SCATTER * np.asarray(jax.random.normal(key, (replicates, SEEDS)), float)
    return [_verdict(strength * np.exp(row)) for row in noise]


def _verdict(ratios):
    """Judge drops whose rests have these ratios, with the plateaus as claimed."""
    rests = TIME * np.stack([np.ones(SEEDS), ratios])[..., None] * np.array([0.0, 0.3, 1.0, 2.5])
    axes = "start_std", "seed"
    dataset = xr.Dataset(
        {
            "learned_step": ((*axes, "component"), 300 + rests),
            "plateau_loss": LEVELS.expand_dims(start_std=2, seed=SEEDS),
            "plateau_loss_theory": LEVELS,
            "value_sum": 0 * LEVELS.expand_dims(start_std=2, seed=SEEDS),
            "disordered": (axes, np.zeros((2, SEEDS), bool)),
        },
        coords={"start_std": [0.01, 0.0025], "seed": np.arange(SEEDS), "plateau": np.arange(5)},
    )
    (finding,) = (finding for finding in claim.check(dataset) if finding.name == "later")
    return finding.outcome.value
