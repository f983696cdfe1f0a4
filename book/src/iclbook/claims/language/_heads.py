"""Sets of heads of a language model: the best by a score, others of the same blocks, and losses without them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.models import ablated, head_outputs, path_patched


def table(model, scores):
    """Scores of all heads, as [block, head]."""
    return np.asarray(scores).reshape(len(model.blocks), -1)


def best(scores, count, excluded=()):
    """The pairs (block, head) of the largest scores [block, head], from the largest, without those excluded."""
    pairs = [tuple(map(int, divmod(i, scores.shape[1]))) for i in np.argsort(-scores, axis=None)]
    return [pair for pair in pairs if pair not in set(excluded)][:count]


def others(model, rng, heads, excluded):
    """For each head another of its block, or of the nearest that has one left, drawn without replacement."""
    drawn = []
    for block, _ in heads:
        for near in sorted(range(len(model.blocks)), key=lambda i: abs(i - block)):
            count = model.blocks[near].attention.query.shape[1]
            left = [(near, i) for i in range(count) if (near, i) not in {*excluded, *drawn}]
            if left:
                drawn.append(left[rng.integers(len(left))])
                break
    return drawn


def with_permuted_queries(model, rng):
    """The model with the entries of each W_Q in another order."""
    queries = [block.attention.query for block in model.blocks]
    permuted = [jnp.asarray(rng.permuted(np.asarray(q), axis=None).reshape(q.shape)) for q in queries]
    return eqx.tree_at(lambda m: [block.attention.query for block in m.blocks], model, permuted)


@eqx.filter_jit
def mean_outputs(model, prompts, tokens=None):
    """Mean outputs [block, head, dim] over the prompts, and over their tokens or those of a mask of each prompt."""

    def totals(prompt):
        masks = jnp.ones(prompt.positions, bool) if prompt.mask is None else prompt.mask[:-1]
        weights = (masks if tokens is None else tokens(prompt)).astype(float)
        return jnp.stack([jnp.einsum("t,thd->hd", weights, part) for part in head_outputs(model, prompt)]), weights

    sums, weights = jax.vmap(totals)(prompts)
    return jnp.sum(sums, axis=0) / jnp.sum(weights)


@eqx.filter_jit
def losses(model, heads, outputs, task, prompts, tokens=None):
    """The losses [prompt, position] with the outputs of the heads, of weights [block, head], replaced."""
    without = ablated(model, heads=heads, outputs=outputs, tokens=tokens)
    return jax.vmap(lambda prompt: task.loss(without(prompt), prompt))(prompts)


@eqx.filter_jit
def path_losses(model, senders, receivers, through, outputs, task, prompts):
    """The losses [prompt, position] where the receivers read the replaced outputs of the senders."""
    patched = path_patched(model, senders, receivers, through=(through,), outputs=outputs)
    return jax.vmap(lambda prompt: task.loss(patched(prompt), prompt))(prompts)
