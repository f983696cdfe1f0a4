"""The prompts of a step, fresh or from a fixed set, and the averaged loss over them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from icllab.core.errors import IclError, expected, kind_of, require_integer
from icllab.core.prompt import Prompt, scored_positions
from icllab.core.protocols import declared, position_losses, require_prompts
from icllab.core.rounding import require_representable

Kind = Literal["fresh", "full", "epochs", "replacement"]


@dataclass(frozen=True)
class Fresh:
    """Prompts drawn anew from the task at every step.

    Attributes:
        reuse: Number of consecutive steps that use the same prompts.
    """

    reuse: int = 1

    def __post_init__(self) -> None:
        require_integer("reuse", self.reuse)


@dataclass(frozen=True)
class Fixed:
    """A fixed set of prompts; every step takes a minibatch of it.

    Attributes:
        prompts: Prompts stacked on a leading axis, one set for all members; or their number, drawn once by every seed.
        minibatches: ``"epochs"``: without replacement, each epoch in another order; it leaves out the last
            ``n mod batch`` prompts, which fill no batch. ``"replacement"``: with replacement.
    """

    prompts: Prompt | int
    minibatches: str = "epochs"

    def __post_init__(self) -> None:
        accepted = isinstance(self.prompts, int | np.integer | Prompt) or hasattr(self.prompts, "positions")
        if isinstance(self.prompts, bool) or not accepted:
            hint = "try task.sample_many(16, key=key)"
            raise expected("data", "prompts, or their number", type(self.prompts).__name__, hint)
        if self.size < 1:
            raise expected("data", "at least one prompt", self.size)
        if self.minibatches not in ("epochs", "replacement"):
            raise expected("minibatches", "'epochs' or 'replacement'", self.minibatches)

    @property
    def shared(self) -> Prompt | None:
        """The set that all members share; None if every seed has its own."""
        return None if isinstance(self.prompts, int | np.integer) else self.prompts

    @property
    def size(self) -> int:
        """Number of prompts."""
        return int(self.prompts) if isinstance(self.prompts, int | np.integer) else set_size("data", self.prompts)


def source_of(data: Prompt | int | Fresh | Fixed | None) -> Fresh | Fixed:
    """Convert the argument ``data`` of ``fit``: None to fresh prompts, prompts or their number to a fixed set."""
    if data is None:
        return Fresh()
    return data if isinstance(data, Fresh | Fixed) else Fixed(data)


class Stream(eqx.Module):
    """The way in which a step's prompts are drawn.

    Attributes:
        kind: ``fresh``: from the task; ``full``: all of a fixed set; or the ``minibatches`` of :class:`Fixed`.
        batch: Number of prompts a step.
        size: Number of prompts of the fixed set; 0 for fresh prompts.
        reuse: Number of consecutive steps that use the same fresh prompts.
    """

    kind: Kind = eqx.field(static=True)
    batch: int = eqx.field(static=True)
    size: int = eqx.field(static=True, default=0)
    reuse: int = eqx.field(static=True, default=1)

    @property
    def name(self) -> str:
        """The kind of stream, and the number of uses of fresh prompts if it exceeds one."""
        return self.kind if self.reuse == 1 else f"{self.kind}, reused {self.reuse}"

    def begin(self, task: Any, key: PRNGKeyArray, step: Int[Array, ""]) -> Any:
        """The state before ``step``: the order of an epoch, prompts to reuse, or nothing."""
        if self.reuse > 1:
            return self._fresh(task, key, step // jnp.int32(self.reuse))
        if self.kind != "epochs":
            return jnp.zeros((0,), jnp.int32)
        epoch = step // jnp.int32(self.size // self.batch)
        return jax.random.permutation(jax.random.fold_in(key, epoch), jnp.arange(self.size, dtype=jnp.int32))

    def draw(self, task: Any, data: Any, stream_state: Any, key: PRNGKeyArray, step: Int[Array, ""]) -> tuple[Any, Any]:
        """The prompts of ``step``, leading axis ``batch``, and the state after it."""
        if self.reuse > 1:
            first = step % jnp.int32(self.reuse) == 0
            prompts = jax.lax.cond(first, lambda: self.begin(task, key, step), lambda: stream_state)
            return prompts, prompts
        if self.kind == "fresh":
            return self._fresh(task, key, step), stream_state
        if self.kind == "full":
            return data, stream_state
        if self.kind == "replacement":
            rows = jax.random.randint(jax.random.fold_in(key, step), (self.batch,), 0, self.size, jnp.int32)
        else:
            slot = step % jnp.int32(self.size // self.batch)
            stream_state = jax.lax.cond(slot == 0, lambda: self.begin(task, key, step), lambda: stream_state)
            rows = jax.lax.dynamic_slice_in_dim(stream_state, slot * self.batch, self.batch)
        return jax.tree.map(lambda leaf: leaf[rows], data), stream_state

    def _fresh(self, task: Any, key: PRNGKeyArray, number: Int[Array, ""]) -> Any:
        if hasattr(task, "at_step"):
            task = task.at_step(number * jnp.int32(self.reuse))
        return task.sample_many(self.batch, key=jax.random.fold_in(key, number))


def stream_of(source: Fresh | Fixed, batch: int | None) -> Stream:
    """The stream with ``batch`` prompts per step from a source; None: the whole fixed set."""
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int | np.integer) or batch < 1):
        raise expected("batch", "an integer of at least 1, or None for the whole fixed set", batch)
    if isinstance(source, Fresh):
        if batch is None:
            raise expected("batch", "an integer, because fresh prompts are not a finite set", batch, "give data=")
        return Stream("fresh", int(batch), reuse=source.reuse)
    size, replacement = source.size, source.minibatches == "replacement"
    if batch is None or batch >= size:
        if replacement:
            expectation = f"an integer below {size}, the size of the set, to draw with replacement"
            raise expected("batch", expectation, batch)
        return Stream("full", size, size)
    return Stream("replacement" if replacement else "epochs", int(batch), size)


def set_size(name: str, prompts: Any) -> int:
    """Number of prompts in a stack; ``name`` is the argument's name, for errors."""
    leaves = [leaf for leaf in jax.tree.leaves(prompts) if eqx.is_array(leaf)]
    sizes = {leaf.shape[0] if leaf.ndim else -1 for leaf in leaves}
    if len(sizes) != 1 or -1 in sizes:
        shapes = [list(leaf.shape) for leaf in leaves]
        raise expected(name, "prompts stacked on one leading axis", shapes, "jax.vmap(task.sample) makes them")
    require_representable(name, prompts)
    return sizes.pop()


