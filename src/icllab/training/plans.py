"""Plans: everything that determines a run, built before its first step."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from icllab.core.errors import InputError, expected
from icllab.training.ensembles import Ensemble
from icllab.training.loop import Constants, Program
from icllab.training.records import Record
from icllab.training.streams import Fixed, Fresh
from icllab.training.sweeps import replaced

HELD_OUT = 2**31  # folded into the key: larger than every seed


@dataclass(frozen=True)
class Plan:
    """Everything that determines a run: see :func:`icllab.training.fit`.

    Attributes:
        program: What members share.
        constants: What belongs to each member.
        params: The trained arrays before the first step, with a leading member axis.
        members: The predictors before the first step, with their coordinates.
        steps: Largest number of updates.
        record: What is recorded.
        held_out: Held-out prompts, with a leading member axis unless members share them.
        key: Key of the prompts.
        prompt: The shapes of one prompt.
    """

    program: Program
    constants: Constants
    params: Any
    members: Ensemble
    steps: int
    record: Record
    held_out: Any
    key: jax.Array
    prompt: Any

    @property
    def shape(self) -> tuple[int, int]:
        """Number of members, and number of positions."""
        return self.members.size, len(self.program.positions)


def partition(members: Ensemble, names: Iterable[str], trainable: Callable[[Any], Any] | None) -> tuple[Any, Any, Any]:
    """Partition members into trained arrays, frozen arrays and static parts, after applying swept initial values."""
    predictors = replaced(members.stacked, "predictor", _numbers(members, names))
    params, remainder = eqx.partition(predictors, _mask(members.stacked, trainable))
    if not jax.tree.leaves(params):
        raise expected("predictor", "floating-point arrays to train", type(predictors).__name__)
    return params, *eqx.partition(remainder, eqx.is_array)


def prompt_shape(task: Any, source: Fresh | Fixed, record: Record, key: PRNGKeyArray) -> Any:
    """The shapes of one prompt of the fixed set or the task; raise if held-out prompts have other shapes."""
    prompts = source.shared if isinstance(source, Fixed) else None
    prompt = eqx.filter_eval_shape(lambda k: task.sample(key=k), key) if prompts is None else _first(prompts)
    try:
        _ = prompt.positions
    except IndexError as error:
        if prompts is None:
            raise
        hint = "try task.sample_many(16, key=key)"
        raise expected("data", "prompts stacked on one leading axis", _shapes(prompts), hint) from error
    if record.shared is not None and _shapes(_first(record.shared)) != _shapes(prompt):
        expectation = f"prompts of the same shapes as in training, {_shapes(prompt)}"
        raise expected("held_out", expectation, _shapes(_first(record.shared)))
    return prompt


def member_constants(
    members: Ensemble, names: Iterable[str], frozen: Any, task: Any, source: Fresh | Fixed, *, key: PRNGKeyArray
) -> Constants:
    """Every member's key, swept numbers and, unless the fixed set is shared, prompts."""
    keys, data_keys = _member_keys(key, jax.device_put(np.asarray(members.coordinates["seed"], np.uint32)))
    numbers = {name: value for name, value in _numbers(members, names).items() if not name.startswith("predictor.")}
    constants = Constants(keys, frozen, numbers)
    if isinstance(source, Fresh) or source.shared is not None:
        return constants
    data = _sample(task, constants, data_keys, source.size)
    return Constants(keys, frozen, numbers, data)


def held_out_prompts(record: Record, task: Any, constants: Constants, key: PRNGKeyArray) -> Any:
    """The prompts of :class:`Record`; if it gives a number, that many are drawn from every member's task."""
    if not isinstance(record.held_out, int | np.integer):
        return record.held_out
    if record.held_out == 0:
        return None
    keys = jnp.broadcast_to(jax.random.fold_in(key, HELD_OUT), constants.key.shape)
    return _sample(task, constants, keys, int(record.held_out))


def _first(prompts: Any) -> Any:
    """The shapes of one prompt in a stack."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), prompts)


def _shapes(tree: Any) -> list[list[int]]:
    return [list(leaf.shape) for leaf in jax.tree.leaves(tree)]


def _numbers(members: Ensemble, names: Iterable[str]) -> dict[str, jax.Array]:
    return {name: jax.device_put(np.asarray(members.coordinates[name])) for name in names}


def _mask(predictors: Any, trainable: Callable[[Any], Any] | None) -> Any:
    """A tree with True for each leaf that is trained."""
    floats = jax.tree.map(eqx.is_inexact_array, predictors)
    if trainable is None:
        return floats
    if not callable(trainable):
        hint = "try lambda predictor: predictor.embedding"
        raise expected("trainable", "a function of the predictor, as in equinox.tree_at", trainable, hint)
    requirement, hint = "parts of the predictor, as in equinox.tree_at", "try lambda predictor: predictor.embedding"
    try:
        # Of leaves that are all different objects, so that a constant such as False is not taken for a part.
        parts = jax.tree.leaves(trainable(jax.tree.map(lambda _: object(), predictors)))
        if any(type(part) is not object for part in parts) or not parts:
            raise expected("trainable", requirement, f"a function that returns {parts[:1] or 'nothing'}", hint)
        return eqx.tree_at(trainable, jax.tree.map(lambda _: False, predictors), trainable(floats))
    except (AttributeError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise expected("trainable", requirement, str(error).split("\n")[0], hint) from error


@eqx.filter_jit
def _member_keys(key: jax.Array, seeds: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two keys for each member, made outside ``vmap`` because some generators fold differently inside it."""

    def folded(seed: jax.Array) -> tuple[jax.Array, jax.Array]:
        member_key = jax.random.fold_in(key, seed)
        return jax.random.fold_in(member_key, jnp.uint32(0)), jax.random.fold_in(member_key, jnp.uint32(1))

    return jax.lax.map(folded, seeds)


@eqx.filter_jit
def _sample(task: Any, constants: Constants, keys: jax.Array, count: int) -> Any:
    """Draw ``count`` prompts of every member's own task."""

    def sample(member: tuple[Constants, jax.Array]) -> Any:
        member_task = replaced(task, "task", member[0].numbers)
        return jax.vmap(lambda key: member_task.sample(key=key))(jax.random.split(member[1], count))

    return jax.lax.map(sample, (constants, keys))
