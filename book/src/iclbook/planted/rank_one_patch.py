"""Is the best change of a layer's weights for all queries more than one of rank one?"""

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from iclbook.claims.context_map.rank_one_patch import claim
from iclbook.claims.context_map.rank_one_patch.measure import left_by_rank
from icllab.lab.checks import Outcome
from icllab.models.contexts.weight_changes import best_change

STATISTIC = "iclbook.claims.context_map.rank_one_patch.claim.check"
CLAIMS = ("context_map/rank_one_patch",)
FAMILY = (
    "A change of 32 inputs with a covariance of power-law eigenvalues: one direction of outputs, a fraction of the "
    "variance in seven others, and a twentieth that no weights give; ten networks of four contexts, 128 queries."
)
AXIS = "fraction of the change's variance outside rank one"
STRENGTHS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7)
FALSE = {0.0: ("higher rank",), 0.5: ("rank one",), 0.7: ("rank one",)}
REPLICATES = 200

SEEDS, CONTEXTS, QUERIES, INNER, OUTER, OTHERS, UNFITTED = 10, 4, 128, 32, 64, 7, 0.05


def verdicts(strength, *, replicates, key):
    """``higher rank``, ``rank one`` or ``undecided``, one for each replicate."""
    left = _measured(jax.random.split(key, replicates), jnp.asarray(strength))
    return [_verdict(values) for values in np.asarray(left, float)]


@jax.jit
def _measured(keys, strength):
    """Residuals for each rank, [replicate, seed, rank]."""
    spectrum = jnp.arange(1.0, INNER + 1) ** -1.0

    def of_context(key):
        of_reads, of_mean, of_inner, of_outer, of_noise = jax.random.split(key, 5)
        reads = jnp.sqrt(spectrum)[None] * jax.random.normal(of_reads, (2 * QUERIES, INNER))
        reads += jax.random.normal(of_mean, (1, INNER))
        inner = jax.random.normal(of_inner, (INNER, 1 + OTHERS))
        inner /= jnp.sqrt(jnp.sum(spectrum[:, None] * inner**2, axis=0, keepdims=True))
        outer = jnp.linalg.qr(jax.random.normal(of_outer, (OUTER, 1 + OTHERS)))[0].T
        shares = jnp.concatenate([1 - strength[None], jnp.full((OTHERS,), strength / OTHERS)])
        targets = (reads - reads.mean(axis=0, keepdims=True)) @ inner @ (jnp.sqrt(shares)[:, None] * outer)
        noise = jax.random.normal(of_noise, targets.shape) * jnp.sqrt(UNFITTED / OUTER)
        targets = targets * (1 - UNFITTED) ** 0.5 + noise
        change = best_change(reads[:QUERIES], targets[:QUERIES], affine=True)
        return left_by_rank(change, reads[:QUERIES], reads[QUERIES:], targets[QUERIES:])

    def of_replicate(key):
        left = jax.vmap(of_context)(jax.random.split(key, SEEDS * CONTEXTS))
        return left.reshape(SEEDS, CONTEXTS, -1).mean(axis=1)

    return jax.lax.map(of_replicate, keys)


def _verdict(left):
    """Judge simulated networks by the claim's own check."""
    errors = np.tile(np.array([0.0, 1.2, 0.8, 0.8]), (SEEDS, 1))
    data = {"patch_error": (("seed", "patch"), errors), "rank_left": (("seed", "map_rank"), left)}
    coords = {"seed": range(SEEDS), "patch": list(claim.PATCHES), "map_rank": list(claim.RANKS)}
    dataset = xr.Dataset(data, coords=coords)
    dataset["rank_left"] = dataset["rank_left"].expand_dims(block=["first"])
    outcomes = {finding.name: finding.outcome for finding in claim.check(dataset)}
    if outcomes["rank"] is outcomes["full"] is Outcome.HOLDS:
        return "higher rank"
    return "rank one" if Outcome.FAILS in (outcomes["rank"], outcomes["full"]) else "undecided"