Positions = str | Sequence[int]


def chosen_positions(positions: Positions, total: int, answer_count: int) -> tuple[int, ...]:
    """The integers from 0 that ``positions`` stands for; the predictor answers the last ``answer_count`` positions."""
    if isinstance(positions, str) and positions in ("every", "last"):
        return tuple(range(total - answer_count, total)) if positions == "every" else (total - 1,)
    if isinstance(positions, str) or not isinstance(positions, Iterable):
        raise expected("positions", "'every', 'last' or integers", positions, "for one position, try positions=[3]")
    numbers, first = tuple(positions), total - answer_count
    inside = all(isinstance(i, int) and first <= i < total for i in numbers)
    if not numbers or not inside or len(set(numbers)) < len(numbers):
        raise expected("positions", f"different integers from {first} to {total - 1}", list(numbers))
    return numbers


def require_prediction(predictor: Any, task: Any, prompt: Prompt) -> int:
    """Number of positions that ``predictor`` answers; raise if its answer does not fit its declaration or the task."""
    if declared(predictor, "batched"):
        hint = "set batched = False, because fit vectorises over prompts"
        raise expected("predictor", "a predictor of one prompt", kind_of(predictor), hint)
    total, positions = prompt.positions, getattr(predictor, "positions", "any")
    counts = {"every": (total,), "last": (1,)}.get(positions, (1, total))
    expectation = f"a prediction with {total} positions, or 1 for the last"
    if len(counts) == 1:
        expectation = f"a prediction with {counts[0]} position{'s' * (counts[0] > 1)}, as it declares {positions!r}"
    try:
        prediction = eqx.filter_eval_shape(predictor, prompt)
    except IclError:
        raise
    except Exception as error:
        condition = "that JAX can trace" if isinstance(error, jax.errors.JAXTypeError) else "for prompts of this task"
        name = getattr(predictor, "__name__", None) or type(predictor).__name__
        reason = (str(error).splitlines() or [""])[0]
        raise expected("predictor", f"a predictor {condition}", f"{name}, {type(error).__name__}: {reason}") from error
    if not isinstance(prediction, jax.ShapeDtypeStruct):
        raise expected("predictor", expectation, type(prediction).__name__)
    if not prediction.shape or prediction.shape[0] not in counts:
        raise expected("predictor", expectation, list(prediction.shape), "fit calls it on one prompt")
    count = prediction.shape[0]
    try:
        loss = eqx.filter_eval_shape(task.loss, prediction, prompt)
    except IclError:
        raise
    except Exception as error:
        kind = f"{prediction.dtype}{list(prediction.shape)}"
        raise expected("predictor", "a prediction that task.loss can judge", kind) from error
    if loss.shape != (count,):
        raise expected("task.loss", f"one number for each of {count} positions", list(loss.shape))
    return count


