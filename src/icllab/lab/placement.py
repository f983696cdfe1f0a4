"""Device and precision of a measurement, and measurements that exceed the memory of a device."""

import contextlib
import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from icllab.core.errors import EnvironmentFault, InputError, expected, require_known
from icllab.core.settings import DEFAULT, pinned_generator, rounded_products

if TYPE_CHECKING:
    from icllab.core.grid import Named

Precision: TypeAlias = Literal["float32", "float64", "bfloat16"]
PRECISIONS = get_args(Precision)
SEED = "seed"
_KNOWN = r"--xla_cpu_multi_thread_eigen=(true|false)|--xla_force_host_platform_device_count=\d+"


@dataclass(frozen=True)
class Placement:
    """Device and precision of a measurement, as plain values that are sent to workers.

    Attributes:
        device: ``"cpu"``, ``"gpu"``, ``"cuda:1"``: a platform of JAX, and which of this process's devices. None: the
            first that JAX has.
        precision: ``"float32"``, ``"float64"``; ``"bfloat16"``: arrays in float32, and the factors of matrix products
            rounded to bfloat16, where these do not ask for more themselves. None: the claim's own.

    Raises:
        InputError: A device is not spelled so, or a precision is none of these.
    """

    device: str | None = None
    precision: str | None = None

    def __post_init__(self) -> None:
        if self.device is not None and not re.fullmatch(r"[a-z]+(:\d+)?", str(self.device)):
            raise expected("device", "a platform, or one and a number", self.device, "cpu, gpu and cuda:1 are some")
        if self.precision is not None:
            require_known("precision", self.precision, PRECISIONS)


AS_STATED = Placement()
"""JAX's default device and the claim's own precision."""


@contextlib.contextmanager
def placed(device: str | None, precision: str, matmul_precision: str = DEFAULT) -> Iterator[None]:
    """Compute inside of the context on a device, in a precision, with the generator of every claim.

    Raises:
        InputError: There is no such device; or it does not compute in this precision.
    """
    import jax

    with contextlib.ExitStack() as stack:
        if device is not None:
            stack.enter_context(jax.default_device(_device(device)))
        stack.enter_context(pinned_generator())
        stack.enter_context(jax.enable_x64(precision == "float64"))
        stack.enter_context(rounded_products(matmul_precision))
        if precision == "bfloat16":
            stack.enter_context(jax.default_matmul_precision("BF16_BF16_F32"))
            if not _rounds():
                raise expected("precision", "a precision of this device", precision, "a processor does not round")
        yield


def require_start(*, children: bool) -> None:
    """Raise unless JAX starts under the settings of the environment, before anything is measured.

    XLA ends the process at a flag that it does not know, so where there are such flags a child starts JAX first.
    ``children``: this process measures nothing itself, and its JAX stays unused, with the memory of the device.

    Raises:
        EnvironmentFault: It does not start.
    """
    flags = tuple(flag for flag in os.environ.get("XLA_FLAGS", "").split() if not _of_ours(flag))
    platform = os.environ.get("JAX_PLATFORMS", "")
    elsewhere, reason = platform not in ("", "cpu"), None
    if flags or (elsewhere and children):
        reason = _fault_of_child(flags, platform)
    elif elsewhere:
        import jax

        try:
            jax.devices()
        except (RuntimeError, AssertionError) as error:  # the latter has no text
            reason = _reason(str(error))
    if reason is not None:
        settings = {"JAX_PLATFORMS": platform, "XLA_FLAGS": " ".join(flags)}
        text = " ".join(f"{name}={value}" for name, value in settings.items() if value)
        raise EnvironmentFault(f"{text}: expected settings under which JAX starts, got {reason}; change or unset them")


def _of_ours(flag: str) -> bool:
    """Return True for a flag that the library or its tests set under this version of JAX."""
    from icllab.training.compilation import quick_flags

    return flag in quick_flags() or re.fullmatch(_KNOWN, flag) is not None


@functools.cache
def _fault_of_child(flags: tuple[str, ...], platform: str) -> str | None:
    """The reason for which a child cannot start JAX; None if it can."""
    child = subprocess.run([sys.executable, "-c", "import jax; jax.devices()"], capture_output=True, text=True)
    return None if child.returncode == 0 else _reason(child.stderr)


