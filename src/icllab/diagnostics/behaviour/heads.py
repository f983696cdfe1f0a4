r"""Measures of attention heads, computed from their patterns.

A pattern is :math:`a_{ij}`, the attention of token i to token j; every token attends to itself and to earlier tokens.
In a sequence of tokens an induction head attends from a token to the token after an earlier occurrence. The measures
are functions of patterns, so that they apply to any network. Those of prompts of items and labels are in
:mod:`~icllab.diagnostics.behaviour.item_label_heads`.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from icllab.core.errors import expected, kind_of, require_key
from icllab.core.prompt import RegressionPrompt, TokenPrompt
from icllab.core.protocols import AbstractTask, Trace, require_task
from icllab.core.result_warnings import warns
from icllab.diagnostics.behaviour.answers import Question, answers, means_and_errors, require_unmasked
from icllab.diagnostics.predictor_axes import PredictorAxes
from icllab.models.interventions.edits import unedited
from icllab.models.networks.embedding import AbstractArrangement, Interleaved, Joined
from icllab.training.ensembles import Ensemble

PATTERN_NUMBERS = 2**20  # of one block, for all prompts that are in memory at once
SCORES = (
    "previous_token_score",
    "prefix_matching_score",
    "induction_score",
    "diagonal_induction_score",
    "duplicate_token_score",
)


def previous_token_score(pattern: Float[Array, "*heads token token"]) -> Float[Array, "*heads"]:
    r"""Attention to the previous token, averaged over all tokens but the first.

    .. math:: \frac1{T-1}\sum_{i=2}^Ta_{i,i-1}

    Source: [Olsson22].
    """
    return jnp.mean(jnp.diagonal(pattern, offset=-1, axis1=-2, axis2=-1), axis=-1)


def prefix_matching_score(
    pattern: Float[Array, "*heads token token"], tokens: Int[Array, " token"]
) -> Float[Array, "*heads"]:
    r"""Attention to the tokens after earlier occurrences of a token, averaged over the tokens that occurred before.

    .. math:: \frac1{|R|}\sum_{i\in R}\;\sum_{j\le i:\ t_{j-1}=t_i}a_{ij}

    NaN if no token occurs twice.

    Source: [Olsson22].
    """
    follows = _follows(tokens)
    return _mean_on_keys(pattern, follows, jnp.any(follows, axis=1))


def induction_score(
    pattern: Float[Array, "*heads token token"], tokens: Int[Array, " token"]
) -> Float[Array, "*heads"]:
    r"""Prefix matching above that of uniform attention: 0 for uniform attention, 1 for a perfect head.

    .. math:: \frac1{|R|}\sum_{i\in R}\Bigl(A_i - \frac{m_i}{n_i-m_i}(1-A_i)\Bigr)

    where :math:`A_i` is the attention to the :math:`m_i` of the :math:`n_i` visible tokens that follow an occurrence.
    For two candidates the score is 2A - 1.

    Source: [Olsson22].
    Derived: docs/abrupt-learning.md, Measures of heads.
    """
    follows = _follows(tokens)
    causal = jnp.tril(jnp.ones_like(follows))
    return _mean_where(above_even(pattern, follows, causal & ~follows), jnp.any(follows, axis=1))


def diagonal_induction_score(
    pattern: Float[Array, "*heads token token"], tokens: Int[Array, " token"]
) -> Float[Array, "*heads"]:
    r"""Attention along one diagonal of repeated tokens, to the token after the occurrence one period before.

    .. math:: \frac1{T-P+1}\sum_{i=P}^T a_{i,i-P+1}

    with the period P of the tokens, the smallest with which all but the first repeat; NaN if there is none of at most
    half their number, rounded up. Earlier occurrences than the last do not count, unlike in
    :func:`prefix_matching_score`, and token P does, which has not occurred before. This is the induction score of
    ARENA's exercises.
    """
    return _mean_on_keys(pattern, *_on_diagonal(tokens, jnp.ones(tokens.shape, bool)))


def duplicate_token_score(
    pattern: Float[Array, "*heads token token"], tokens: Int[Array, " token"]
) -> Float[Array, "*heads"]:
    r"""Attention to earlier occurrences of the same token, averaged over the tokens that occurred before.

    .. math:: \frac1{|R|}\sum_{i\in R}\;\sum_{j<i:\ t_j=t_i}a_{ij}

    NaN if no token occurs twice.

    Source: [WangIOI23].
    """
    same = _duplicates(tokens)
    return _mean_on_keys(pattern, same, jnp.any(same, axis=1))


class _Scores(Question):
    """Scores of all heads on one sequence, head by head."""

    traces = True

    def __call__(self, predictor: Any, task: AbstractTask, prompt: Any) -> Float[Array, " answer"]:
        scores = [_scores(pattern, prompt) for pattern in _patterns(predictor, prompt).values()]
        return jnp.concatenate(scores).reshape(-1)


def _scores(pattern: "_Pattern", prompt: Any) -> Float[Array, "head score"]:
    """The scores of a block's heads, over the real tokens among its rows."""
    real = _real_rows(pattern, prompt)
    attends = pattern.previous >= 0
    on_previous = pattern.values[:, np.arange(len(attends)), np.maximum(pattern.previous, 0)]
    scores = [_mean_where(on_previous, jnp.asarray(attends) & real)]
    if isinstance(prompt, TokenPrompt):
        tokens = prompt.tokens[:-1]
        within = jnp.ones(tokens.shape, bool) if prompt.mask is None else prompt.mask[:-1]
        follows = _follows(tokens)[pattern.rows] & real[:, None]
        causal = jnp.tril(jnp.ones((pattern.values.shape[2],) * 2, bool))[pattern.rows]
        recurring = jnp.any(follows, axis=1)
        above = above_even(pattern.values, follows, causal & ~follows)
        scores += [_mean_on_keys(pattern.values, follows, recurring), _mean_where(above, recurring)]
        keys, counted = (part[pattern.rows] for part in _on_diagonal(tokens, within))
        scores.append(_mean_on_keys(pattern.values, keys, counted & real))
        same = _duplicates(tokens)[pattern.rows]
        scores.append(_mean_on_keys(pattern.values, same, jnp.any(same, axis=1) & real))
    return jnp.stack(scores, axis=1)


