"""Heads of transformers after frozen contexts, and what attention to the query's own tokens misses."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.claims.context_map._regression_transformers import double, networks, sample_prompts
from icllab.core.grid import tabulated
from icllab.models import FrozenEntities
from icllab.models.contexts.weight_changes import best_change

VERSION = 1

REDUCTIONS = (FrozenEntities.without, FrozenEntities.shared, FrozenEntities.winners)
OWN = 2  # examples of the query's own: with the query, three tokens


def measure(point, *, key, repeated=False):
    """Errors of all reductions in every layer. ``repeated``: the context repeats the query's own first example."""
    of_networks, of_prompts = jax.random.split(key)

    def of_seed(seed):
        stages = networks(seed, point.step, point, key=of_networks)
        rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(of_prompts))])
        with jax.enable_x64(True):
            prompts = sample_prompts(
                rng, point.contexts, 2 * point.queries, dim=point.dim, length=point.length - OWN, examples=OWN
            )
            if repeated:
                at = np.maximum(np.arange(point.length + 1), point.length - OWN)
                prompts = jax.tree.map(lambda leaf: leaf[:, :, at], prompts)
            rows = [_errors(double(network), prompts, point.length - OWN) for network in stages]
            error, bound, effect, mass = (np.stack([np.asarray(row[i]) for row in rows]) for i in range(4))
        by_layer, by_reduction = ("step", "layer"), ("step", "layer", "reduction")
        return {
            "reduction_error": (by_reduction, error),
            "reduction_bound": (by_reduction, bound),
            "context_effect": (by_layer, effect),
            "frozen_attention": (by_layer, mass),
        }

    return tabulated(of_seed, seed=point.seed)


@eqx.filter_jit
def _errors(model, prompts, frozen):
    """In every layer: root mean squares of errors and bounds over that of leaving the context out; its effect."""
    rows = []
    for layer in range(len(model.blocks)):
        of_prompt = jax.vmap(
            jax.vmap(lambda prompt, i=layer: FrozenEntities.heads(model, prompt, frozen=frozen, layer=i))
        )
        heads = jax.tree.map(lambda *parts: jnp.stack(parts), *of_prompt(prompts))
        squares, mass = jax.lax.map(jax.vmap(_of_head), heads)
        squares = jnp.sum(squares, axis=(0, 1))  # of heads and contexts
        error, bound = jnp.sqrt(squares[:-1] / squares[0, 0]).T
        rows.append((error, bound, jnp.sqrt(squares[0, 0] / squares[-1, 0]), jnp.mean(mass)))
    return [jnp.stack(parts) for parts in zip(*rows, strict=True)]


def _of_head(heads):
    """Mean squares of errors and of bounds, last of the updates, in one head and context; and the attention on it.

    The key matrix is fitted to the first half of the prompts; all errors are on the rest.
    """
    half = len(heads.keys) // 2
    without, same_value, winners = (jax.vmap(reduction)(heads) for reduction in REDUCTIONS)
    visible = jnp.isfinite(winners.scores)[..., None]
    unfrozen = heads.keys[:, heads.frozen :]
    winning_keys = jax.vmap(lambda keys, indices: keys[indices])(heads.keys, winners.winners)  # pyright: ignore[reportAttributeAccessIssue]
    inputs = jnp.where(visible, heads.entities[:, None], 0)
    targets = jnp.where(visible, winning_keys - unfrozen[:, None], 0)
    rows = [part[:half].reshape(-1, part.shape[-1]) for part in (inputs, targets)]
    change = best_change(*rows, affine=False)

    def with_matrix(head):
        keys = head.keys.at[head.frozen :].add(change(head.entities))
        return eqx.tree_at(lambda update: update.keys, head, keys).without()

    matrix = jax.vmap(with_matrix)(heads)
    whole = jax.vmap(lambda head: head.updates)(heads)
    errors = [
        jnp.sum((whole - update.updates)[half:] ** 2, axis=2) for update in (without, same_value, winners, matrix)
    ]
    bounds = [update.bound[half:] ** 2 for update in (without, same_value, winners)]
    unknown = jnp.full_like(bounds[0], jnp.nan)
    pairs = [*zip(errors, [*bounds, unknown], strict=True), (jnp.sum(whole[half:] ** 2, axis=2), unknown)]
    squares = jnp.stack([jnp.stack([jnp.mean(error), jnp.mean(bound)]) for error, bound in pairs])
    return squares, jnp.mean(jax.vmap(lambda head: head.mass)(heads))
