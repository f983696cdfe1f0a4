"""Files that are whole or not there: atomic writes, and the operating system's refusals in one line."""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from icllab.core.errors import EnvironmentFault


class DamagedFile(EnvironmentFault):
    """A stored file is not what was written (exit status 4)."""


@contextlib.contextmanager
def disk_faults(doing: str, kept: str = "every finished cell is kept") -> Iterator[None]:
    """Turn the operating system's refusal into one line that says what still stands."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise EnvironmentFault(f"{doing}: {reason}; {kept}, mend the directory and run again to go on") from error


def write_atomically(path: Path, content: bytes, kept: str = "every finished cell is kept") -> None:
    """Write ``content`` so that ``path`` holds either all of it or what it held before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}.partial")
    with disk_faults(f"cannot write {path}", kept):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            directory = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def difference(stored: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> str:
    """``alpha is 2 there and 4 here``, for every entry that differs."""
    parts = []
    for name in sorted({*stored, *wanted}):
        there, here = stored.get(name), wanted.get(name)
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            if there != here:
                parts.append(difference(there, here, prefix=f"{name}."))
        elif there != here:
            parts.append(f"{prefix}{name} is {there!r} there and {here!r} here")
    return ", ".join(parts)
