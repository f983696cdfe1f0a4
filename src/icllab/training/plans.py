"""All that decides a run, put together before its first step."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected
from icllab.training.ensembles import Ensemble
from icllab.training.loop import Constants, Program
from icllab.training.records import Record
from icllab.training.streams import Fixed, Fresh
from icllab.training.sweeps import replaced

HELD_OUT = 2**31  # folded into the key: no seed's


@dataclass(frozen=True)
class Plan:
    """All that decides a run: see :func:`icllab.training.fit`.

    Attributes:
        program: What members share.
        constants: What each has to itself.
        params: The trained arrays before the first step, with a leading member axis.
        members: The predictors before the first step, with their coordinates.
        steps: Updates at most.
        record: What is written down.
        held_out: Prompts on which the loss is recorded too, with a leading member axis unless they are shared.
        key: Key of the prompts.
    """

    program: Program
    constants: Constants
    params: Any
    members: Ensemble
    steps: int
    record: Record
    held_out: Any
    key: jax.Array

    @property
    def shape(self) -> tuple[int, int]:
        """Members and positions."""
        return self.members.size, len(self.program.positions)


def parts(members: Ensemble, names: Iterable[str], trainable: Callable[[Any], Any] | None) -> tuple[Any, Any, Any]:
    """The trained arrays, the other arrays and what is no array of all members, initial values put in."""
    stacked = replaced(members.stacked, "predictor", _numbers(members, names))
    params, rest = eqx.partition(stacked, _mask(members.stacked, trainable))
    if not jax.tree.leaves(params):
        raise expected("predictor", "floating-point arrays to train", type(stacked).__name__)
    return params, *eqx.partition(rest, eqx.is_array)


def prompt_of(task: Any, source: Fresh | Fixed, record: Record, key: PRNGKeyArray) -> Any:
    """One prompt without its numbers, of the fixed set or the task; held-out ones of other shapes are refused."""
    fixed = source.shared if isinstance(source, Fixed) else None
    prompt = eqx.filter_eval_shape(lambda k: task.sample(key=k), key) if fixed is None else _one(fixed)
    try:
        _ = prompt.positions
    except IndexError as error:
        if fixed is None:
            raise
        came = [list(leaf.shape) for leaf in jax.tree.leaves(fixed)]
        hint = "task.sample_many(16, key=key) makes some"
        raise expected("data", "prompts stacked on one leading axis", came, hint) from error
    if record.shared is not None:
        expectation, came = (
            [list(leaf.shape) for leaf in jax.tree.leaves(one)] for one in (prompt, _one(record.shared))
        )
        if came != expectation:
            raise expected("held_out", f"prompts of the shapes that are trained on, {expectation}", came)
    return prompt


def member_constants(
    members: Ensemble, names: Iterable[str], frozen: Any, task: Any, source: Fresh | Fixed, *, key: PRNGKeyArray
) -> Constants:
    """What each member has to itself: its key, its numbers and, of a fixed set that is not shared, its prompts."""
    seeds = jnp.asarray(members.coordinates["seed"], jnp.uint32)
    keys = _folded(jnp.broadcast_to(key, seeds.shape), seeds)
    numbers = {name: value for name, value in _numbers(members, names).items() if not name.startswith("predictor.")}
    constants = Constants(_folded(keys, jnp.zeros_like(seeds)), frozen, numbers)
    if isinstance(source, Fresh) or source.shared is not None:
        return constants
    return Constants(
        constants.key, frozen, numbers, _drawn(task, constants, _folded(keys, jnp.ones_like(seeds)), source.size)
    )


def held_out_prompts(record: Record, task: Any, constants: Constants, key: PRNGKeyArray) -> Any:
    """The prompts of :class:`Record`, drawn from every member's own task where a number of them was given."""
    if not isinstance(record.held_out, int | np.integer):
        return record.held_out
    if record.held_out == 0:
        return None
    keys = jnp.broadcast_to(jax.random.fold_in(key, HELD_OUT), constants.key.shape)
    return _drawn(task, constants, keys, int(record.held_out))


def _one(prompts: Any) -> Any:
    """The shapes of one prompt of a stack."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), prompts)


def _numbers(members: Ensemble, names: Iterable[str]) -> dict[str, jax.Array]:
    return {name: jnp.asarray(members.coordinates[name]) for name in names}


def _mask(stacked: Any, trainable: Callable[[Any], Any] | None) -> Any:
    every = jax.tree.map(eqx.is_inexact_array, stacked)
    if trainable is None:
        return every
    if not callable(trainable):
        hint = "lambda predictor: predictor.embedding is one"
        raise expected("trainable", "a function of the predictor, as in equinox.tree_at", trainable, hint)
    none = jax.tree.map(lambda _: False, stacked)
    try:
        return eqx.tree_at(trainable, none, trainable(every))
    except (AttributeError, ValueError) as error:
        raise expected(
            "trainable", "parts of the predictor, as in equinox.tree_at", str(error).split("\n")[0]
        ) from error


@eqx.filter_jit
def _folded(keys: jax.Array, numbers: jax.Array) -> jax.Array:
    """The key of each member, outside ``vmap``: not every generator folds to the same key within."""
    return jax.lax.map(lambda member: jax.random.fold_in(*member), (keys, numbers))


@eqx.filter_jit
def _drawn(task: Any, constants: Constants, keys: jax.Array, count: int) -> Any:
    """``count`` prompts of every member's own task."""

    def one(member: tuple[Constants, jax.Array]) -> Any:
        its, key = member
        its_task = replaced(task, "task", its.numbers)
        return jax.vmap(lambda k: its_task.sample(key=k))(jax.random.split(key, count))

    return jax.lax.map(one, (constants, keys))
