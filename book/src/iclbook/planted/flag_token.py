"""Does a flag move the weights as far as linear targets of equal effect do?"""

import jax
import numpy as np
import xarray as xr

from iclbook.claims.context_map.flag_token import claim
from icllab.lab.checks import Outcome

STATISTIC = "iclbook.claims.context_map.flag_token.claim.check"
CLAIMS = ("context_map/flag_token",)
FAMILY = (
    "Norms of 16 networks, in which the flag costs a given multiple of a target of equal effect; networks scatter by a "
    "quarter in what is across the task, and fits by a tenth."
)
AXIS = "norm of the flag / norm of others, at equal effect"
STRENGTHS = (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 2.0)
FALSE = {0.5: ("as far",), 0.7: ("as far",), 1.0: ("no",), 1.4: ("as far",), 2.0: ("as far",)}
REPLICATES = 400

SEEDS, ACROSS_SCATTER, FIT_SCATTER = 16, 0.25, 0.1


def verdicts(strength, *, replicates, key):
    """``as far``, ``no`` or ``undecided``, one for each replicate."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
    return [_verdict(strength, rng) for _ in range(replicates)]


def _verdict(strength, rng):
    """Judge simulated networks by the claim's own check."""
    scales, rows = np.array(claim.SCALES), ("seed", "target", "scale")
    scatter = np.stack([np.zeros(SEEDS), ACROSS_SCATTER * rng.normal(size=SEEDS)], axis=1)[:, :, None]
    moved = 0.1 * scales**0.8 * np.exp(scatter + FIT_SCATTER * rng.normal(size=(SEEDS, 2, len(scales))))
    data = {"moved": (rows, moved), "effect": (rows, np.broadcast_to(scales, moved.shape))}
    data["flag_moved"] = "seed", 0.1 * strength * np.exp(FIT_SCATTER * rng.normal(size=SEEDS))
    data |= dict.fromkeys(("map_gap", "unconverged"), (rows, np.zeros(moved.shape)))
    data |= dict.fromkeys(("flag_map_gap", "flag_unconverged"), ("seed", np.zeros(SEEDS)))
    data |= {name: ("seed", 0.95 + 0.01 * rng.normal(size=SEEDS)) for name in ("flipped", "zero_shot")}
    coords = {"seed": range(SEEDS), "target": list(claim.TARGETS), "scale": scales}
    dataset = xr.Dataset(data, coords=coords).expand_dims(family=[claim.NETWORK])
    outcomes = {finding.outcome for finding in claim.check(dataset) if finding.name == "as_others"}
    if Outcome.FAILS in outcomes:
        return "no"
    return "undecided" if Outcome.UNDECIDED in outcomes else "as far"
