"""Compiled programs on disk: the second start of the same shapes is cheap."""

from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from icllab.core.files import disk_faults


def cache_compilations(directory: str | Path) -> Path:
    """Keep what JAX compiles in ``directory`` from now on, for this process and later ones.

    Programs are found again by their own text, the compiler's version and the device: a cache never gives another
    program's results. It may be deleted at any time. JAX sets aside all but the programs that took a second or
    more by default; here all are kept.
    """
    path = Path(directory)
    with disk_faults(f"cannot use {path} for compiled programs", "nothing is lost"):
        path.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # it may have looked for a directory already
    return path