def _reason(text: str) -> str:
    """The line of an error text that gives the reason."""
    lines = [re.sub(r"^[A-Z]\d{4} [^\]]*\] ", "", line.strip()) for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if "XLA_FLAGS" in line or "interpret value" in line] or lines[-1:]
    return lines[0] if lines and lines[0] != "AssertionError" else "no device of that platform"


def _device(name: str) -> Any:
    import jax

    platform, _, number = name.partition(":")
    try:
        devices = jax.local_devices(backend=platform)
    except RuntimeError:
        devices = []
    if int(number or 0) >= len(devices):
        names = ", ".join(f"{device.platform}:{i}" for i, device in enumerate(jax.local_devices()))
        raise expected("device", f"one of {names}", name, "icl doctor lists them")
    return devices[int(number or 0)]


def _rounds() -> bool:
    """True if the device rounds the factors of a product to eight bits."""
    import jax.numpy as jnp

    nearly = 1 + 2.0**-9
    return float(jnp.dot(jnp.full((16, 16), nearly), jnp.eye(16))[0, 0]) != nearly


def measured_in_blocks(
    measure: "Callable[[dict[str, Sequence[Any]]], dict[str, Named]]", block: "dict[str, Sequence[Any]]"
) -> "tuple[dict[str, Named], int]":
    """Measure a block; halve it along its seeds while the device lacks memory for it.

    What is random depends on the seed and not on the block, so that halves put together are the whole, to rounding.

    Returns:
        The values, and the number of seeds that were measured at once.

    Raises:
        EnvironmentFault: There is no memory for one seed, or something measured is of all seeds together.
    """
    from icllab.training.devices import forget, out_of_memory

    seeds = block.get(SEED, ())
    try:
        return measure(block), len(seeds)
    except Exception as error:
        if not out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:200]
    forget()  # outside of the handler, whose traceback holds the arrays
    if len(seeds) < 2:
        raise EnvironmentFault(f"device: expected memory for one seed at a time, got {reason}; try another --device")
    middle = len(seeds) // 2
    first, first_count = measured_in_blocks(measure, {**block, SEED: seeds[:middle]})
    second, second_count = measured_in_blocks(measure, {**block, SEED: seeds[middle:]})
    return {name: _joined(name, first[name], second[name]) for name in first}, max(first_count, second_count)


def _joined(name: str, first: "Named", second: "Named") -> "Named":
    import numpy as np

    axes, values = first[0], (np.asarray(first[1]), np.asarray(second[1]))
    if SEED in axes:
        return axes, np.concatenate(values, axis=axes.index(SEED))
    is_real = values[0].dtype.kind == "f" and values[0].shape == values[1].shape
    # Programs of other sizes round otherwise.
    if not (np.allclose(*values, rtol=1e-6, atol=0, equal_nan=True) if is_real else np.array_equal(*values)):
        raise EnvironmentFault(
            f"{name}: expected an axis seed, because the device lacks memory for all seeds at once, "
            f"got {', '.join(axes) or 'none'}; try another --device"
        )
    return axes, values[0]


def distributed(address: str) -> None:
    """Join the processes of one computation in JAX: ``auto`` where the environment tells, or ``COORDINATOR,N,I``.

    Each has its own devices from then on. ``COORDINATOR`` is an address and port of the process that is number 0, the
    same for all; N is the number of processes and I, from 0, which this is.

    Raises:
        InputError: It is spelled otherwise, or JAX has been used already.
        EnvironmentFault: The others do not come.
    """
    import jax

    match = re.fullmatch(r"([^,\s]+:\d+),(\d+),(\d+)", address)
    if address != "auto" and (match is None or not int(match[3]) < int(match[2])):
        raise expected("distributed", "auto, or HOST:PORT,N,I with I from 0 to N - 1", address)
    try:
        if match is None:
            jax.distributed.initialize()
        else:
            jax.distributed.initialize(match[1], int(match[2]), int(match[3]))
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        if "must be called before" in reason or "only be called once" in reason:
            raise InputError(f"distributed: expected to be called before JAX is first used, got {reason}") from None
        raise EnvironmentFault(f"distributed: expected the processes of {address!r} to meet, got {reason}") from error
