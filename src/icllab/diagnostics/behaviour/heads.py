r"""Measures of attention heads, computed from their patterns.

A pattern is :math:`a_{ij}`, the attention of token i to token j; every token attends to itself and to earlier tokens.
Prompts are of two kinds. In a sequence of tokens an induction head attends from a token to the token after an earlier
occurrence. In a prompt :math:`x_1, \ell_1, \dots, x_N, \ell_N, x_q` a label attends to its item in the first layer, and
the query to the label of its own item in the second.

The measures are functions of patterns, so that they apply to a network, to a head of three numbers, and to a head that
is defined by its patterns (:class:`StatedHead`).
"""

import math
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from icllab.core.errors import expected, require_key
from icllab.core.prompt import TokenPrompt
from icllab.core.protocols import AbstractModel, AbstractTask, Edit, Trace, require_task
from icllab.core.statistics import mean_and_error
from icllab.core.vocabularies import in_vocabulary
from icllab.diagnostics.behaviour.answers import Question, answers, means_and_errors, require_unmasked
from icllab.diagnostics.predictor_axes import PredictorAxes
from icllab.models.induction.minimal_head import label_mass
from icllab.models.interventions.edits import AbstractEdited
from icllab.models.networks.embedding import AbstractArrangement, Interleaved
from icllab.training.ensembles import Ensemble

MEASURES = (
    "item_label_attention",
    "target_attention",
    "label_attention",
    "induction_score",
    "context_label_accuracy",
    "context_label_mass",
)
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
    return _mean_where(_above_even(pattern, follows, causal & ~follows), jnp.any(follows, axis=1))


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
    return _mean_on_keys(pattern, *_on_diagonal(tokens))


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


def item_label_attention(pattern: Float[Array, "*heads token token"]) -> Float[Array, "*heads"]:
    r"""ILA: attention of a label to its item, the token before it, in the first layer, averaged over labels.

    .. math:: \frac1N\sum_{k=1}^Na_{2k,2k-1}

    Source: [Reddy24].
    """
    return jnp.mean(jnp.diagonal(pattern, offset=-1, axis1=-2, axis2=-1)[..., ::2], axis=-1)


def target_attention(row: Float[Array, "*heads token"], matches: Bool[Array, " pair"]) -> Float[Array, "*heads"]:
    r"""TILA: attention of the query to the right labels, in the second layer.

    Source: [Reddy24].
    """
    labels = row[..., 1::2]
    return jnp.sum(labels * _like(matches, labels), axis=-1)


def label_attention(row: Float[Array, "*heads token"]) -> Float[Array, "*heads"]:
    r"""TLA: attention of the query to all labels of the context, in the second layer.

    Source: [Reddy24].
    """
    return jnp.sum(row[..., 1::2], axis=-1)


def target_induction_score(row: Float[Array, "*heads token"], matches: Bool[Array, " pair"]) -> Float[Array, "*heads"]:
    r"""Attention of the query to the right label above that to a wrong label.

    .. math:: A - \frac{m}{N-m}(B-A)

    with A the attention to the m right labels and B that to all. For one right label the score is z - z' of the
    landscape; if all attention is on two labels, 2A - 1. NaN if every label is right.

    Source: [Reddy24].
    Derived: docs/abrupt-learning.md, Measures of heads.
    """
    return _above_even(row[..., 1::2], matches, ~matches)


def context_labels(logits: Float[Array, " label"], labels: Int[Array, " pair"]) -> Float[Array, "2"]:
    """CLA: whether the most likely label is one of the context's, 0 or 1; and the probability of the context's labels.

    Source: [Reddy24].
    """
    valid = in_vocabulary("labels", labels, len(logits))
    in_context = jnp.zeros(logits.shape, bool).at[labels].set(True)
    is_from_context = in_context[jnp.argmax(logits)].astype(logits.dtype)
    measures = jnp.stack([is_from_context, jnp.sum(jnp.where(in_context, jax.nn.softmax(logits), 0))])
    return jnp.where(jnp.all(valid), measures, jnp.nan)


