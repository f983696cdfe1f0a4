"""Cheaper compilation: programs kept on disk, and programs compiled in less time."""

import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from icllab.core.errors import EnvironmentFault
from icllab.core.files import disk_faults

QUICK = ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")
"""XLA ends the process at an unknown flag, so only versions that were tested get these."""


def compile_quickly() -> None:
    """Compile in half the time, for this process and those it starts: for tests, and runs of seconds.

    The programs run more slowly, so nothing is gained if they run for longer than their compilation takes. Their
    results agree with those of other programs to rounding, not to the bit. This includes a loop that reports its
    progress and the same loop in silence. Call it before the first program is compiled; later it has only part of its
    effect. Flags that the user has set in ``XLA_FLAGS`` stay.
    """
    jax.config.update("jax_disable_most_optimizations", True)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"
    if more := quick_flags():
        flags = os.environ.get("XLA_FLAGS", "").split()
        names = {flag.split("=")[0] for flag in flags}
        os.environ["XLA_FLAGS"] = " ".join(flags + [flag for flag in more if flag.split("=")[0] not in names])


def quick_flags() -> tuple[str, ...]:
    """The flags of :func:`compile_quickly` that this version of XLA supports."""
    return QUICK if version("jaxlib").startswith("0.10.") else ()


def cache_compilations(directory: str | Path | None = None) -> Path:
    """Keep compiled programs in ``directory``, for this process, its children and later processes.

    The key of a program is its text, the compiler's version and the device, so a cache never gives another program's
    results. It may be deleted at any time. JAX keeps only programs that took a second or more by default; here all
    are kept. Whoever may write to a cache may run code as its reader: keep it private.

    Args:
        directory: Directory of the programs. None: a private folder under ``$XDG_CACHE_HOME`` (or ``~/.cache``), one
            for each version of JAX and kind of processor.

    Returns:
        The directory.

    Raises:
        EnvironmentFault: The directory cannot be made, or is open to others although it was not named.
    """
    path = default_cache() if directory is None else Path(directory)
    with disk_faults(f"cannot use {path} for compiled programs", "nothing is lost"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = path.stat()
    if directory is None and hasattr(os, "getuid") and (state.st_uid != os.getuid() or state.st_mode & 0o022):
        raise EnvironmentFault(
            f"{path}: expected a folder that only its owner may write, got one that others may write; run chmod 700"
        )
    settings = {
        "jax_compilation_cache_dir": str(path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)  # for worker processes
    compilation_cache.reset_cache()  # it may have looked for a directory already
    return path


def default_cache() -> Path:
    """The user's folder for compiled programs, by versions and processor."""
    processor = Path("/proc/cpuinfo")
    lines = processor.read_text().splitlines() if processor.is_file() else []
    features = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    kind = hashlib.sha256("\n".join([platform.machine(), *features]).encode()).hexdigest()[:8]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "icl-lab" / f"jax-{version('jax')}-jaxlib-{version('jaxlib')}-{kind}"