@warns("head scores")
def head_scores(model: Any, task: AbstractTask, *, key: PRNGKeyArray, prompts: int = 256) -> xr.Dataset:
    r"""Previous-token, prefix-matching, induction and duplicate-token scores of every head of a model.

    Use repeated random tokens, where only the repetition predicts the next token. One program reduces the patterns of a
    block to scores before those of the next are there, for as many prompts at once as have a million numbers in a
    block's patterns.

    Args:
        model: Model whose trace has patterns (activations that end in ``pattern`` [head, token, key], or that are named
            ``attention`` with a number, [token, key] or the last token's [key]), or
            :mod:`several <icllab.diagnostics.predictor_axes>` with the same heads. A block in which only the answering
            tokens attend, as the last one of interleaved examples, is scored on these tokens.
        task: Task of sequences of tokens. Prompts of another kind have the previous-token score only: attention of a
            token to the one before it, of a query to the example before it.
        key: Key of the prompts.
        prompts: Number of prompts, at least 2.

    Returns:
        Over the axes of the models and ``attention_head``, named by block and number: ``previous_token_score`` and, on
        sequences, ``prefix_matching_score``, ``induction_score``, ``diagonal_induction_score`` and
        ``duplicate_token_score``, each with an ``_error``. The attribute ``warnings`` names the blocks that are scored
        on some of their tokens. Padding counts nowhere.

    Raises:
        InputError: A trace has no such pattern, or two models have different heads.

    Source: [Olsson22].
    """
    require_task(task)
    require_key(key)
    axes = PredictorAxes.from_predictors(model, "model")
    names: list[str] = []
    notes: list[str] = []

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        sizes = _sizes(members, task, key)
        member_names = [f"{name}.{i}" for name, (heads, _, _) in sizes.items() for i in range(heads)]
        if names and member_names != names:
            raise expected(
                "model", f"the heads {names} everywhere", member_names, "measure models of other heads one by one"
            )
        names[:], notes[:] = member_names, _notes(sizes)
        block = max(1, min(256, PATTERN_NUMBERS // max(map(math.prod, sizes.values()))))
        values = answers(_Scores(), members, task, key=key, prompts=prompts, block=block)
        scores = values.reshape(*values.shape[:2], len(member_names), -1).swapaxes(0, 1)
        # Prompts that are not sequences have the previous-token score only.
        return means_and_errors({SCORES[i]: scores[..., i] for i in range(scores.shape[-1])})

    return axes.to_dataset(axes.measure(measure), {"attention_head": names}, prompts=prompts, warnings=notes)


def _follows(tokens: Int[Array, " token"]) -> Bool[Array, "token token"]:
    """Mask [i, j]: token j <= i follows an earlier occurrence of token i."""
    before = jnp.concatenate([jnp.full((1,), -1, tokens.dtype), tokens[:-1]])
    matches = tokens[:, None] == before[None, :]
    first = jnp.arange(tokens.shape[0])[None, :] == 0
    return jnp.tril(matches & ~first)


def _duplicates(tokens: Int[Array, " token"]) -> Bool[Array, "token token"]:
    """Mask [i, j]: token j < i equals token i."""
    return jnp.tril(tokens[:, None] == tokens[None, :], -1)


def _on_diagonal(
    tokens: Int[Array, " token"], real: Bool[Array, " token"]
) -> tuple[Bool[Array, "token token"], Bool[Array, " token"]]:
    """The key of each token one period less one before it, and the tokens that have one; none without a period."""
    place = jnp.arange(len(tokens))
    before = place[:, None] - place[None, :]  # how far key j lies before token i
    same = (tokens[:, None] == tokens[None, :]) | ~real[:, None]  # padding follows the real tokens
    shifts = jnp.arange(1, (len(tokens) + 1) // 2 + 1)
    agree = jnp.stack([jnp.all(jnp.diagonal(same, -shift)[1:]) for shift in range(1, len(shifts) + 1)])
    agree &= shifts <= (jnp.sum(real) + 1) // 2
    period = jnp.where(jnp.any(agree), jnp.argmax(agree) + 1, len(tokens) + 1)
    keys = before == period - 1
    return keys, jnp.any(keys, axis=1)


def like(mask: Array, values: Array) -> Array:
    """A mask in the shape and type of values."""
    return jnp.broadcast_to(mask.astype(values.dtype), values.shape)


def above_even(values: Array, right: Array, wrong: Array) -> Array:
    """Attention to the right keys minus that to as many wrong keys."""
    odds = (jnp.sum(right, axis=-1) / jnp.sum(wrong, axis=-1)).astype(values.dtype)
    on_right, on_wrong = (jnp.sum(values * like(keys, values), axis=-1) for keys in (right, wrong))
    return on_right - like(odds, on_wrong) * on_wrong


def _mean_on_keys(pattern: Array, keys: Array, rows: Array) -> Array:
    """Attention to the keys, averaged over the rows that count."""
    return _mean_where(jnp.sum(pattern * like(keys, pattern), axis=-1), rows)


def _mean_where(values: Array, where: Array) -> Array:
    inside = jnp.where(jnp.broadcast_to(where, values.shape), values, 0)
    return jnp.sum(inside, axis=-1) / jnp.sum(where).astype(values.dtype)


class _Pattern(NamedTuple):
    """Attention of some tokens, and which they are."""

    values: Float[Array, "head row key"]
    rows: np.ndarray  # the token of each row
    previous: np.ndarray  # the key before it; -1: there is none
    examples: np.ndarray  # the example, or token of a sequence, that each row belongs to
    tokens: int  # how many there are
    known: bool  # whether the model tells its layout


def _notes(sizes: dict[str, tuple[int, int, int]]) -> list[str]:
    """Warnings of blocks in which not all tokens attend."""
    return [
        f"{name}: {rows} of {tokens} tokens attend, those that answer; its scores are means over these"
        for name, (_, rows, tokens) in sizes.items()
        if rows < tokens
    ]


def _sizes(members: Ensemble, task: AbstractTask, key: PRNGKeyArray) -> dict[str, tuple[int, int, int]]:
    """Map each block to its number of heads, of attending tokens and of all tokens, without copying weights."""
    sizes = eqx.filter_eval_shape(_first_patterns, members.stacked, task, key)
    return {name: (*pattern.values.shape[:2], pattern.tokens) for name, pattern in sizes}


@eqx.filter_jit  # which keeps the shapes of a model that it has seen
def _first_patterns(stacked: Any, task: AbstractTask, key: PRNGKeyArray) -> list[tuple[str, "_Pattern"]]:
    """Patterns of the first member on one prompt. JAX would sort a dictionary: block10, block2."""
    network = jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, stacked)
    return list(_patterns(network, task.sample(key=key)).items())


def _real_rows(pattern: _Pattern, prompt: Any) -> Bool[Array, " row"]:
    """Which rows are tokens of the prompt and no padding."""
    mask = getattr(prompt, "mask", None)
    if mask is None:
        return jnp.ones(len(pattern.rows), bool)
    if not pattern.known:
        require_unmasked("task", prompt)
    return mask[pattern.examples]


def traced(model: Any, prompt: Any) -> Trace:
    """The trace of a model; raise for a predictor without one."""
    if not hasattr(model, "trace"):
        hint = "models.WithActivations names those of a network of JAX, models.FromTorch those of a torch.nn.Module"
        raise expected("model", "a model, whose trace has activations", type(model).__name__, hint)
    return model.trace(prompt)


def _patterns(model: Any, prompt: Any) -> dict[str, _Pattern]:
    """Patterns of the tokens that attend, by the name of their block."""
    activations = traced(model, prompt).activations
    patterns = {}
    for name, value in activations.items():
        attention = name.startswith("attention") and name.removeprefix("attention").isdigit()
        if attention and value.ndim == 1:
            patterns[name] = _pattern_of(value[None, None], model, prompt)
        elif attention and value.ndim == 2 and value.shape[0] == value.shape[1]:
            patterns[name] = _pattern_of(value[None], model, prompt)
        elif name.rsplit(".", 1)[-1] == "pattern" and value.ndim == 3:
            patterns[name.split(".", 1)[0]] = _pattern_of(value, model, prompt)
    if not patterns:
        raise expected("model", "one whose trace has patterns of tokens over tokens", list(activations))
    return patterns


def _pattern_of(values: Float[Array, "head row key"], model: Any, prompt: Any) -> _Pattern:
    """A pattern with its rows: all tokens, or those that answer."""
    _, size, keys = values.shape
    model = unedited(model)
    arrangement = getattr(model, "arrangement", None) or getattr(getattr(model, "embedding", None), "arrangement", None)
    if not isinstance(arrangement, AbstractArrangement):
        if isinstance(prompt, RegressionPrompt) and size == keys > prompt.positions:
            hint = f"{kind_of(model)}(..., arrangement=models.Interleaved()) says which token is which, or Joined(...)"
            raise expected("model", f"a pattern of {prompt.positions} tokens, or an arrangement", keys, hint)
        if size not in (1, keys):
            raise expected("model", "patterns of all tokens, or of the last", f"{size} of {keys} tokens")
        rows = np.arange(keys - size, keys)
        return _Pattern(values, rows, rows - 1, rows, keys, isinstance(prompt, TokenPrompt))
    layout = arrangement.layout(prompt.positions)
    tokens = np.arange(len(layout.place))
    if size == keys == len(tokens) + 1:  # the last example is a token too, which no answer sees
        kept = np.delete(np.arange(keys), prompt.positions - 1 if isinstance(arrangement, Joined) else keys - 1)
        values, size, keys = values[:, kept][..., kept], size - 1, keys - 1
    if size not in (len(tokens), len(tokens[layout.read])) or keys < layout.keys:
        raise expected("arrangement", f"one of {size} tokens", f"{kind_of(arrangement)}, of {len(tokens)}")
    rows = tokens if size == len(tokens) else tokens[layout.read]
    # The token before a query is the example before it: the last key that is seen, at an earlier place.
    earlier = layout.visible[rows, :keys] & (layout.place[:keys] < layout.place[rows][:, None])
    previous = np.where(earlier.any(axis=1), keys - 1 - earlier[:, ::-1].argmax(axis=1), -1)
    examples = layout.place[rows] // (2 if isinstance(arrangement, Interleaved) else 1)
    return _Pattern(values, rows, previous, examples, len(tokens), True)