def item_label_measures(trace: Trace, prompt: Any) -> Float[Array, " measure"]:
    """All :data:`MEASURES` of one prompt of items and labels, in order.

    Args:
        trace: Trace of the prompt, with ``attention1`` and, for two layers, ``attention2``. With one layer the measures
            use the query's attention, and the first is NaN.
        prompt: Prompt of items and labels, an :class:`ItemLabelPrompt <icllab.core.prompt.ItemLabelPrompt>`.

    Raises:
        InputError: The trace has no such activations.

    Source: [Reddy24].
    """
    first = trace.activations.get("attention1")
    row = trace.activations.get("attention2", first)
    if first is None or row is None:
        raise expected("model", "one whose trace has attention1", list(trace.activations))
    first_layer = item_label_attention(first) if first.ndim == 2 else jnp.full((), jnp.nan, row.dtype)
    row = row if row.ndim == 1 else row[-1]
    attentions = [target_attention(row, prompt.matches), label_attention(row)]
    label_measures = context_labels(trace.prediction[-1], prompt.labels[:-1])
    return jnp.stack([first_layer, *attentions, target_induction_score(row, prompt.matches), *label_measures])


class _Measures(Question):
    def __call__(self, predictor: Any, task: AbstractTask, prompt: Any) -> Float[Array, " answer"]:
        return item_label_measures(_trace(predictor, prompt), prompt)


def progress_measures(model: Any, task: AbstractTask, *, key: PRNGKeyArray, prompts: int = 1024) -> xr.Dataset:
    r"""Progress of the two steps of an induction head, and the labels that the model guesses meanwhile.

    Args:
        model: Model of items and labels (a network, a head of three numbers, a :class:`StatedHead`), or
            :mod:`several <icllab.diagnostics.predictor_axes>`.
        task: Task of items and labels, preferably its test set of fresh classes.
        key: Key of the prompts.
        prompts: Number of prompts, at least 2.

    Returns:
        Over the axes of the models: the mean of every measure of :data:`MEASURES` over the prompts on which it is
        defined, each with its standard error ``_error``.

    Raises:
        InputError: As :func:`item_label_measures`.

    Source: [Reddy24].
    """
    require_task(task)
    require_key(key)
    axes = PredictorAxes.from_predictors(model, "model")

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        values = answers(_Measures(), members, task, key=key, prompts=prompts)
        statistics = zip(("", "_error"), mean_and_error(values, axis=1), strict=True)
        return {f"{name}{end}": part[:, i] for end, part in statistics for i, name in enumerate(MEASURES)}

    return axes.to_dataset(axes.measure(measure), prompts=prompts)


class _Scores(Question):
    """Scores of all heads on one sequence, head by head."""

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
        follows = _follows(tokens)[pattern.rows] & real[:, None]
        causal = jnp.tril(jnp.ones((pattern.values.shape[2],) * 2, bool))[pattern.rows]
        recurring = jnp.any(follows, axis=1)
        above = _above_even(pattern.values, follows, causal & ~follows)
        scores += [_mean_on_keys(pattern.values, follows, recurring), _mean_where(above, recurring)]
        keys, counted = (part[pattern.rows] for part in _on_diagonal(tokens))
        scores.append(_mean_on_keys(pattern.values, keys, counted & real))
        same = _duplicates(tokens)[pattern.rows]
        scores.append(_mean_on_keys(pattern.values, same, jnp.any(same, axis=1) & real))
    return jnp.stack(scores, axis=1)


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


class StatedHead(AbstractModel):
    r"""An induction head defined by its attentions, as in the landscape.

    In the first layer a label attends with y to its item and uniformly to all other tokens. In the second the query
    attends with z to the right labels together, with z' to each wrong label, and uniformly to all other tokens. The
    logit of a label is :math:`\xi` times the attention to it.

    Attributes:
        previous: Attention y of a label to its item.
        right: Attention z of the query to the right labels.
        other: Attention z' of the query to each other label.
        read: Strength :math:`\xi` of the readout.
        labels: Number of labels L.

    Source: [Reddy24].
    """

    positions: ClassVar[Literal["every", "last"]] = "last"

    previous: Float[Array, ""] | float
    right: Float[Array, ""] | float
    other: Float[Array, ""] | float
    read: Float[Array, ""] | float
    labels: int = eqx.field(static=True)

    def trace(self, prompt: Any, edit: Edit | None = None) -> Trace:
        """Activations ``attention1``, ``attention2``, ``logits``."""
        edit = edit or (lambda _, value: value)
        pairs = prompt.pairs
        tokens = 2 * pairs + 1
        visible = np.tril(np.ones((tokens, tokens)))
        first_layer = jnp.asarray(visible / visible.sum(1, keepdims=True))
        label = np.arange(1, tokens, 2)
        remainder = visible[label] / label[:, None]  # tokens that a label sees, without its item
        remainder[np.arange(pairs), label - 1] = 0.0
        even_rows = jnp.asarray(remainder) * (1 - self.previous)
        first_layer = edit(
            "attention1", first_layer.at[label].set(even_rows.at[np.arange(pairs), label - 1].set(self.previous))
        )
        matches = prompt.matches
        match_count = jnp.maximum(jnp.sum(matches), 1).astype(first_layer.dtype)
        on_labels = jnp.where(matches, self.right / match_count, self.other)
        even = (1 - jnp.sum(on_labels)) / (pairs + 1)
        second_layer = jnp.full(tokens, 1.0) * even
        second_layer = edit("attention2", second_layer.at[label].set(on_labels))
        logits = edit("logits", self.read * label_mass(second_layer, prompt, self.labels)[None])
        return Trace(logits, {"attention1": first_layer, "attention2": second_layer, "logits": logits})


