"""The prompts of a step, fresh or from a fixed set, and the loss that is averaged over them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core.errors import IclError, expected, require_integer
from icllab.core.prompt import Prompt

Kind = Literal["fresh", "full", "epochs", "replacement"]


@dataclass(frozen=True)
class Fresh:
    """Prompts drawn afresh from the task.

    Attributes:
        reuse: Steps in a row that have the same prompts before others are drawn.
    """

    reuse: int = 1

    def __post_init__(self) -> None:
        require_integer("reuse", self.reuse)


@dataclass(frozen=True)
class Fixed:
    """A fixed set of prompts, of which every step takes some.

    Attributes:
        prompts: Stacked on a leading axis: one set for all members. Or how many every seed draws once for itself.
        minibatches: ``"epochs"``: without replacement, each epoch in another order; the ``n mod batch`` prompts that
            fill no batch at its end are not used in it. ``"replacement"``: drawn with replacement.
    """

    prompts: Prompt | int
    minibatches: str = "epochs"

    def __post_init__(self) -> None:
        known = isinstance(self.prompts, int | np.integer | Prompt) or hasattr(self.prompts, "positions")
        if isinstance(self.prompts, bool) or not known:
            hint = "task.sample_many(16, key=key) makes some"
            raise expected("data", "prompts, or how many", type(self.prompts).__name__, hint)
        if self.size < 1:
            raise expected("data", "at least one prompt", self.size)
        if self.minibatches not in ("epochs", "replacement"):
            raise expected("minibatches", "'epochs' or 'replacement'", self.minibatches)

    @property
    def shared(self) -> Prompt | None:
        """The set that all members share; None where every seed has its own."""
        return None if isinstance(self.prompts, int | np.integer) else self.prompts

    @property
    def size(self) -> int:
        """Prompts of the set."""
        return int(self.prompts) if isinstance(self.prompts, int | np.integer) else set_size("data", self.prompts)


def source_of(data: Prompt | int | Fresh | Fixed | None) -> Fresh | Fixed:
    """What ``fit``'s ``data`` stands for: None for fresh prompts, prompts or their number for a fixed set."""
    if data is None:
        return Fresh()
    return data if isinstance(data, Fresh | Fixed) else Fixed(data)


class Stream(eqx.Module):
    """How a step's prompts are drawn.

    Attributes:
        kind: ``fresh`` ones from the task; of a fixed set all, ``full``, or as :class:`Fixed` has it.
        batch: Prompts a step.
        size: Prompts of the fixed set; 0 for fresh ones.
        reuse: Steps in a row that have the same fresh prompts.
    """

    kind: Kind = eqx.field(static=True)
    batch: int = eqx.field(static=True)
    size: int = eqx.field(static=True, default=0)
    reuse: int = eqx.field(static=True, default=1)

    @property
    def name(self) -> str:
        """The kind, and how often fresh prompts are used if that is more than once."""
        return self.kind if self.reuse == 1 else f"{self.kind}, reused {self.reuse}"

    def begin(self, task: Any, key: PRNGKeyArray, step: Int[Array, ""]) -> Any:
        """What one step hands on to the next: the order of an epoch, prompts that are reused, or nothing."""
        if self.reuse > 1:
            return self._fresh(task, key, step // jnp.int32(self.reuse))
        if self.kind != "epochs":
            return jnp.zeros((0,), jnp.int32)
        epoch = step // jnp.int32(self.size // self.batch)
        return jax.random.permutation(jax.random.fold_in(key, epoch), jnp.arange(self.size, dtype=jnp.int32))

    def draw(self, task: Any, data: Any, carried: Any, key: PRNGKeyArray, step: Int[Array, ""]) -> tuple[Any, Any]:
        """The prompts of ``step``, leading axis ``batch``, and what is handed on to the next step."""
        if self.reuse > 1:
            first = step % jnp.int32(self.reuse) == 0
            prompts = jax.lax.cond(first, lambda: self.begin(task, key, step), lambda: carried)
            return prompts, prompts
        if self.kind == "fresh":
            return self._fresh(task, key, step), carried
        if self.kind == "full":
            return data, carried
        if self.kind == "replacement":
            rows = jax.random.randint(jax.random.fold_in(key, step), (self.batch,), 0, self.size, jnp.int32)
        else:
            slot = step % jnp.int32(self.size // self.batch)
            carried = jax.lax.cond(slot == 0, lambda: self.begin(task, key, step), lambda: carried)
            rows = jax.lax.dynamic_slice_in_dim(carried, slot * self.batch, self.batch)
        return jax.tree.map(lambda leaf: leaf[rows], data), carried

    def _fresh(self, task: Any, key: PRNGKeyArray, number: Int[Array, ""]) -> Any:
        return task.sample_many(self.batch, key=jax.random.fold_in(key, number))


def stream_of(source: Fresh | Fixed, batch: int | None) -> Stream:
    """The stream of so many prompts a step from a source; None: the whole fixed set."""
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int | np.integer) or batch < 1):
        raise expected("batch", "an integer of at least 1, or None for the whole fixed set", batch)
    if isinstance(source, Fresh):
        if batch is None:
            raise expected("batch", "an integer: prompts drawn afresh have no whole set", batch, "give data=")
        return Stream("fresh", int(batch), reuse=source.reuse)
    size, replacement = source.size, source.minibatches == "replacement"
    if batch is None or batch >= size:
        if replacement:
            expectation = f"an integer below {size}, the size of the set, to draw with replacement"
            raise expected("batch", expectation, batch)
        return Stream("full", size, size)
    return Stream("replacement" if replacement else "epochs", int(batch), size)


