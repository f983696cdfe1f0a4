"""Are new codes run as accurately as trained ones?"""

import jax
import numpy as np
import xarray as xr

from iclbook.claims.routing.codes import claim
from icllab.lab.checks import Outcome

STATISTIC = "iclbook.claims.routing.codes.claim.check"
CLAIMS = ("routing/codes",)
FAMILY = (
    "Eight networks, of which each errs at trained codes of three, four and five instructions in .02, .09 and .25 of "
    "all cases, times a factor of its own that scatters by 1.4; its accuracy at new codes is that times a ratio. 64 "
    "codes are drawn from each group, and the accuracy of a code scatters about that of its group."
)
AXIS = "accuracy at new codes / at trained codes"
STRENGTHS = (0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)
FALSE = {0.6: ("as well",), 0.7: ("as well",), 0.8: ("as well",), 0.95: ("less",), 1.0: ("less",)}
REPLICATES = 400

SEEDS, CODES, CASES = 8, 64, 27
WRONG, SCATTER = {3: 0.02, 4: 0.09, 5: 0.25}, np.log(1.4)
ALIKE = 4.0  # of the Beta distribution of a code's accuracy: a code is run nearly always, or seldom
LONGER = 0.3  # accuracy at longer codes, which another finding judges
NAMES = {Outcome.HOLDS: "as well", Outcome.FAILS: "less", Outcome.UNDECIDED: "undecided"}


def verdicts(strength, *, replicates, key):
    """``as well``, ``less`` or ``undecided``, one for each replicate."""
    seeds = jax.random.key_data(jax.random.split(key, replicates))
    return [_verdict(strength, np.random.default_rng(np.asarray(seed))) for seed in seeds]


def measured(accuracy, rng):
    """Mean accuracy of 64 codes of an accuracy, [seed]."""
    accuracy = np.clip(accuracy, 1e-6, 1 - 1e-6)
    of_code = rng.beta(ALIKE * accuracy, ALIKE * (1 - accuracy), (CODES, SEEDS))
    return (rng.binomial(CASES, of_code) / CASES).mean(0)


def _verdict(strength, rng):
    table = np.full((1, SEEDS, 2, len(claim.LENGTHS)), np.nan)
    factor = np.exp(SCATTER * rng.normal(size=SEEDS))
    for column, length in enumerate(claim.LENGTHS):
        right = np.clip(1 - WRONG.get(length, 0.0) * factor, 0, 1)
        if length in WRONG:
            table[0, :, 0, column] = measured(right, rng)
        table[0, :, 1, column] = measured(strength * right if length in WRONG else LONGER + 0 * right, rng)
    coords = {"network": [claim.DEEP], "seed": np.arange(SEEDS), "group": list(claim.GROUPS)}
    coords["code_length"] = list(claim.LENGTHS)
    accuracy = xr.DataArray(table, coords, tuple(coords))
    dataset = claim.theory(xr.Dataset({"code_accuracy": accuracy}))
    (finding,) = [finding for finding in claim.check(dataset) if finding.name == "as_well"]
    return NAMES[finding.outcome]
