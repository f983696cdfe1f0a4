"""Is a composition learned a fifth sooner where its parts are asked alone?"""

import jax
import numpy as np
import xarray as xr

from iclbook.claims.routing.compositions import claim
from icllab.lab.checks import Outcome

STATISTIC = "iclbook.claims.routing.compositions.claim.helped"
CLAIMS = ("routing/compositions",)
FAMILY = (
    "Times of two late compositions in 12 networks, that scatter by a factor of 1.2 and are censored at the last step; "
    "where the parts are asked they are multiplied by a ratio."
)
AXIS = r"ratio of times with the parts asked and with strangers, $T_c/T_c^{\rm strangers}$"
STRENGTHS = (0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25)
FALSE = {0.4: ("not helped",), 0.8: ("not helped", "helped"), 1.0: ("helped",), 1.25: ("helped",)}
REPLICATES = 200

SEEDS, MEDIAN, SCATTER = 12, 1000.0, np.log(1.2)
NAMES = {Outcome.HOLDS: "not helped", Outcome.FAILS: "helped", Outcome.UNDECIDED: "undecided"}


def verdicts(strength, *, replicates, key):
    """``helped``, ``not helped`` or ``undecided``, one for each replicate."""
    seeds = jax.random.key_data(jax.random.split(key, replicates))
    return [_verdict(strength, np.random.default_rng(np.asarray(seed))) for seed in seeds]


def _verdict(strength, rng):
    times = MEDIAN * np.exp(SCATTER * rng.normal(size=(SEEDS, 2, len(claim.LATE))))
    times[:, 0] *= strength
    coords = {"seed": np.arange(SEEDS), "parts": list(claim.BOTH), "program": list(claim.LATE)}
    observed = xr.DataArray(np.minimum(times, claim.STEPS[-1]), coords=coords, dims=tuple(coords))
    (finding,) = claim.no_help(claim.helped(xr.Dataset({"observed_time": observed})))
    return NAMES[finding.outcome]
