"""Is a change of weights partly the gradient step on the context's own examples?"""

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from iclbook.claims.context_map.a_context_is_partly_a_step import claim
from icllab.lab.checks import Outcome

STATISTIC = "iclbook.claims.context_map.a_context_is_partly_a_step.claim.check"
CLAIMS = ("context_map/a_context_is_partly_a_step",)
FAMILY = (
    "Answers v(x).(w + u_c) of 256 random features; u_c has a cosine with the step on the context's examples, and the "
    "rest of it is orthogonal to the step; twelve networks, three contexts, six other contexts."
)
AXIS = r"cosine of the change with the step, $\cos\theta$"
STRENGTHS = (0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.4, 0.8, 1.0)
FALSE = {0.0: ("part", "whole"), 1.0: ("part", "no")}
REPLICATES = 100

SEEDS, CONTEXTS, OTHERS, LENGTH, QUERIES, DIM, FEATURES = 12, 3, 6, 8, 96, 2, 256


def verdicts(strength, *, replicates, key):
    """``part``, ``whole``, ``no`` or ``undecided``, one for each replicate."""
    keys = jax.random.split(key, replicates)
    cosines, gaps = (np.asarray(part, float) for part in _measured(keys, jnp.asarray(strength)))
    return [_verdict(*parts) for parts in zip(cosines, gaps, strict=True)]


@jax.jit
def _measured(keys, strength):
    """Cosines and gaps [replicate, seed, examples]."""

    def of_network(key):
        of_features, of_weights, of_contexts = jax.random.split(key, 3)
        matrix = jax.random.normal(of_features, (FEATURES, DIM + 1))
        w = jax.random.normal(of_weights, (FEATURES,)) / FEATURES
        return _of_network(of_contexts, matrix, w, strength)

    return jax.lax.map(lambda key: jax.vmap(of_network)(jax.random.split(key, SEEDS)), keys)


def _of_network(key, matrix, w, strength):
    """Means over contexts of the cosine and the gap with the own and with others' steps, in closed form."""

    def features(x):
        return jnp.tanh(x @ matrix[:, :DIM].T + matrix[:, DIM])

    def step(key):
        of_task, of_inputs = jax.random.split(key)
        x = jax.random.normal(of_inputs, (LENGTH, DIM))
        residual = x @ jax.random.normal(of_task, (DIM,)) - features(x) @ w
        slope = residual @ features(x)
        return slope / jnp.linalg.norm(slope)

    def of_context(key):
        of_own, of_others, of_rest, of_queries = jax.random.split(key, 4)
        own = step(of_own)
        rest = jax.random.normal(of_rest, own.shape)
        rest -= (rest @ own) * own
        change = strength * own + (1 - strength**2) ** 0.5 * rest / jnp.linalg.norm(rest)
        steps = jnp.concatenate([own[None], jax.vmap(step)(jax.random.split(of_others, OTHERS))])
        fitted, held_out = features(jax.random.normal(of_queries, (2, QUERIES, DIM)))
        sizes = jnp.maximum((steps @ fitted.T) @ (fitted @ change) / jnp.sum((steps @ fitted.T) ** 2, axis=1), 0)
        left = jnp.sum(((change - sizes[:, None] * steps) @ held_out.T) ** 2, axis=1)
        rows = steps @ change, left / jnp.sum((held_out @ change) ** 2)
        return tuple(jnp.stack([row[0], jnp.mean(row[1:])]) for row in rows)

    return tuple(part.mean(axis=0) for part in jax.vmap(of_context)(jax.random.split(key, CONTEXTS)))


def _verdict(cosines, gaps):
    """Judge simulated networks of one architecture by the claim's own check."""
    dims = ("seed", "step", "examples")
    zeros = np.zeros((SEEDS, 1))
    data = {"step_cosine": (dims, cosines[:, None]), "best_step_gap": (dims, gaps[:, None])}
    data |= dict.fromkeys(("map_gap", "unconverged"), (dims[:2], zeros))
    data["training_score"] = dims[:2], zeros + 1
    coords = {"seed": range(SEEDS), "step": [1], "examples": [claim.OWN, claim.OTHER]}
    dataset = xr.Dataset(data, coords=coords).expand_dims(architecture=["one layer"])
    table = dataset[["step_cosine", "best_step_gap", "map_gap", "unconverged"]].expand_dims(part=[claim.ALL])
    findings = claim.check(table.assign(training_score=dataset["training_score"]))
    failed = {finding.name for finding in findings if finding.outcome is Outcome.FAILS}
    if all(finding.outcome is Outcome.HOLDS for finding in findings):
        return "part"
    if failed & {"nearer", "leaves_less"}:
        return "no"
    return "whole" if "partly" in failed else "undecided"
