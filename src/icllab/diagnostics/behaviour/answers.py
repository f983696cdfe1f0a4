"""Predictors evaluated on many prompts: by one compiled program, or on the host if JAX cannot trace them."""

import abc
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from icllab.core import progress
from icllab.core.errors import expected, require_integer, require_key
from icllab.core.prompt import Prompt, TokenPrompt, scored_positions
from icllab.core.protocols import AbstractTask, Predictor, declared, position_losses, require_randomness
from icllab.core.vocabularies import in_vocabulary
from icllab.models.interventions.edits import unedited
from icllab.models.networks.embedding import Tokens
from icllab.models.pytorch import FromTorch
from icllab.training.ensembles import Ensemble, alone

LARGEST, LIMIT = 10, 0.1  # number of largest terms, and the share of a mean from which they cause a warning
MOST = 2**31 - 1
LOGITS = 2**25  # most logits in memory at once, of prompts of token ids: 128 MiB in float32


class Question(eqx.Module):
    """A measurement on one prompt, such as losses: one number per answer. Its fields are static.

    ``traces``: it reads traces alone, which run within a program of JAX for a PyTorch module too.
    """

    traces: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(self, predictor: Predictor, task: AbstractTask, prompt: Prompt) -> Float[Array, " answer"]:
        """The numbers measured on one prompt."""


class EveryPosition(Question):
    """The loss at every position that the predictor answers."""

    def __call__(self, predictor: Predictor, task: AbstractTask, prompt: Prompt) -> Float[Array, " answer"]:
        """The task's loss of the prediction."""
        return position_losses(task, predictor(prompt), prompt)


def answers(
    question: Question,
    predictor: Predictor | Ensemble,
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    prompts: int,
    block: int = 256,
) -> Float[np.ndarray, "*member prompt answer"]:
    """Measure predictors on prompts sampled from a task; one key gives all predictors and questions the same prompts.

    A ``traceable`` predictor runs compiled. Its arrays, those of the task and the prompts are arguments, so that other
    values compile nothing again. All members of an ensemble share one program. Any other predictor is called prompt by
    prompt, or once for each block if it is ``batched``. The number of ``prompts`` is at least 2; at most ``block`` of
    them are in memory at once, and of token ids at most as many as have 2**25 logits together.
    """
    require_integer("prompts", prompts, least=2)  # for a standard error
    require_integer("block", block)
    require_key(key)
    keys = _prompt_keys(key, prompts)
    prompt = jax.eval_shape(lambda k: task.sample(key=k), jax.ShapeDtypeStruct((), keys.dtype))
    size = prompts_at_once(predictor, prompt, min(block, prompts))
    blocks = ((_prompts(task, keys[rows]), count) for rows, count in _blocks(prompts, size))
    return np.concatenate([_answer_block(question, predictor, task, batch, count) for batch, count in blocks], axis=-2)


def sample_prompts(
    task: AbstractTask, *, key: PRNGKeyArray, prompts: int, block: int = 256, first: int | None = None
) -> Any:
    """Sample the prompts that :func:`answers` uses under the same key, or the ``first`` of them, stacked."""
    keys = _prompt_keys(key, prompts)
    count = prompts if first is None else min(first, prompts)
    parts = [_prompts(task, keys[rows]) for rows, _ in _blocks(count, block)]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[:count], *parts)


def _prompt_keys(key: PRNGKeyArray, prompts: int) -> Key[Array, " prompt"]:
    """One key for each prompt; a clone, since all predictors answer the same prompts."""
    if prompts > MOST:
        raise expected("prompts", f"an integer of at most {MOST}", prompts)
    return jax.random.split(jax.random.clone(key), prompts)


def sampled_targets(
    task: AbstractTask, *, key: PRNGKeyArray, prompts: int, block: int = 256
) -> Bool[np.ndarray, "prompt position"] | None:
    """Mask of the positions with a target in the prompts of :func:`answers`; None for prompts without a mask."""
    if jax.eval_shape(lambda k: scored_positions(task.sample(key=k)), key) is None:
        return None
    return np.asarray(scored_positions(sample_prompts(task, key=key, prompts=prompts, block=block)))


def of_targets(
    samples: Float[np.ndarray, "*member prompt position"], scored: Bool[np.ndarray, "prompt position"] | None
) -> Float[np.ndarray, "*member prompt position"]:
    r"""Samples whose plain mean and standard error over N prompts are those over the n that have a target.

    .. math:: z_p = \bar l + m_p\, (l_p - \bar l) \sqrt{\frac{N (N - 1)}{n (n - 1)}}

    with m 1 where prompt p has a target and 0 elsewhere. Sums and differences of positions keep that property, since z
    is linear in l. NaN at a position without a target; of a single one z is its value, without a spread.
    """
    if scored is None:
        return samples
    total, count = len(scored), scored.sum(0)
    mean = np.where(scored, samples, 0).sum(-2, keepdims=True) / np.where(count > 0, count, np.nan)
    factor = np.sqrt(total * (total - 1) / np.maximum(count * (count - 1), 1)) * (count > 1)
    with np.errstate(invalid="ignore"):
        return mean + np.where(scored, samples - mean, 0) * factor


