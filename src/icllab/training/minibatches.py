"""Where a step's prompts come from: fresh ones, or a fixed set.

What a member sees at a step depends on its key and on the step alone, so that a run needs no state of a random
number generator to go on.
"""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from icllab.core.errors import expected
from icllab.core.prompt import Prompt

Kind = Literal["fresh", "full", "epochs", "replacement"]


class Stream(eqx.Module):
    """How a step's prompts are drawn.

    Attributes:
        kind: ``fresh`` ones from the task; of a fixed set ``full``: all of it, ``epochs``: without replacement,
            each epoch in another order (the ``n mod batch`` prompts left over at its end are not used), or with
            ``replacement``.
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


def stream_of(data: Prompt | int | None, batch: int | None, minibatches: str, reuse: int = 1) -> Stream:
    """The stream that ``fit``'s arguments describe."""
    if batch is not None and batch < 1:
        raise expected("batch", "an integer of at least 1, or None for the whole fixed set", batch)
    if minibatches not in ("epochs", "replacement"):
        raise expected("minibatches", "'epochs' or 'replacement'", minibatches)
    if reuse < 1 or (reuse > 1 and data is not None):
        wanted = "an integer of at least 1" if data is None else "1 with a fixed set, which is used again anyway"
        raise expected("reuse", wanted, reuse)
    if data is None:
        if batch is None:
            raise expected("batch", "an integer: prompts drawn afresh have no whole set", batch, "give data=")
        return Stream("fresh", batch, reuse=reuse)
    size = data if isinstance(data, int) else set_size(data)
    if size < 1:
        raise expected("data", "at least one prompt", size)
    if batch is None or batch >= size:
        return Stream("full", size, size)
    return Stream("replacement" if minibatches == "replacement" else "epochs", batch, size)


def set_size(data: Prompt) -> int:
    """How many prompts a stack of them holds."""
    leaves = [leaf for leaf in jax.tree.leaves(data) if eqx.is_array(leaf)]
    sizes = {leaf.shape[0] if leaf.ndim else -1 for leaf in leaves}
    if len(sizes) != 1 or -1 in sizes:
        shapes = [list(leaf.shape) for leaf in leaves]
        raise expected("data", "prompts stacked on one leading axis", shapes, "jax.vmap(task.sample) makes them")
    return sizes.pop()
