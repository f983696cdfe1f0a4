r"""The compiled loop on several devices: members dealt out, or the prompts of every step.

Of a divided batch each device draws its own prompts, and has the gradient of their mean loss. The mean of these over
devices is the gradient of the whole batch,

.. math:: g = \frac1D \sum_{j=1}^D g_j, \qquad g_j = \nabla_\theta \frac{D}{n} \sum_{i \in B_j} L_i(\theta) ,

and is taken once a step, of all parameters as one vector: on a processor every exchange lets each thread wait for all
others, and one for each array would be some thirty of them. What follows is the same on every device.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core.protocols import AbstractTask
from icllab.training.devices import PART, Division
from icllab.training.loop import Constants, Program, State, advanced
from icllab.training.sweeps import replaced


class _Part(eqx.Module):
    """A task of which a device draws its own part of the prompts, the same as without division."""

    task: Any
    parts: int = eqx.field(static=True)

    def sample_many(self, count: int, *, key: PRNGKeyArray) -> Any:
        if getattr(type(self.task), "sample_many", None) is not AbstractTask.sample_many:
            return _own_part(self.task.sample_many(count, key=key), self.parts)
        keys = _own_part(jax.random.split(key, count), self.parts)
        return jax.vmap(lambda k: self.task.sample(key=k))(keys)


class _OfBatch(Program):
    """A program as one of several devices runs it, on its part of every batch."""

    parts: int = eqx.field(static=True, kw_only=True)

    def losses(self, constants: Constants, params: Any, prompts: Any) -> Float[Array, " position"]:
        return _mean(super().losses(constants, _with_mean_gradient(params), prompts))

    def begin(self, constants: Constants, step: Int[Array, ""]) -> Any:
        if self.stream.kind != "fresh":
            return super().begin(constants, step)
        return self.stream.begin(self._drawn_by(constants), constants.key, step)

    def draw(self, constants: Constants, carried: Any, step: Int[Array, ""]) -> tuple[Any, Any]:
        if self.stream.kind == "fresh":
            return self.stream.draw(self._drawn_by(constants), None, carried, constants.key, step)
        prompts, carried = super().draw(constants, carried, step)
        return _own_part(prompts, self.parts), carried

    def _drawn_by(self, constants: Constants) -> _Part:
        return _Part(replaced(self.task, "task", constants.numbers), self.parts)


@eqx.filter_jit
def advanced_on(
    division: Division,
    program: Program,
    mode: str,
    constants: Constants,
    state: State,
    first: Int[Array, ""],
    last: Int[Array, ""],
    limit: Int[Array, " member"],
) -> tuple[State, Float[Array, "capacity member position"]]:
    """As :func:`icllab.training.loop.advanced`; of divided members there are a multiple of the devices."""
    members = PartitionSpec(PART) if division.along == "member" else PartitionSpec()
    losses = PartitionSpec(None, PART) if division.along == "member" else PartitionSpec()
    if division.along == "batch":
        shared = {name: getattr(program, name) for name in Program.__dataclass_fields__}
        program = _OfBatch(**shared, parts=division.count)
    arrays, static = eqx.partition(program, eqx.is_array)
    once = PartitionSpec()

    def run(arrays: Any, *rest: Any) -> Any:
        constants, state, first, last, limit = rest
        return advanced(eqx.combine(arrays, static), mode, constants, state, first, last, limit)

    return jax.shard_map(
        run,
        mesh=division.mesh,
        in_specs=(once, members, members, once, once, members),
        out_specs=(members, losses),
        check_vma=False,
    )(arrays, constants, state, first, last, limit)


def placed(division: Division, tree: Any) -> Any:
    """What every member has, on the devices: of divided members the last again until every device has as many."""
    members = division.along == "member"
    return jax.device_put(padded(tree, division.count) if members else tree, division.sharding(divided=members))


def padded(tree: Any, parts: int) -> Any:
    """Members, and the last of them again until every part has as many."""
    size = jax.tree.leaves(tree)[0].shape[0]
    total = -(-size // parts) * parts
    if total == size:
        return tree
    rows = jnp.minimum(jnp.arange(total), size - 1)
    return jax.tree.map(lambda leaf: leaf[rows], tree)


def _own_part(tree: Any, parts: int) -> Any:
    """This device's rows of a leading axis that every device has whole."""

    def part(leaf: Array) -> Array:
        rows = leaf.shape[0] // parts
        return jax.lax.dynamic_slice_in_dim(leaf, jax.lax.axis_index(PART) * rows, rows)

    return jax.tree.map(part, tree)


@jax.custom_jvp
def _mean(losses: Array) -> Array:
    """The mean over devices; its derivative is that of this device's own."""
    return jax.lax.pmean(losses, PART)


@_mean.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return _mean(primals[0]), tangents[0]


@jax.custom_vjp
def _with_mean_gradient(params: Any) -> Any:
    """The parameters themselves; their gradient is the mean over devices, exchanged as one vector of each type."""
    return params


def _forward(params: Any) -> tuple[Any, None]:
    return params, None


def _backward(_: None, gradient: Any) -> tuple[Any]:
    leaves, structure = jax.tree.flatten(gradient)
    means: dict[int, Array] = {}
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        mean = jax.lax.pmean(jnp.concatenate([leaves[i].ravel() for i in places]), PART)
        start = 0
        for i in places:
            means[i] = mean[start : start + leaves[i].size].reshape(leaves[i].shape)
            start += leaves[i].size
    return (jax.tree.unflatten(structure, [means[i] for i in range(len(leaves))]),)


_with_mean_gradient.defvjp(_forward, _backward)