def require_unmasked(name: str, prompts: Any) -> None:
    """Raise if prompts carry a mask: for measurements of the last position, or of all tokens."""
    if scored_positions(prompts) is not None:
        raise expected(name, "prompts of one length, without a mask", "prompts with a mask", "sort them by length")


def answers_to(
    question: Question, predictor: Predictor | Ensemble, task: AbstractTask, prompts: Any, *, block: int = 256
) -> Float[np.ndarray, "*member prompt answer"]:
    """Measure predictors on given prompts, stacked on a leading axis.

    The compiled program takes one block, whatever the number of prompts: the last block is padded.
    """
    total = len(jax.tree.leaves(prompts)[0])
    prompt = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), prompts)
    size = prompts_at_once(predictor, prompt, block)
    blocks = ((jax.tree.map(lambda leaf, r=rows: leaf[r], prompts), count) for rows, count in _blocks(total, size))
    return np.concatenate([_answer_block(question, predictor, task, batch, count) for batch, count in blocks], axis=-2)


def prompts_at_once(predictor: Predictor | Ensemble, prompt: Any, most: int) -> int:
    """``most`` prompts of a shape, or fewer of token ids: as many as have 2**25 logits together, at least 1."""
    network = predictor.stacked if isinstance(predictor, Ensemble) else predictor
    if not (isinstance(prompt, TokenPrompt) and declared(network, "traceable")):
        return most
    answer = eqx.filter_eval_shape(_answered, network, prompt, isinstance(predictor, Ensemble))
    parts = math.ceil(most / max(LOGITS // max(answer.size, 1), 1))
    return math.ceil(most / parts)  # parts of one size: the last one is padded


@eqx.filter_jit  # which keeps the shapes of a predictor that it has seen
def _answered(network: Any, prompt: Any, stacked: bool) -> Array:
    return (jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, network) if stacked else network)(prompt)


def mean_over_prompts(samples: Float[np.ndarray, "prompt *rest"]) -> tuple[np.ndarray, np.ndarray]:
    """The mean over prompts and its standard error; NaN in one prompt makes both NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(samples.mean(0)), np.asarray(samples.std(0, ddof=1) / np.sqrt(len(samples)))


def means_and_errors(samples: Mapping[str, Float[np.ndarray, "prompt *rest"]]) -> dict[str, np.ndarray]:
    """Means over prompts by name, each with an ``_error``."""
    return {
        f"{name}{suffix}": part
        for name, values in samples.items()
        for suffix, part in zip(("", "_error"), mean_over_prompts(values), strict=True)
    }


def heaviest_share(terms: Float[np.ndarray, "prompt *rest"], *, largest: int = LARGEST) -> Float[np.ndarray, "*rest"]:
    r"""Share of a mean over prompts that its largest terms carry.

    .. math:: \sum_{k \le K}|t|_{(k)}\Big/\sum_i|t|_i

    For N equal terms the share is K/N. For squares of normal numbers it is about
    :math:`\frac{2K}N\ln\frac{N}{K}`, below a tenth for a thousand terms or more. It is 0 if all terms are 0, and 1 if
    a term is not finite. ``largest`` is K.

    Derived: docs/identification.md, Few prompts that carry a mean.
    """
    size = np.abs(terms)
    endless = ~np.isfinite(size).all(0)
    size = np.where(np.isfinite(size), size, 0.0)
    total = size.sum(0)
    top = np.sort(size, axis=0)[-largest:].sum(0)
    share = np.divide(top, total, out=np.zeros_like(total), where=total > 0)
    return np.asarray(np.where(endless, 1.0, share))


def heavy_tail_warning(what: str, share: float, prompts: int) -> str:
    """A warning if the largest terms of more than ten prompts carry more than a tenth, else an empty string."""
    if not share > LIMIT or prompts <= LARGEST:
        return ""
    return f"{LARGEST} of {prompts} prompts carry {share:.0%} of {what}: take more prompts, and do not trust its error"


def _answer_block(
    question: Question, predictor: Predictor | Ensemble, task: AbstractTask, prompts: Any, count: int
) -> Float[np.ndarray, "*member prompt answer"]:
    """The answers to the first ``count`` prompts of a block.

    Raises:
        InputError: A token of a prompt is not of the vocabulary of a transformer, as of another model's tokenizer.
    """
    network = predictor.stacked if isinstance(predictor, Ensemble) else predictor
    arrangement = getattr(getattr(network, "embedding", None), "arrangement", None)
    if isinstance(prompts, TokenPrompt) and isinstance(arrangement, Tokens):
        in_vocabulary(
            "tokens", prompts.tokens[:, :-1], arrangement.vocabulary, "a model takes the ids of its own tokenizer"
        )
    in_jax = declared(network, "traceable") or (question.traces and isinstance(unedited(network), FromTorch))
    if not isinstance(predictor, Ensemble) and in_jax:
        values = np.asarray(_compiled_alone(question, predictor, task, prompts), dtype=float)[:count]
        progress.advance(count)
        return values
    members = predictor if isinstance(predictor, Ensemble) else alone(predictor)
    if in_jax:
        arrays, static = eqx.partition(members.stacked, eqx.is_array)
        numbers = jnp.arange(members.size)
        values = np.asarray(_compiled(question, arrays, static, numbers, task, prompts), dtype=float)[:, :count]
        progress.advance(members.size * count)
    elif declared(members.stacked, "batched"):
        networks = [members.member(i) for i in range(members.size)]
        values = np.stack([_answer_stacked(question, network, task, prompts)[:count] for network in networks])
        progress.advance(members.size * count)
    else:
        # To slice arrays of a device one prompt at a time takes longer than most estimators.
        host_prompts = jax.device_get(prompts)
        single_prompts = [jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), host_prompts) for i in range(count)]
        networks = [members.member(i) for i in range(members.size)]
        rows = [
            [np.asarray(question(network, task, p), float) for p in _counted(single_prompts)] for network in networks
        ]
        values = np.array(rows)
    return values if isinstance(predictor, Ensemble) else values[0]


class _Unanswered(Exception):
    """Signal that a question has called its predictor on a ``prompt`` whose answer is still missing."""

    def __init__(self, prompt: Any) -> None:
        self.prompt = prompt


class _Replay:
    """A predictor that returns given answers in the order of the calls."""

    traceable, differentiable = False, False

    def __init__(self, positions: Literal["every", "last"], replies: list[Array]) -> None:
        self.positions, self.replies = positions, iter(replies)

    def __call__(self, prompt: Any) -> Array:
        for reply in self.replies:
            return reply
        raise _Unanswered(prompt)


def _answer_stacked(
    question: Question, predictor: Predictor, task: AbstractTask, prompts: Any
) -> Float[np.ndarray, "prompt answer"]:
    """Answers by a predictor on the host that takes stacked prompts, in one call for each call of the question."""
    replies: list[Array] = []
    while True:
        call, values = _replayed(question, declared(predictor, "positions"), task, prompts, replies)
        if call is None:
            return np.asarray(values, float)
        replies.append(jnp.asarray(predictor(call)))


@eqx.filter_jit
def _replayed(
    question: Question, positions: Literal["every", "last"], task: AbstractTask, prompts: Any, replies: list[Array]
) -> tuple[Any, Any]:
    """The prompts of the next call of a predictor and None; or None and the answers to the question."""

    def single(prompt: Any, replies: list[Array]) -> tuple[Any, Any]:
        try:
            return None, question(_Replay(positions, replies), task, prompt)
        except _Unanswered as call:
            return call.prompt, None

    return jax.vmap(single)(prompts, replies)


def _counted(prompts: list[Any]) -> Iterator[Any]:
    """Yield each prompt, and count the finished ones."""
    for prompt in prompts:
        yield prompt
        progress.advance()


@eqx.filter_jit
def _compiled_alone(question: Question, predictor: Predictor, task: AbstractTask, prompts: Any) -> Array:
    """Answers of one predictor to all prompts in parallel, without a copy of its weights."""
    return jax.vmap(lambda prompt: question(predictor, task, prompt))(prompts)


@eqx.filter_jit
def _compiled(
    question: Question, arrays: Any, static: Any, numbers: Int[Array, " member"], task: AbstractTask, prompts: Any
) -> Float[Array, "member prompt answer"]:
    """Answers of the members in sequence, of each to all prompts in parallel."""

    def member_answers(member: tuple[Any, Array]) -> Float[Array, "prompt answer"]:
        predictor = eqx.combine(member[0], static)
        return jax.vmap(lambda prompt: question(predictor, task, prompt))(prompts)

    return jax.lax.map(member_answers, (arrays, numbers))


def _blocks(count: int, block: int) -> list[tuple[np.ndarray, int]]:
    """Rows of each block, padded with the last row, and the number of rows that count."""
    starts = range(0, count, block)
    return [(np.minimum(np.arange(first, first + block), count - 1), min(block, count - first)) for first in starts]


@eqx.filter_jit
def _prompts(task: AbstractTask, keys: Key[Array, " prompt"]) -> Prompt:
    """Sample one prompt for each key, stacked."""
    require_randomness(task)
    return jax.vmap(lambda key: task.sample(key=key))(keys)
