"""Is the number of classes from which the context wins within a quarter of the prediction?"""

import functools
import json
from unittest import mock

import jax
import numpy as np
import xarray as xr

from iclbook.claims.induction.race_of_memorising import claim
from icllab.theory import memorisation_race

STATISTIC = "iclbook.claims.induction.race_of_memorising.claim.check"
CLAIMS = ("induction/race_of_memorising",)
FAMILY = (
    "24 runs for each of three lengths, whose thresholds lie below what drives and times alone predict. As measured, "
    "times scatter by 10 % and move the threshold of the same run, which scatters by 10 % about that; drives scatter "
    "by 12 to 5 %."
)
AXIS = r"logarithm of the predicted over the planted threshold"
STRENGTHS = (0.0, 0.1, 0.15, 0.25, 0.3, 0.4, 0.6)
FALSE = {0.0: ("fails",), 0.25: ("holds", "fails"), 0.6: ("holds",)}
REPLICATES = 100

PAIRS, CLASSES, SEEDS = np.array([8, 16, 32]), np.array([64, 128, 256, 512]), 24
PREFACTOR, EXPONENT, SCATTER, DRIVES = 0.22, 0.92, 0.1, np.array([0.12, 0.09, 0.07, 0.05])
ALONE = np.array([memorisation_race.context_time(int(n)) for n in PAIRS])


def verdicts(strength, *, replicates, key):
    """The worst outcome over the three lengths, one for each replicate."""
    seeds = np.asarray(jax.random.bits(key, (replicates,))).tolist()
    with mock.patch.object(memorisation_race, "context_time", functools.cache(memorisation_race.context_time)):
        return [_verdict(strength, np.random.default_rng(seed)) for seed in seeds]  # of all seeds the start is one


def _verdict(strength, rng):
    """Judge simulated runs with a power law of memorising."""
    drives = PREFACTOR * CLASSES[:, None] ** EXPONENT * np.exp(DRIVES[:, None] * rng.normal(size=(3, 4, SEEDS)))
    threshold = np.log(ALONE / 2 / PREFACTOR) / EXPONENT - strength
    together = np.log(np.array(claim.RATIOS)[:, None] * PAIRS[:, None, None])
    starts, runs = SCATTER * rng.normal(size=(3, SEEDS)), SCATTER * rng.normal(size=(3, len(claim.RATIOS), SEEDS))
    wins = together > threshold[:, None, None] + starts[:, None] / EXPONENT + runs
    dataset = xr.Dataset(
        {
            "memorising_drive": (("pairs", "classes", "seed"), drives),
            "memorising_time": (("pairs", "classes", "seed"), 3 * drives),
            "context_time": (("pairs", "seed"), ALONE[:, None] * np.exp(starts)),
            "start_match": (("pairs", "seed"), 0 * starts),
            "start_value": (("pairs", "seed"), 0 * starts),
            "copy_logit": (("pairs", "classes_per_pair", "seed"), 2.0 * wins),
        },
        coords={"pairs": PAIRS, "classes": CLASSES, "classes_per_pair": list(claim.RATIOS), "seed": np.arange(SEEDS)},
        attrs={"configuration": json.dumps({"fixed": {}})},
    )
    outcomes = {row.outcome.value for row in claim.check(claim.theory(dataset)) if row.name == "threshold"}
    return next(outcome for outcome in ("fails", "undecided", "holds") if outcome in outcomes)
