"""Heads of transformers after frozen contexts, and what attention to the query's own tokens misses."""

from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.context_map import _regression_transformers as shared
from icllab.core.grid import tabulated
from icllab.models import FrozenEntities
from icllab.models.contexts.weight_changes import best_change

VERSION = 2

DISCRETE = "discrete"
HALF = 0.5  # of the error of leaving the context out
QUANTITIES = ("reduction_error", "reduction_bound", "bound_excess", "recovered", "context_effect", "frozen_attention")
REDUCTIONS = (FrozenEntities.without, FrozenEntities.shared, FrozenEntities.winners)


def measure(point, *, key, repeated=False, distinct=False):
    """Errors of all reductions in every layer, and the largest excess of an error over its bound.

    ``repeated``: the context repeats the query's own first example. ``distinct``: discrete inputs are drawn anew for
    every token, so that none recurs; the networks are the same.
    """
    of_networks, of_prompts = jax.random.split(key)
    discrete, length = point.inputs == DISCRETE, point.frozen + point.own
    training = SimpleNamespace(**{**vars(point), "length": length})
    sample = shared.sample_discrete_prompts if discrete and not distinct else shared.sample_prompts

    def of_seed(seed):
        stages = shared.networks(seed, point.step, training, key=of_networks, discrete=discrete)
        rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(of_prompts))])
        with jax.enable_x64(True):
            sizes = {"dim": point.dim, "length": point.frozen, "examples": point.own}
            prompts = sample(rng, point.contexts, 2 * point.queries, **sizes)
            if repeated:
                at = np.maximum(np.arange(length + 1), point.frozen)
                prompts = jax.tree.map(lambda leaf: leaf[:, :, at], prompts)
            rows = [_errors(shared.double(network), prompts, point.frozen) for network in stages]
            columns = [np.stack([np.asarray(row[i]) for row in rows]) for i in range(len(QUANTITIES))]
        axes = ("step", "layer", "reduction")
        return {name: (axes[: values.ndim], values) for name, values in zip(QUANTITIES, columns, strict=True)}

    return tabulated(of_seed, seed=point.seed)


@eqx.filter_jit
def _errors(model, prompts, frozen):
    """In every layer: root mean squares of errors and bounds over that of leaving the context out; its effect.

    The excess is the largest, over heads, contexts and prompts, of an error over its own bound; recovered is the
    fraction of them at which an error is at most half of that of leaving the context out.
    """
    rows = []
    for layer in range(len(model.blocks)):
        of_prompt = jax.vmap(
            jax.vmap(lambda prompt, i=layer: FrozenEntities.heads(model, prompt, frozen=frozen, layer=i))
        )
        heads = jax.tree.map(lambda *parts: jnp.stack(parts), *of_prompt(prompts))
        squares, excess, recovered, mass = jax.lax.map(jax.vmap(_of_head), heads)
        squares = jnp.sum(squares, axis=(0, 1))  # of heads and contexts
        error, bound = jnp.sqrt(squares[:-1] / squares[0, 0]).T
        excess = jnp.append(jnp.max(excess, axis=(0, 1)) / jnp.sqrt(squares[0, 0]), jnp.nan)
        effect = jnp.sqrt(squares[0, 0] / squares[-1, 0])
        rows.append((error, bound, excess, jnp.mean(recovered, axis=(0, 1)), effect, jnp.mean(mass)))
    return [jnp.stack(parts) for parts in zip(*rows, strict=True)]


def _of_head(heads):
    """Of one head and context at the last query: mean squares of errors and bounds, last of the updates; the largest
    excesses; fractions recovered; and the attention on the context.

    The key matrix is fitted to the first half of the prompts; all errors are on the rest.
    """
    half = len(heads.keys) // 2
    heads = eqx.tree_at(lambda h: (h.queries, h.visible), heads, (heads.queries[:, -1:], heads.visible[:, -1:]))
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
    excess = jnp.stack([jnp.max(jnp.sqrt(error) - jnp.sqrt(bound)) for error, bound in pairs[:3]])
    recovered = jnp.stack([jnp.mean(error <= HALF**2 * errors[0]) for error in errors])
    return squares, excess, recovered, jnp.mean(jax.vmap(lambda head: head.mass)(heads))