def set_size(name: str, prompts: Any) -> int:
    """How many prompts a stack of them holds; ``name`` is that of the argument."""
    leaves = [leaf for leaf in jax.tree.leaves(prompts) if eqx.is_array(leaf)]
    sizes = {leaf.shape[0] if leaf.ndim else -1 for leaf in leaves}
    if len(sizes) != 1 or -1 in sizes:
        shapes = [list(leaf.shape) for leaf in leaves]
        raise expected(name, "prompts stacked on one leading axis", shapes, "jax.vmap(task.sample) makes them")
    return sizes.pop()


Positions = str | Sequence[int]


def chosen_positions(positions: Positions, total: int, answered: int) -> tuple[int, ...]:
    """Which of a prompt's ``total`` positions are trained on, from 0; the predictor answers the last ``answered``."""
    if isinstance(positions, str):
        if positions not in ("every", "last"):
            raise expected("positions", "'every', 'last' or integers", positions)
        return tuple(range(total - answered, total)) if positions == "every" else (total - 1,)
    if not isinstance(positions, Iterable):
        raise expected("positions", "'every', 'last' or integers", positions, "positions=[3] is one of them")
    which = tuple(positions)
    first = total - answered
    if not which or not all(isinstance(i, int) and first <= i < total for i in which) or len(set(which)) < len(which):
        raise expected("positions", f"different integers from {first} to {total - 1}", list(which))
    return which


def require_prediction(predictor: Any, task: Any, prompt: Prompt) -> int:
    """How many positions ``predictor`` answers; one whose answer the task cannot judge is refused."""
    total = prompt.positions
    expectation = f"a prediction with {total} positions, or 1 for the last"
    try:
        prediction = eqx.filter_eval_shape(predictor, prompt)
    except IclError:
        raise
    except Exception as error:
        fitting = "that JAX can trace" if isinstance(error, jax.errors.JAXTypeError) else "for prompts of this task"
        name = getattr(predictor, "__name__", None) or type(predictor).__name__
        first = (str(error).splitlines() or [""])[0]
        raise expected("predictor", f"one {fitting}", f"{name}, {type(error).__name__}: {first}") from error
    if not isinstance(prediction, jax.ShapeDtypeStruct):
        raise expected("predictor", expectation, type(prediction).__name__)
    if not prediction.shape or prediction.shape[0] not in (1, total):
        raise expected("predictor", expectation, list(prediction.shape), "it is called on one prompt")
    answered = prediction.shape[0]
    try:
        loss = eqx.filter_eval_shape(task.loss, prediction, prompt)
    except IclError:
        raise
    except Exception as error:
        came = f"{prediction.dtype}{list(prediction.shape)}"
        raise expected("predictor", "a prediction that task.loss can judge", came) from error
    if loss.shape != (answered,):
        raise expected("task.loss", f"one number for each of {answered} positions", list(loss.shape))
    return answered


def losses_at(
    predictor: Any, task: Any, prompts: Any, positions: tuple[int, ...], total: int
) -> Float[Array, " position"]:
    """The mean over prompts of the loss at the chosen positions."""

    def one(prompt: Any) -> Array:
        found = task.loss(predictor(prompt), prompt)
        first = total - found.shape[0]
        if positions == tuple(range(first, total)):
            return found
        if positions == (total - 1,):
            return found[-1:]
        return found[jnp.asarray([i - first for i in positions])]

    return jnp.mean(jax.vmap(one)(prompts), axis=0)
