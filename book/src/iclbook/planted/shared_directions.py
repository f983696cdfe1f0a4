"""Do contexts share fewer directions of the weights after training than before?"""

import jax
import numpy as np
import xarray as xr

from iclbook.claims.routing.disjoint_contexts import claim
from icllab.lab.checks import Outcome

STATISTIC = "iclbook.claims.routing.disjoint_contexts.claim.check"
CLAIMS = ("routing/disjoint_contexts",)
FAMILY = (
    "Three contexts with 20 directions each, of which nine tenths are common before training and a share after it; a "
    "half of the strings spans 12 random ones of them before and 8 after, so that all overlaps fall; 16 networks."
)
AXIS = "share of directions in common after training"
STRENGTHS = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
FALSE = {0.0: ("as shared",), 0.9: ("more disjoint",)}
REPLICATES = 200

SEEDS, CONTEXTS, DIRECTIONS, WEIGHTS = 16, 3, 20, 4844
SPANNED = {claim.BEFORE: 12, claim.AFTER: 8}
COMMON, SCATTER = 0.9, 0.05
NAMES = {Outcome.HOLDS: "more disjoint", Outcome.FAILS: "as shared", Outcome.UNDECIDED: "undecided"}


def verdicts(strength, *, replicates, key):
    """``more disjoint``, ``as shared`` or ``undecided``, one for each replicate."""
    shares = {claim.BEFORE: COMMON, claim.AFTER: strength}
    generators = [
        np.random.default_rng(np.asarray(row)) for row in jax.random.key_data(jax.random.split(key, replicates))
    ]
    return [
        _verdict({stage: overlaps(share, SPANNED[stage], rng) for stage, share in shares.items()}) for rng in generators
    ]


def overlaps(share, spanned, rng):
    """Overlaps of other contexts and of the same context between two halves, [2, seed]."""
    common = np.clip(np.rint(DIRECTIONS * (share + SCATTER * rng.normal(size=SEEDS))), 0, DIRECTIONS)
    own = np.arange(DIRECTIONS) >= common[:, None]  # [seed, direction]
    rows = rng.normal(size=(SEEDS, CONTEXTS, 2, spanned, DIRECTIONS))
    space = np.zeros((SEEDS, CONTEXTS, 2, spanned, (CONTEXTS + 1) * DIRECTIONS))
    for c in range(CONTEXTS):
        space[:, c, :, :, :DIRECTIONS] = np.where(own[:, None, None], 0, rows[:, c])
        at = (c + 1) * DIRECTIONS
        space[:, c, :, :, at : at + DIRECTIONS] = np.where(own[:, None, None], rows[:, c], 0)
    basis = np.linalg.qr(np.swapaxes(space, -1, -2))[0]
    products = np.einsum("scir,sdiq->scdrq", basis[:, :, 0], basis[:, :, 1])
    found = np.sum(products**2, axis=(-1, -2)) / spanned
    same = np.eye(CONTEXTS, dtype=bool)
    return found[:, ~same].mean(axis=1), found[:, same].mean(axis=1)


def _verdict(stages):
    dims, at = ("layers", "width", "seed", "stage"), {"layers": [2], "width": [16], "stage": list(stages)}
    overlap, ceiling = np.stack([np.stack(pair) for pair in stages.values()], axis=-1)[:, None, None]
    rows = {"overlap": overlap, "ceiling": ceiling, "largest_loss": 0 * overlap}
    rows["independent"] = np.broadcast_to(np.array(list(SPANNED.values())) / WEIGHTS, overlap.shape)
    dataset = xr.Dataset({name: (dims, values) for name, values in rows.items()}, at)
    (finding,) = [finding for finding in claim.check(claim.theory(dataset)) if finding.name == "lower"]
    return NAMES[finding.outcome]
