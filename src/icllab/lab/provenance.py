"""Versions, commit and device of a measurement."""

import contextlib
import functools
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import icllab

PACKAGE = Path(icllab.__file__).parent
_CODE = (".", ":(exclude)*record.json", ":(exclude)*record.nc")


@functools.cache
def commit(folder: Path = PACKAGE) -> str:
    """The git commit of a folder, with ``+changes`` if files other than records differ; empty outside git.

    A folder without files in git, such as that of a wheel, has no commit.
    """

    def git(*arguments: str) -> str:
        process = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
        return process.stdout.strip() if process.returncode == 0 else ""

    try:
        if not git("ls-files", "--", "*.py"):
            return ""
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", *_CODE) else "")
    except (OSError, subprocess.TimeoutExpired):
        return ""


def versions() -> dict[str, str]:
    """Versions that all workers of one run must share."""
    return {"icllab": icllab.__version__, "jax": _version("jax")}


_version = functools.cache(metadata.version)


def machine() -> dict[str, str]:
    """Versions that round numbers, the device in use, the processor and its cores for this process; imports JAX."""
    import jax

    # A device within `jax.default_device`; a platform where it is configured.
    device: Any = getattr(jax.config, "jax_default_device", None)
    device = device if isinstance(device, jax.Device) else jax.local_devices(backend=device)[0]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        **{f"{name}_version": _version(name) for name in ("jax", "jaxlib", "numpy")},
        "device": f"{device.platform}: {device.device_kind}",
        "machine": f"{cores} core{'s' * (cores != 1)} of {_processor()}",
        "processor": ", ".join(filter(None, map(_cpu, ("model name", "vendor_id", "cpu family", "model", "stepping")))),
    }


def reset_memory() -> None:
    """Reset the peak of :func:`memory` to the present memory of this process, if Linux allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def memory() -> dict[str, int]:
    """Peak memory of this process in bytes, on Linux; empty elsewhere."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return {"peak_bytes": 1024 * int(line.split()[1])}
    return {}


def _processor() -> str:
    """The processor's name, from Linux or else from Python."""
    return _cpu("model name") or platform.processor() or platform.machine()


@functools.cache
def _cpu(field: str) -> str:
    """A field of the first processor in /proc/cpuinfo; empty if it is absent."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == field:
                return value.strip()
    return ""
