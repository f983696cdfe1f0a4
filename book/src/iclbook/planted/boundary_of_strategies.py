"""Is the pool size at which memorised and counted weigh equally 15, to a factor of two?"""

import jax
import numpy as np
import xarray as xr

from iclbook.claims.induction.four_strategies import claim

STATISTIC = "iclbook.claims.induction.four_strategies.claim.check"
CLAIMS = ("induction/four_strategies",)
FAMILY = (
    "Weights of what eight networks memorise of 4, 16 and 128 chains, on a line in the logarithm of the pool that "
    "crosses a half at a boundary, with the scatter of networks as measured: 0.05, 0.15 and 0.05."
)
AXIS = "boundary, chains"
STRENGTHS = (4.0, 7.5, 11.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0)
FALSE = {4.0: ("holds",), 7.5: ("holds", "fails"), 15.0: ("fails",), 30.0: ("holds", "fails"), 90.0: ("holds",)}
REPLICATES = 200

POOLS, SEEDS, SLOPE, SCATTER = np.array([4, 16, 128]), 8, 0.2, np.array([0.05, 0.15, 0.05])


def verdicts(strength, *, replicates, key):
    """``holds``, ``fails`` or ``undecided``, one for each replicate."""
    noise = SCATTER * np.asarray(jax.random.normal(key, (replicates, SEEDS, len(POOLS))), float)
    return [_verdict(0.5 - SLOPE * np.log(POOLS / strength) + rows) for rows in noise]


def _verdict(memorised):
    """Judge networks that memorise with this weight, in bigrams only."""
    kept = np.clip(memorised, 0.0, 1.0).T
    weights = np.stack([0 * kept, 0 * kept, kept, 1 - kept])[:, :, None, None]
    each = ("predictor", "tasks", "step", "distribution", "seed")
    dataset = xr.Dataset(
        {
            "mixture_weight": (each, np.repeat(weights, 2, axis=3)),
            "predictor_divergence": (each, np.ones((4, len(POOLS), 1, 2, SEEDS))),
            "mixture_divergence": (each[1:], np.ones((len(POOLS), 1, 2, SEEDS))),
        },
        coords={"predictor": list(claim.NAMES), "tasks": POOLS, "step": [800], "distribution": list(claim.SOURCES)},
    )
    (finding,) = (finding for finding in claim.check(dataset) if finding.name == "boundary")
    return finding.outcome.value
