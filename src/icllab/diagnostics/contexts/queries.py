r"""What is asked with a context before it, and alone.

A *context* is what a prompt has before its last query: of a prompt of :math:`\ell` examples all of them, of n tokens
the first n - 2. Its own query and target do not count. A *query* is the last ``query_length`` positions of another
prompt; the answer is that at the last of them.

With the context the query follows it. Alone it is the prompt's own ``alone``: positions begin anew for regression and
tokens; an item-label query keeps its place, and so does every part of a context that is cut: the later part stays where
it is, the earlier one is moved up to the query.
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
from icllab.core.protocols import AbstractTask, Predictor
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.models.contexts.prefixes import after


@functools.singledispatch
def joined(context: Any, query: Any) -> Any:
    """One prompt: the examples of a context, then a query; a kind of prompt of one's own registers its way."""
    return after(context, query)


@joined.register
def _(context: ItemLabelPrompt, query: ItemLabelPrompt) -> ItemLabelPrompt:
    return ItemLabelPrompt(
        items=jnp.concatenate([context.items[:-1], query.items]),
        label_vectors=jnp.concatenate([context.label_vectors, query.label_vectors]),
        labels=jnp.concatenate([context.labels[:-1], query.labels]),
        classes=jnp.concatenate([context.classes[:-1], query.classes]),
        shift=query.shift - 2 * context.length,
        position_dim=context.position_dim,
    )


def placed(context: Prompt, query: Any) -> Any:
    """The query as it stands after the context, alone."""
    if not isinstance(query, ItemLabelPrompt) or not isinstance(context, ItemLabelPrompt):
        return query
    begin = context.shift + 2 * context.length
    return eqx.tree_at(lambda prompt: prompt.shift, query, begin.astype(query.shift.dtype))


def halves(context: Prompt) -> tuple[Any, Any]:
    """The context cut in two, the earlier part the shorter one where it is odd."""
    first, last = context.length // 2, context.positions - 1
    return context.alone(first, size=first + 1), context.alone(last, size=last - first + 1)


class Queries(eqx.Module):
    """Queries alone, stacked: those that a map is fitted on, and others that it is judged on."""

    fitted: Any
    held_out: Any
    description: dict[str, Any] = eqx.field(static=True)


def queries_for(context: Prompt, task: AbstractTask, *, count: int | Any, size: int, key: PRNGKeyArray) -> Queries:
    """Queries to put after a context: ``count`` of them of each kind from the task, or half of those given.

    Raises:
        InputError: The context is empty or of another kind, queries have fewer positions than asked for, or there are
            fewer than two of each kind.
    """
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
    total = len(jax.tree.leaves(prompts)[0])
    if total < 4:
        raise expected("queries", "at least four prompts on a leading axis", total)
    one = jax.tree.map(lambda leaf: leaf[0], prompts)
    if not isinstance(one, type(context)):
        raise expected("context", f"a {type(one).__name__}, as its queries are", type(context).__name__)
    if size > one.positions:
        raise expected("query_length", f"at most {one.positions}, the positions of a prompt", size)
    alone = _alone(prompts, context, size)
    _require_room(context, size)
    half = total // 2
    first, second = (jax.tree.map(lambda leaf, r=rows: leaf[r], alone) for rows in (slice(half), slice(half, 2 * half)))
    kept = isinstance(context, ItemLabelPrompt)
    described = {"query_length": size, "queries": half, "query_source": source, "context_length": context.length}
    return Queries(first, second, described | {"positions": "kept" if kept else "restart"})


@eqx.filter_jit
def _alone(prompts: Any, context: Any, size: int) -> Any:
    return jax.vmap(lambda prompt: placed(context, prompt.alone(prompt.positions - 1, size=size)))(prompts)


def _require_room(context: Prompt, size: int) -> None:
    """Places for all tokens, where a prompt has a number of them."""
    if isinstance(context, ItemLabelPrompt):
        needed = int(context.shift) + 2 * (context.length + size) - 1
        if needed > context.position_dim:
            raise expected("context", f"at most {context.position_dim} places, query included", needed)


def last_answer(model: Predictor, prompt: Any) -> Float[Array, " output"]:
    """What is answered at the last position, as a vector."""
    return model(prompt)[-1].reshape(-1)


@eqx.filter_jit
def answers_alone(model: Predictor, queries: Any) -> Float[Array, "query output"]:
    """The answers to queries alone."""
    return jax.vmap(lambda query: last_answer(model, query))(queries)


@eqx.filter_jit
def answers_after(model: Predictor, context: Any, queries: Any) -> Float[Array, "query output"]:
    """The answers to queries after a context."""
    return jax.vmap(lambda query: last_answer(model, joined(context, query)))(queries)


def require_answer(model: Predictor, context: Any, queries: Queries) -> jax.ShapeDtypeStruct:
    """What an answer after the context looks like; a context that the model cannot take is refused in one line."""
    one = jax.tree.map(lambda leaf: leaf[0], queries.fitted)
    try:
        return eqx.filter_eval_shape(lambda: last_answer(model, joined(context, one)))
    except IclError:
        raise
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise expected(
            "model", "one that answers the context and a query", f"{type(error).__name__}: {first}"
        ) from error


def queries_near(context: ItemLabelPrompt, *, noise: float, count: int, key: PRNGKeyArray) -> ItemLabelPrompt:
    r"""Other items of the classes of a context, each with its label, as prompts of one position, stacked.

    .. math:: x_q = \rho\,x_i + \sqrt{1 - \rho^2}\; g, \qquad g \sim N(0, I/D), \qquad \rho = 1/(1 + \epsilon^2)

    for an item i drawn evenly, as two items of one class are related in
    :class:`~icllab.tasks.item_label.ItemLabel` with ``within_class_noise`` :math:`\epsilon`.
    """
    require_integer("count", count)
    of_items, of_noise = jax.random.split(key)
    numbers = jax.random.randint(of_items, (count,), 0, context.pairs)
    rho = 1 / (1 + noise**2)

    def one(number: Array, key: PRNGKeyArray) -> ItemLabelPrompt:
        item = context.items[number]
        other = jax.random.normal(key, item.shape, item.dtype) / item.size**0.5
        return ItemLabelPrompt(
            items=(rho * item + (1 - rho**2) ** 0.5 * other)[None],
            label_vectors=context.label_vectors[:0],
            labels=context.labels[number][None],
            classes=context.classes[number][None],
            shift=context.shift,
            position_dim=context.position_dim,
        )

    return jax.vmap(one)(numbers, jax.random.split(of_noise, count))