def losses_at(
    predictor: Any, task: Any, prompts: Any, positions: tuple[int, ...], total: int, *, block: int | None = None
) -> Float[Array, " position"]:
    """Mean loss at the chosen positions over the prompts that have a target there; NaN if no prompt has.

    ``block``: number of prompts whose activations a gradient holds at once, for a second forward pass; None: all.
    """

    def prompt_losses(prompt: Any) -> Array:
        losses = position_losses(task, predictor(prompt), prompt)
        first = total - losses.shape[0]
        if positions == tuple(range(first, total)):
            return losses
        if positions == (total - 1,):
            return losses[-1:]
        return losses[jnp.asarray([i - first for i in positions])]

    if block is None:
        losses = jax.vmap(prompt_losses)(prompts)
    else:
        losses = jax.lax.map(jax.checkpoint(prompt_losses), prompts, batch_size=block)
    scored = scored_at(prompts, positions)
    if scored is None:
        return jnp.mean(losses, axis=0)
    count = jnp.sum(scored, axis=0).astype(losses.dtype)
    means = jnp.sum(jnp.where(scored, losses, 0), axis=0) / jnp.maximum(count, 1)
    return jnp.where(count > 0, means, jnp.nan)


def scored_at(prompts: Any, positions: tuple[int, ...]) -> Bool[Array, "prompt position"] | None:
    """Mask of stacked prompts with a target at the chosen positions; None: all have one."""
    scored = scored_positions(prompts)
    return None if scored is None else scored[:, jnp.asarray(positions)]


def length_terms(losses: Float[Array, " position"], prompts: Any, positions: tuple[int, ...]) -> Array:
    """Contribution of each chosen position to the mean loss over all targets; 0 for a position without targets."""
    scored = scored_at(prompts, positions)
    if scored is None:
        return losses / len(positions)
    count = jnp.sum(scored, axis=0).astype(losses.dtype)
    return jnp.where(count > 0, jnp.where(count > 0, losses, 0) * count, 0) / jnp.sum(count)


def mean_loss(losses: Float[Array, " position"], prompts: Any, positions: tuple[int, ...]) -> Float[Array, ""]:
    """The mean loss over all targets of the prompts at the chosen positions."""
    if scored_positions(prompts) is None:
        return jnp.mean(losses)
    return jnp.sum(length_terms(losses, prompts, positions))


def require_scored(name: str, task: Any, prompts: Any, positions: tuple[int, ...], total: int) -> None:
    """Raise unless the task can judge stacked prompts, and each has a target at one of the chosen positions."""
    require_prompts(task, prompts)
    scored = scored_at(prompts, positions)
    if scored is None:
        return
    if positions == (total - 1,) and not np.asarray(scored).all():
        hint = "choose positions='every' or integers, and a predictor that answers them"
        raise expected(name, "prompts with a target at the last position alone", "prompts with padding there", hint)
    empty = np.flatnonzero(~np.asarray(scored).any(axis=1))
    if len(empty):
        actual = f"none in prompt {int(empty[0])}"
        raise expected(name, "prompts with a target at a trained position", actual, "leave that prompt out")
