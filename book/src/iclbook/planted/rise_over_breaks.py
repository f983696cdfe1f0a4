"""Whether the coefficient of linear attention rises over each break of its loss by the step of its ranks."""

import json

import jax
import numpy as np
import xarray as xr

from iclbook.claims.singular.llc_along_training import claim

STATISTIC = "iclbook.claims.singular.llc_along_training.claim.check"
CLAIMS = ("singular/llc_along_training",)
FAMILY = (
    "Ten runs whose three breaks are found, with coefficients that rise by a part of the exact steps, 0.1 of spread."
)
AXIS = "rise / step of the strata"
STRENGTHS = (-1.0, 0.0, 0.25, 0.5, 0.75, 1.0)
FALSE = {-1.0: ("holds",), 0.0: ("holds",), 0.25: ("holds",), 1.0: ("fails",)}
REPLICATES = 200
RUNS, SPREAD = 10, 0.1
PLANTED = np.array([200.0, 385.0, 790.0])
RANKS = np.array([0, 1, 2, 3, 3])


def verdicts(strength, *, replicates, key):
    """The worst outcome of the findings on steps."""
    seeds = np.asarray(jax.random.bits(key, (replicates,))).tolist()
    return [_verdict(strength, seed) for seed in seeds]


def _verdict(strength, seed):
    rng = np.random.default_rng(seed)
    intervals = np.full((RUNS, claim.BREAKS, 2), np.nan)
    intervals[:, : claim.RANKS] = PLANTED[:, None] * np.array([0.97, 1.03])
    dims = ("seed", "checkpoint")
    dataset = xr.Dataset(
        {
            "break_interval": (("seed", "change", "side"), intervals),
            "planted_step": (("seed", "jump"), np.broadcast_to(PLANTED, (RUNS, 3))),
            "sampler_warnings": (dims, np.zeros((RUNS, len(claim.CHECKPOINTS)))),
        },
        coords={"step": list(claim.STEPS), "checkpoint": list(claim.CHECKPOINTS), "jump": [0, 1, 2]},
        attrs={"configuration": json.dumps({"fixed": {"dim": 4, "nbeta": 72382.0}})},
    )
    dataset = claim.theory(dataset)
    exact = dataset["rank_coefficient"].values[RANKS]
    values = exact[0] + strength * (exact - exact[0]) + SPREAD * rng.normal(size=(RUNS, len(RANKS)))
    findings = claim.check(dataset.assign(learning_coefficient=(dims, values)))
    outcomes = {finding.outcome.value for finding in findings if finding.name == "step"}
    return next(outcome for outcome in ("fails", "undecided", "holds") if outcome in outcomes)
