"""Do mixtures of four strategies leave most of the divergence from the nearest one unexplained?"""

import jax
import numpy as np
import xarray as xr

from iclbook.claims.induction.four_strategies import claim

STATISTIC = "iclbook.claims.induction.four_strategies.claim.check"
CLAIMS = ("induction/four_strategies",)
FAMILY = (
    "Eight networks for each of three pools, whose mixtures leave a fraction of the divergence from the nearest "
    "strategy, with the scatter of networks as measured: 0.16, 0.09 and 0.05."
)
AXIS = "fraction that the mixture leaves"
STRENGTHS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
FALSE = {0.2: ("holds",), 0.4: ("holds",), 0.5: ("holds", "fails"), 0.8: ("fails",)}
REPLICATES = 150

POOLS, SEEDS, SCATTER = np.array([4, 16, 128]), 8, np.array([0.16, 0.09, 0.05])


def verdicts(strength, *, replicates, key):
    """The worst outcome over the three pools, one for each replicate."""
    noise = SCATTER[:, None] * np.asarray(jax.random.normal(key, (replicates, len(POOLS), SEEDS)), float)
    return [_verdict(strength + rows) for rows in noise]


def _verdict(left):
    """Judge mixtures that leave this much of the divergence."""
    each = ("predictor", "tasks", "step", "distribution", "seed")
    shape = (4, len(POOLS), 1, 2, SEEDS)
    dataset = xr.Dataset(
        {
            "mixture_weight": (each, np.full(shape, 0.25)),
            "predictor_divergence": (each, np.ones(shape)),
            "mixture_divergence": (each[1:], np.broadcast_to(left[:, None, None], shape[1:])),
        },
        coords={"predictor": list(claim.NAMES), "tasks": POOLS, "step": [800], "distribution": list(claim.SOURCES)},
    )
    outcomes = {finding.outcome.value for finding in claim.check(dataset) if finding.name == "unexplained"}
    return next(outcome for outcome in ("fails", "undecided", "holds") if outcome in outcomes)
