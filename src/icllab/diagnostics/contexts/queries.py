r"""Queries after a context and without it.

A *context* is the part of a prompt before its last query: all :math:`\ell` examples, or the first n - 2 of n tokens. A
*query* is the last ``query_length`` positions of another prompt; the answer is that at the last position.

A query without context is given by the prompt's ``alone``. Positions of regression and tokens restart. An item-label
query keeps its position, and so does each half of a context: the later half stays, the earlier half moves up to the
query.
"""

import functools
from numbers import Integral
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import IclError, expected, require_integer
from icllab.core.prompt import ItemLabelPrompt, Prompt
from icllab.core.protocols import AbstractTask, Predictor, require_prompts, require_task
from icllab.diagnostics.behaviour.answers import require_unmasked, sample_prompts
from icllab.models.contexts.prefixes import after


@functools.singledispatch
def join_prompt(context: Any, query: Any) -> Any:
    """Join the examples of a context and a query; other kinds of prompts can register a function."""
    return after(context, query)


@join_prompt.register
def _(context: ItemLabelPrompt, query: ItemLabelPrompt) -> ItemLabelPrompt:
    return ItemLabelPrompt(
        items=jnp.concatenate([context.items[:-1], query.items]),
        label_vectors=jnp.concatenate([context.label_vectors, query.label_vectors]),
        labels=jnp.concatenate([context.labels[:-1], query.labels]),
        classes=jnp.concatenate([context.classes[:-1], query.classes]),
        shift=query.shift - 2 * context.length,
        position_dim=context.position_dim,
    )


def place_query(context: Prompt, query: Any) -> Any:
    """The query without context, at its position after the context."""
    if not isinstance(query, ItemLabelPrompt) or not isinstance(context, ItemLabelPrompt):
        return query
    begin = context.shift + 2 * context.length
    return eqx.tree_at(lambda prompt: prompt.shift, query, begin.astype(query.shift.dtype))


def halve_context(context: Prompt) -> tuple[Any, Any]:
    """Halves of a context; the earlier half is the shorter one if the length is odd."""
    first, last = context.length // 2, context.positions - 1
    return context.alone(first, size=first + 1), context.alone(last, size=last - first + 1)


class Queries(eqx.Module):
    """Stacked queries without context: for the fit of a map, and held out."""

    fitted: Any
    held_out: Any
    description: dict[str, Any] = eqx.field(static=True)


def queries_for(context: Prompt, task: AbstractTask, *, count: int | Any, size: int, key: PRNGKeyArray) -> Queries:
    """Queries for a context: ``count`` for the fit and as many held out, or the halves of given prompts.

    Raises:
        InputError: The context is empty or of another kind, queries have fewer positions than ``size``, or there are
            fewer than two for the fit.
    """
    require_task(task)
    if not isinstance(context, Prompt):
        raise expected("context", "one prompt", type(context).__name__, "task.sample(key=key) draws one")
    if context.length < 1:
        raise expected("context", "at least one example before its last query", f"{context.positions} position")
    require_integer("query_length", size)
    if isinstance(count, Integral):
        require_integer("queries", count, least=2)
        prompts, source = sample_prompts(task, key=key, prompts=2 * int(count)), type(task).__name__
    else:
        prompts, source = count, "given"
    require_unmasked("context", context)
    require_unmasked("queries", prompts)
    require_prompts(task, prompts)
    require_prompts(task, jax.tree.map(lambda leaf: leaf[None], context))
    total = len(jax.tree.leaves(prompts)[0])
    if total < 4:
        raise expected("queries", "at least four prompts on a leading axis", total)
    example = jax.tree.map(lambda leaf: leaf[0], prompts)
    if not isinstance(example, type(context)):
        raise expected("context", f"a {type(example).__name__}, as its queries are", type(context).__name__)
    if size > example.positions:
        raise expected("query_length", f"at most {example.positions}, the positions of a prompt", size)
    queries = _alone(prompts, context, size)
    _require_room(context, size)
    half = total // 2
    first, second = (
        jax.tree.map(lambda leaf, r=rows: leaf[r], queries) for rows in (slice(half), slice(half, 2 * half))
    )
    keeps_positions = isinstance(context, ItemLabelPrompt)
    description = {"query_length": size, "queries": half, "query_source": source, "context_length": context.length}
    return Queries(first, second, description | {"positions": "kept" if keeps_positions else "restart"})


@eqx.filter_jit
def _alone(prompts: Any, context: Any, size: int) -> Any:
    return jax.vmap(lambda prompt: place_query(context, prompt.alone(prompt.positions - 1, size=size)))(prompts)


def _require_room(context: Prompt, size: int) -> None:
    """Raise if an item-label prompt has too few positions for the context and a query."""
    if isinstance(context, ItemLabelPrompt):
        positions = int(context.shift) + 2 * (context.length + size) - 1
        if positions > context.position_dim:
            raise expected("context", f"at most {context.position_dim} places, query included", positions)


def last_answer(model: Predictor, prompt: Any) -> Float[Array, " output"]:
    """The answer at the last position, as a vector."""
    return model(prompt)[-1].reshape(-1)


@eqx.filter_jit
def answers_alone(model: Predictor, queries: Any) -> Float[Array, "query output"]:
    """Answers to queries without context."""
    return jax.vmap(lambda query: last_answer(model, query))(queries)


@eqx.filter_jit
def answers_after(model: Predictor, context: Any, queries: Any) -> Float[Array, "query output"]:
    """Answers to queries after a context."""
    return jax.vmap(lambda query: last_answer(model, join_prompt(context, query)))(queries)


def require_answer(model: Predictor, context: Any, queries: Queries) -> jax.ShapeDtypeStruct:
    """Shape and type of an answer after the context; raise if the model cannot take the context."""
    query = jax.tree.map(lambda leaf: leaf[0], queries.fitted)
    try:
        return eqx.filter_eval_shape(lambda: last_answer(model, join_prompt(context, query)))
    except IclError:
        raise
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise expected(
            "model", "one that answers the context and a query", f"{type(error).__name__}: {first}"
        ) from error


def queries_near(context: ItemLabelPrompt, *, noise: float, count: int, key: PRNGKeyArray) -> ItemLabelPrompt:
    r"""Sample other items of a context's classes, with their labels, as stacked prompts of one position.

    .. math:: x_q = \rho\,x_i + \sqrt{1 - \rho^2}\; g, \qquad g \sim N(0, I/D), \qquad \rho = 1/(1 + \epsilon^2)

    for a uniformly random item i, as for two items of one class in
    :class:`~icllab.tasks.item_label.ItemLabel` with ``within_class_noise`` :math:`\epsilon`.
    """
    require_integer("count", count)
    of_items, of_noise = jax.random.split(key)
    numbers = jax.random.randint(of_items, (count,), 0, context.pairs)
    rho = 1 / (1 + noise**2)

    def query_near(number: Array, key: PRNGKeyArray) -> ItemLabelPrompt:
        item = context.items[number]
        noise_vector = jax.random.normal(key, item.shape, item.dtype) / item.size**0.5
        return ItemLabelPrompt(
            items=(rho * item + (1 - rho**2) ** 0.5 * noise_vector)[None],
            label_vectors=context.label_vectors[:0],
            labels=context.labels[number][None],
            classes=context.classes[number][None],
            shift=context.shift,
            position_dim=context.position_dim,
        )

    return jax.vmap(query_near)(numbers, jax.random.split(of_noise, count))
