"""Which devices one run is divided over, and along what; the processor's cores as devices; a device without memory."""

import gc
import os
from dataclasses import dataclass
from typing import Any, Literal

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from icllab.core.errors import InputError, expected, require_integer

PART = "part"
"""The name of a mesh's one axis."""

Along = Literal["batch", "member"]


@dataclass(frozen=True)
class Division:
    """One run on several devices.

    Attributes:
        along: ``"batch"``: each device has a part of a step's prompts, and all have the mean gradient. ``"member"``:
            each has some members, and none waits for another.
        devices: Those of this process.
    """

    along: Along
    devices: tuple[Any, ...]

    @property
    def count(self) -> int:
        """How many devices."""
        return len(self.devices)

    @property
    def mesh(self) -> Mesh:
        """The devices in a row."""
        return jax.make_mesh((self.count,), (PART,), (AxisType.Auto,), devices=self.devices)

    def sharding(self, *, divided: bool) -> NamedSharding:
        """Where an array is: a part of its leading axis on each device, or all of it on every one."""
        return NamedSharding(self.mesh, PartitionSpec(PART) if divided else PartitionSpec())

    def described(self) -> dict[str, int | str]:
        """For the header of a run."""
        return {"devices": self.count, "along": self.along}

    def __str__(self) -> str:
        return f"{self.along} over {self.count} devices"


def split_processor(count: int | None = None) -> int:
    """Make the processor's cores devices of their own, one thread each, before JAX is first used.

    JAX sees a processor as one device, and keeps most of a small network's products on one of its threads. As
    several devices it can be given a part of the work each, by ``devices`` of :func:`icllab.fit
    <icllab.training.fitting.fit>`. Programs that use one device are then left with one thread for a product.

    Args:
        count: How many; None: the cores that this process may use.

    Returns:
        The number of devices.

    Raises:
        InputError: JAX has been used already, and has another number of them.
    """
    if count is None:
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    require_integer("count", count)
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        available = len(jax.devices("cpu"))
        if available != count:
            raise InputError(
                f"split_processor: expected to be called before JAX is first used, got {available} "
                f"device{'s' * (available != 1)} in use and {count} asked for; start again and call it first"
            ) from None
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    return count


def require_devices(devices: Any) -> None:
    """Refuse what is neither ``"auto"`` nor a number of devices that this process has."""
    if devices == "auto":
        return
    if not isinstance(devices, int) or isinstance(devices, bool) or devices < 1:
        raise expected("devices", "'auto' or an integer of at least 1", devices)
    available = len(jax.local_devices())
    if devices > available:
        hint = "training.split_processor() makes devices of a processor's cores"
        raise expected("devices", f"at most {available}, as this process has", devices, hint)


def out_of_memory(error: BaseException) -> bool:
    """Whether a device had no memory left, or that is what the error came from."""
    found = type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError") and "RESOURCE_EXHAUSTED" in str(error)
    return found or (error.__cause__ is not None and out_of_memory(error.__cause__))


def forget() -> None:
    """Free what compiled programs and arrays that nobody has any more hold on to."""
    jax.clear_caches()
    gc.collect()
