"""Patches of transformers for many contexts: how much of a context they hold at their own query and at others."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.context_map._regression_transformers import double, networks, noisy_task, sample_prompts
from icllab.core.errors import require_instance
from icllab.core.grid import tabulated
from icllab.diagnostics.contexts.ranks import cut_in_metric
from icllab.lab.networks import require_answers
from icllab.models import Transformer, best_patch, rank_one_patch
from icllab.models.contexts.patches import block_inputs, patch_errors
from icllab.models.contexts.weight_changes import WeightChange

VERSION = 2


RANKS = {"0": 0, "1": 1, "2": 2, "full": None}


def measure(point, *, key, distance=None, overshoot=1.0, sign=1.0, network=None):
    """Errors of the patches of every seed before and after training.

    ``distance``: how far other queries are from the first; None: they are drawn independently. ``overshoot``: factor of
    the rank-one patch. ``sign``: factor of the best patches. ``network``: a user's transformer.
    """
    if network is not None:
        require_instance("network", network, Transformer, "a Transformer, whose dense layers a patch changes")
        require_answers(network, noisy_task(point))

    def of_seed(seed):
        of_networks, of_prompts = jax.random.split(key)
        stages = networks(seed, point.step, point, key=of_networks) if network is None else [network]
        rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(of_prompts))])
        with jax.enable_x64(True):
            prompts = sample_prompts(
                rng, point.contexts, 1 + 2 * point.queries, dim=point.dim, length=point.length, examples=0
            )
            if distance is not None:
                first = prompts.x[:, :1, -1]
                near = first + distance * (prompts.x[:, :, -1] - first)
                prompts = eqx.tree_at(lambda p: p.x, prompts, prompts.x.at[:, :, -1].set(near))
            results = [_errors(double(network), prompts, overshoot, sign) for network in stages]
            error, left = (np.stack([np.asarray(row[i]) for row in results]) for i in range(2))
        return {"patch_error": (("step", "patch"), error), "rank_left": (("step", "block", "map_rank"), left)}

    return tabulated(of_seed, seed=point.seed)


@eqx.filter_jit
def _errors(model, prompts, overshoot, sign):
    """Root mean squares over contexts and queries, relative to those without a patch; and what ranks leave.

    The first query has the patch, the first half of the others is what the best ones are fitted to.
    """
    queries = prompts.y.shape[1] // 2
    first, fitted_rows, tested_rows = slice(0, 1), slice(1, 1 + queries), slice(1 + queries, None)

    def of_context(prompts):
        without_context = jax.vmap(lambda prompt: prompt.alone(prompt.length))(prompts)

        def part(rows):
            return tuple(jax.tree.map(lambda leaf: leaf[rows], batch) for batch in (prompts, without_context))

        exact = rank_one_patch(model, *part(0))
        exact = jax.tree.map(lambda leaf: overshoot * leaf, exact)
        best = [best_patch(model, *part(fitted_rows), affine=affine) for affine in (False, True)]
        linear, affine = jax.tree.map(lambda leaf: sign * leaf, best)
        tests = [(exact, first), (exact, tested_rows), (linear, tested_rows), (affine, tested_rows)]
        squares = [jnp.mean(jnp.square(jnp.stack(patch_errors(model, patch, *part(rows)))), 1) for patch, rows in tests]
        return jnp.stack(squares), ranks_left(model, affine, part(fitted_rows), part(tested_rows))

    squares, left = jax.lax.map(of_context, prompts)
    with_patch, plain = jnp.mean(squares, axis=0).T
    return jnp.sqrt(with_patch / plain), jnp.mean(left, axis=0)


def ranks_left(model, patch, fitted, tested):
    """Fractions [block, rank] of the change of the first dense layer that the affine patch leaves at tested queries.

    Blocks are the first and the last; those before are patched.
    """
    patched = patch.applied(model)

    def rows_of(block, prompts, without_context):
        target, reads = (block_inputs(m, p)[block][0] for m, p in ((model, prompts), (patched, without_context)))
        return reads, (target - reads) @ model.blocks[block].mlp.layers[0].weight

    def of_block(block):
        reads, _ = rows_of(block, *fitted)
        return left_by_rank(patch.first[block], reads, *rows_of(block, *tested))

    return jnp.stack([of_block(block) for block in (0, len(model.blocks) - 1)])


def left_by_rank(change, fitted_reads, reads, targets):
    """Fractions of the targets left by the change cut to each rank, nearest in the metric of the fitted reads."""
    mean = jnp.mean(fitted_reads, axis=0)
    centred = fitted_reads - mean[None]
    covariance = centred.T @ centred / len(centred)

    def left(rank):
        weight = change.weight if rank is None else cut_in_metric(change.weight, covariance, rank)
        return WeightChange(weight, change.bias + mean @ (change.weight - weight)).residual(reads, targets)

    return jnp.stack([left(rank) for rank in RANKS.values()])