def _follows(tokens: Int[Array, " token"]) -> Bool[Array, "token token"]:
    """Whether token j <= i follows an occurrence of the same token as i."""
    before = jnp.concatenate([jnp.full((1,), -1, tokens.dtype), tokens[:-1]])
    matches = tokens[:, None] == before[None, :]
    first = jnp.arange(tokens.shape[0])[None, :] == 0
    return jnp.tril(matches & ~first)


def _duplicates(tokens: Int[Array, " token"]) -> Bool[Array, "token token"]:
    """Whether token j < i is the same as token i."""
    return jnp.tril(tokens[:, None] == tokens[None, :], -1)


def _on_diagonal(tokens: Int[Array, " token"]) -> tuple[Bool[Array, "token token"], Bool[Array, " token"]]:
    """The key of each token one period less one before it, and the tokens that have one; none without a period."""
    place = jnp.arange(len(tokens))
    before = place[:, None] - place[None, :]  # how far key j lies before token i
    same = tokens[:, None] == tokens[None, :]
    agree = jnp.stack([jnp.all(jnp.diagonal(same, -shift)[1:]) for shift in range(1, (len(tokens) + 1) // 2 + 1)])
    period = jnp.where(jnp.any(agree), jnp.argmax(agree) + 1, len(tokens) + 1)
    keys = before == period - 1
    return keys, jnp.any(keys, axis=1)


def _like(mask: Array, values: Array) -> Array:
    return jnp.broadcast_to(mask.astype(values.dtype), values.shape)


def _above_even(values: Array, right: Array, wrong: Array) -> Array:
    """Attention to the right keys minus that to as many wrong keys."""
    odds = (jnp.sum(right, axis=-1) / jnp.sum(wrong, axis=-1)).astype(values.dtype)
    on_right, on_wrong = (jnp.sum(values * _like(keys, values), axis=-1) for keys in (right, wrong))
    return on_right - _like(odds, on_wrong) * on_wrong


def _mean_on_keys(pattern: Array, keys: Array, rows: Array) -> Array:
    """Attention to the keys, averaged over the rows that count."""
    return _mean_where(jnp.sum(pattern * _like(keys, pattern), axis=-1), rows)


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
    """Numbers of heads, of tokens that attend, and of tokens, of each block; no weights are copied."""
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


def _trace(model: Any, prompt: Any) -> Trace:
    """The trace of a model; raise for a predictor without one."""
    if not hasattr(model, "trace"):
        raise expected("model", "a model, whose trace has activations", type(model).__name__)
    return model.trace(prompt)


def _patterns(model: Any, prompt: Any) -> dict[str, _Pattern]:
    """Patterns of the tokens that attend, by the name of their block."""
    activations = _trace(model, prompt).activations
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
    while isinstance(model, AbstractEdited):
        model = model.model
    arrangement = getattr(getattr(model, "embedding", None), "arrangement", None)
    if not isinstance(arrangement, AbstractArrangement):
        if size not in (1, keys):
            raise expected("model", "patterns of all tokens, or of the last", f"{size} of {keys} tokens")
        rows = np.arange(keys - size, keys)
        return _Pattern(values, rows, rows - 1, rows, keys, isinstance(prompt, TokenPrompt))
    layout = arrangement.layout(prompt.positions)
    tokens = np.arange(len(layout.place))
    rows = tokens if size == len(tokens) else tokens[layout.read]
    # The token before a query is the example before it: the last key that is seen, at an earlier place.
    earlier = layout.visible[rows, :keys] & (layout.place[:keys] < layout.place[rows][:, None])
    previous = np.where(earlier.any(axis=1), keys - 1 - earlier[:, ::-1].argmax(axis=1), -1)
    examples = layout.place[rows] // (2 if isinstance(arrangement, Interleaved) else 1)
    return _Pattern(values, rows, previous, examples, len(tokens), True)
