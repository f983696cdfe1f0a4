r"""The compiled loop on several devices: each takes some members, or a part of every step's prompts.

If the batch is divided, each device draws its own prompts and takes the gradient of their mean loss. The mean of these
over devices is the gradient of the whole batch,

.. math:: g = \frac1D \sum_{j=1}^D g_j, \qquad g_j = \nabla_\theta \frac{D}{n} \sum_{i \in B_j} L_i(\theta) ,

and is taken once a step, of all parameters as one vector: on a processor every thread waits for all others at each
exchange, and one exchange for each array would be some thirty of them. All else is the same on every device.
"""

from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core.errors import expected, require_integer
from icllab.core.protocols import AbstractTask
from icllab.training.loop import Constants, Program, State, advance

PART = "part"  # the mesh's only axis


@dataclass(frozen=True)
class Division:
    """Division of one run over several devices.

    Attributes:
        along: ``"batch"``: each device takes a part of a step's prompts, and all take the mean gradient. ``"member"``:
            each takes some members, and none waits for another.
        devices: Devices of this process.
    """

    along: Literal["batch", "member"]
    devices: tuple[Any, ...]

    @property
    def count(self) -> int:
        """Number of devices."""
        return len(self.devices)

    @property
    def mesh(self) -> Mesh:
        """The devices in a row."""
        return jax.make_mesh((self.count,), (PART,), (AxisType.Auto,), devices=self.devices)

    def header(self) -> dict[str, int | str]:
        """Description of the division for the header of a run."""
        return {"devices": self.count, "along": self.along}

    def replicate(self, tree: Any) -> Any:
        """Put every array on all devices; leaves that are not arrays stay."""
        arrays, static = eqx.partition(tree, eqx.is_array)
        return eqx.combine(jax.device_put(arrays, NamedSharding(self.mesh, PartitionSpec())), static)

    def place_members(self, tree: Any) -> Any:
        """Put each member's values on the devices; members are repeated until all devices have equal numbers."""
        if self.along == "batch":
            return self.replicate(tree)
        return jax.device_put(padded(tree, self.count), NamedSharding(self.mesh, PartitionSpec(PART)))


def divide(devices: int, *, members: int, batch: int) -> Division | None:
    """Divide a run over the first ``devices`` devices of this process; None for one device.

    Raises:
        InputError: There are fewer devices; or they would have no member, or unequal parts of the batch.
    """
    require_integer("devices", devices)
    available = jax.local_devices()
    if devices > len(available):
        hint = "training.split_processor() makes each core of a processor a device"
        raise expected("devices", f"at most {len(available)}, the devices of this process", devices, hint)
    if devices == 1:
        return None
    if members > 1 and devices > members:
        raise expected("devices", f"at most {members}, the number of members", devices)
    if members == 1 and batch % devices:
        divisor = max(count for count in range(1, devices + 1) if not batch % count)
        raise expected("devices", f"a divisor of the batch, {batch}", devices, f"try {divisor}")
    return Division("batch" if members == 1 else "member", tuple(available[:devices]))


class _TaskPart(eqx.Module):
    """A task from which one device draws its part of the prompts that a single device would draw."""

    task: Any
    parts: int = eqx.field(static=True)

    def at_step(self, step: Array) -> "_TaskPart":
        return _TaskPart(self.task.at_step(step), self.parts) if hasattr(self.task, "at_step") else self

    def sample_many(self, count: int, *, key: PRNGKeyArray) -> Any:
        if getattr(type(self.task), "sample_many", None) is not AbstractTask.sample_many:
            return _device_part(self.task.sample_many(count, key=key), self.parts)
        keys = _device_part(jax.random.split(key, count), self.parts)
        return jax.vmap(lambda k: self.task.sample(key=k))(keys)

    def loss(self, prediction: Array, prompt: Any) -> Float[Array, " position"]:
        return self.task.loss(prediction, prompt)


