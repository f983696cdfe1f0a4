r"""Queries after a context and without it.

A *context* is the part of a prompt before its last query: all :math:`\ell` examples, or the first n - 2 of n tokens. A
*query* is the last positions of another prompt, one unless a :class:`QuerySource` says how many; the answer is that at
the last position.

A query without context is given by the prompt's ``alone``. Positions of regression and tokens restart. An item-label
query keeps its position, and so does each half of a context: the later half stays, the earlier half moves up to the
query.

What is padded is cut: what follows a context stands where its padding would begin, and a query ends at the last answer
that has a target, in a few-shot prompt at the first token of the answer.
"""

import functools
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import IclError, expected, require_integer
from icllab.core.prompt import ItemLabelPrompt, Prompt, RegressionPrompt, TokenPrompt, scored_positions
from icllab.core.protocols import AbstractTask, Predictor, require_prompts, require_task
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.models.contexts.prefixes import Prefixed, after
from icllab.models.networks.transformer import Transformer
from icllab.tasks.few_shot import FewShotPrompt

QUERY_LENGTH = "queries=QuerySource(prompts, length)"  # as an argument that moved
LARGE = 1000  # token ids of a vocabulary from which a transformer's answers take shortcuts


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


@dataclass(frozen=True)
class QuerySource:
    """Source of queries of several positions.

    Attributes:
        prompts: Number of queries, or prompts stacked on a leading axis, as a diagnostic takes them for ``queries``.
        length: Number of positions of a query, the last ones of its prompt.
    """

    prompts: Any
    length: int = 1

    @classmethod
    def of(cls, queries: Any) -> "QuerySource":
        """Return a source unchanged; turn a number or prompts into a source of queries of one position."""
        return queries if isinstance(queries, cls) else cls(queries)


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
    context = unpadded(context)
    if context.length < 1:
        raise expected("context", "at least one example before its last query", f"{context.positions} position")
    require_integer("queries.length", size)
    if isinstance(count, Integral):
        require_integer("queries", count, least=2)
        prompts, source = sample_prompts(task, key=key, prompts=2 * int(count)), type(task).__name__
    else:
        prompts, source = count, "given"
    require_prompts(task, prompts)
    require_prompts(task, jax.tree.map(lambda leaf: leaf[None], context))
    total = len(jax.tree.leaves(prompts)[0])
    if total < 4:
        raise expected("queries", "at least four prompts on a leading axis", total)
    example = jax.tree.map(lambda leaf: leaf[0], prompts)
    if size > example.positions:
        raise expected("queries.length", f"at most {example.positions}, the positions of a prompt", size)
    ragged = scored_positions(prompts) is not None
    queries = _endings(prompts, size) if ragged else _alone(prompts, context, size)
    if not isinstance(queries, type(context)):
        raise expected("context", f"a {type(queries).__name__}, as its queries are", type(context).__name__)
    _require_room(context, size)
    half = total // 2
    first, second = (
        jax.tree.map(lambda leaf, r=rows: leaf[r], queries) for rows in (slice(half), slice(half, 2 * half))
    )
    keeps_positions = isinstance(context, ItemLabelPrompt)
    description = {"query_length": size, "queries": half, "query_source": source, "context_length": context.length}
    return Queries(first, second, description | {"positions": "kept" if keeps_positions else "restart"})


def unpadded(context: Any) -> Any:
    """Remove the padding of a context; raise unless it is a prompt with a known start of its query."""
    if not isinstance(context, Prompt):
        raise expected("context", "one prompt", type(context).__name__, "task.sample(key=key) draws one")
    if isinstance(context, FewShotPrompt):
        hint = "FewShot.examples(key=key) has the examples of that prompt"
        raise expected("context", "a prompt of examples", "a few-shot prompt with its query", hint)
    mask = getattr(context, "mask", None)
    if mask is None:
        return context
    real = int(np.sum(mask))
    return type(context)(*(leaf[:real] for leaf in jax.tree.leaves(eqx.tree_at(lambda p: p.mask, context, None))))


def _endings(prompts: Any, size: int) -> Any:
    """Cut stacked prompts with a mask to at most ``size`` positions that end at the last target."""
    scored = np.asarray(scored_positions(prompts))
    answered = isinstance(prompts, FewShotPrompt) and prompts.answer is not None
    ends = scored.argmax(1) + 1 if answered else scored.sum(1)
    slices = [slice(max(0, int(end) - size), int(end)) for end in ends]
    if isinstance(prompts, RegressionPrompt):
        pairs = zip(np.asarray(prompts.x), np.asarray(prompts.y), slices, strict=True)
        cut = RegressionPrompt.from_ragged([(x[rows], y[rows]) for x, y, rows in pairs])
    else:
        rows = zip(np.asarray(prompts.tokens), slices, strict=True)
        cut = TokenPrompt.from_ragged([tokens[row.start : row.stop + 1] for tokens, row in rows])
    return eqx.tree_at(lambda p: p.mask, cut, None) if np.asarray(cut.mask).all() else cut


@eqx.filter_jit
def _alone(prompts: Any, context: Any, size: int) -> Any:
    return jax.vmap(lambda prompt: place_query(context, prompt.alone(prompt.positions - 1, size=size)))(prompts)


def _require_room(context: Prompt, size: int) -> None:
    """Raise if an item-label prompt has too few positions for the context and a query."""
    if isinstance(context, ItemLabelPrompt):
        positions = int(context.shift) + 2 * (context.length + size) - 1
        if positions > context.position_dim:
            raise expected("context", f"at most {context.position_dim} places, query included", positions)


def _of_large_vocabulary(model: Any, prompt: Any) -> TypeGuard[Transformer | Prefixed]:
    """True for a transformer of at least ``LARGE`` token ids; smaller ones need no shortcut."""
    transformer = model.model if isinstance(model, Prefixed) else model
    if not (isinstance(transformer, Transformer) and isinstance(prompt, TokenPrompt)):
        return False
    return (transformer.embedding.arrangement.outputs or 0) >= LARGE


def last_answer(model: Predictor, prompt: Any) -> Float[Array, " output"]:
    """The answer at the last position, of a prompt with a mask the last that has a target, as a vector."""
    scored = scored_positions(prompt)
    row = -1 if scored is None else jnp.sum(scored) - 1
    if _of_large_vocabulary(model, prompt):  # one row of logits: all rows would be most of the arithmetic
        stream = model.trace(prompt).activations["readout"]
        return (model.model if isinstance(model, Prefixed) else model).answers(stream[row][None])[0]
    return model(prompt)[row].reshape(-1)


@eqx.filter_jit
def answers_alone(model: Predictor, queries: Any) -> Float[Array, "query output"]:
    """Answers to queries without context."""
    return jax.vmap(lambda query: last_answer(model, query))(queries)


@eqx.filter_jit
def answers_after(model: Predictor, context: Any, queries: Any) -> Float[Array, "query output"]:
    """Answers to queries after a context; of a large vocabulary a transformer reads the context once."""
    if _of_large_vocabulary(model, context) and not isinstance(model, Prefixed) and context.mask is None:
        prefixed = Prefixed.from_context(model, context)
        return jax.vmap(lambda query: last_answer(prefixed, query))(queries)
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
            "model", "a model that answers the context and a query", f"{type(error).__name__}: {first}"
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
