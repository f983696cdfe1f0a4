"""The processor's cores as devices, and handling of devices that run out of memory."""

import gc
import os

import jax

from icllab.core.errors import InputError, require_integer


def split_processor(count: int | None = None) -> int:
    """Make each core of the processor a one-thread device, before JAX is first used.

    JAX sees a processor as one device, and keeps most of a small network's products on one of its threads. Several
    devices share the work of :func:`icllab.fit <icllab.training.fitting.fit>` with its argument ``devices``. Programs
    that use one device then have one thread for a product.

    Args:
        count: Number of devices; None: the cores that this process may use.

    Returns:
        The number of devices.

    Raises:
        InputError: JAX has been used already, with another number of devices.
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


def out_of_memory(error: BaseException) -> bool:
    """True if an error, or its cause, reports that a device ran out of memory."""
    matches = type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError") and "RESOURCE_EXHAUSTED" in str(error)
    return matches or (error.__cause__ is not None and out_of_memory(error.__cause__))


def forget() -> None:
    """Free the memory of compiled programs and of unreferenced arrays."""
    jax.clear_caches()
    gc.collect()