class _BatchPart(Program):
    """The program of one of several devices, which takes its part of every batch."""

    parts: int = eqx.field(static=True, kw_only=True)

    def member_task(self, constants: Constants) -> Any:
        return _TaskPart(super().member_task(constants), self.parts)

    def losses(self, constants: Constants, params: Any, prompts: Any) -> Float[Array, " position"]:
        return _mean(super().losses(constants, _with_mean_gradient(params), prompts))

    def draw(self, constants: Constants, stream_state: Any, step: Int[Array, ""]) -> tuple[Any, Any]:
        prompts, stream_state = super().draw(constants, stream_state, step)
        return prompts if self.stream.kind == "fresh" else _device_part(prompts, self.parts), stream_state


def advance_on(
    division: Division,
    program: Program,
    mode: str,
    constants: Constants,
    state: State,
    first: Int[Array, ""],
    last: Int[Array, ""],
    limit: Int[Array, " member"],
) -> tuple[State, Float[Array, "capacity member position"]]:
    """Run :func:`icllab.training.loop.advance` with ``program`` and ``constants`` that are already on the devices."""
    size = limit.shape[0]
    state, limit = division.place_members((state, limit))
    first, last = division.replicate((first, last))
    after, losses = _advance_on(division, program, mode, constants, state, first, last, limit)
    if losses.shape[1] == size:
        return after, losses
    return jax.tree.map(lambda leaf: leaf[:size], after), losses[:, :size]


@eqx.filter_jit
def _advance_on(
    division: Division, program: Program, mode: str, constants: Any, state: Any, first: Any, last: Any, limit: Any
) -> Any:
    """Run :func:`advance` on every device; the number of divided members is a multiple of the devices."""
    once, members, losses = PartitionSpec(), PartitionSpec(), PartitionSpec()
    if division.along == "member":
        members, losses = PartitionSpec(PART), PartitionSpec(None, PART)
    else:
        shared = {name: getattr(program, name) for name in Program.__dataclass_fields__}
        program = _BatchPart(**shared, parts=division.count)
    arrays, static = eqx.partition(program, eqx.is_array)
    return jax.shard_map(
        lambda arrays, *values: advance(eqx.combine(arrays, static), mode, *values),
        mesh=division.mesh,
        in_specs=(once, members, members, once, once, members),
        out_specs=(members, losses),
        check_vma=False,
    )(arrays, constants, state, first, last, limit)


def padded(tree: Any, parts: int) -> Any:
    """Repeat the last member until every part has the same number of members."""
    size = jax.tree.leaves(tree)[0].shape[0]
    total = -(-size // parts) * parts
    if total == size:
        return tree
    rows = jnp.minimum(jnp.arange(total), size - 1)
    return jax.tree.map(lambda leaf: leaf[rows], tree)


def _device_part(tree: Any, parts: int) -> Any:
    """This device's rows of arrays that every device holds completely."""

    def part(leaf: Array) -> Array:
        rows = leaf.shape[0] // parts
        return jax.lax.dynamic_slice_in_dim(leaf, jax.lax.axis_index(PART) * rows, rows)

    return jax.tree.map(part, tree)


@jax.custom_jvp
def _mean(losses: Array) -> Array:
    """The mean over devices; its derivative is the derivative of this device's own value."""
    return jax.lax.pmean(losses, PART)


@_mean.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return _mean(primals[0]), tangents[0]


@jax.custom_vjp
def _with_mean_gradient(params: Any) -> Any:
    """The parameters unchanged; their gradient is averaged over devices, exchanged as one vector of each type."""
    return params


def _forward(params: Any) -> tuple[Any, None]:
    return params, None


def _backward(_: None, gradient: Any) -> tuple[Any]:
    leaves, structure = jax.tree.flatten(gradient)
    means: dict[int, Array] = {}
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        indices = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        mean = jax.lax.pmean(jnp.concatenate([leaves[i].ravel() for i in indices]), PART)
        start = 0
        for i in indices:
            means[i] = mean[start : start + leaves[i].size].reshape(leaves[i].shape)
            start += leaves[i].size
    return (jax.tree.unflatten(structure, [means[i] for i in range(len(leaves))]),)


_with_mean_gradient.defvjp(_forward, _backward)
