"""Files that are whole or absent: atomic writes, and errors of the operating system in one line."""

import contextlib
import importlib.util
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from icllab.core.errors import EnvironmentFault, InputError


class DamagedFile(EnvironmentFault):
    """A stored file is damaged: its bytes are not the bytes that were written (exit status 4)."""


@contextlib.contextmanager
def disk_faults(doing: str, status: str = "every finished cell is kept") -> Iterator[None]:
    """Re-raise an OSError as a one-line EnvironmentFault that says what was kept."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise EnvironmentFault(
            f"{doing}: {reason}; {status}, repair the directory and run again to continue"
        ) from error


def write_atomically(path: Path, content: bytes, status: str = "every finished cell is kept") -> None:
    """Write ``content`` so that ``path`` holds either all of it or its previous content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}.partial")
    with disk_faults(f"cannot write {path}", status):
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


def source_text(path: Path) -> str:
    r"""Decode a Python file by its byte-order mark or declared encoding, with lines ended by \\n."""
    try:
        return importlib.util.decode_source(path.read_bytes())
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: expected a file that can be read, got {error}") from error


def parse_json(text: str | bytes, name: str = "text") -> Any:
    """Parse JSON; raise if an object repeats a key, because programs differ in which of the two values they take.

    Raises:
        InputError: The text is not JSON, nests too deeply, or repeats a key, which the message names.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)  # noqa: TID251
    except RecursionError:
        raise InputError(f"{name}: expected JSON, got objects nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{name}: expected JSON with each key once, got {error}") from None


def read_object(path: Path, remedy: str, largest: int | None = None) -> dict[str, Any]:
    """The JSON object in a file of at most ``largest`` bytes.

    Raises:
        DamagedFile: The file is larger or has no JSON object; ``remedy`` says what to do.
    """
    with disk_faults(f"cannot read {path}"), path.open("rb") as file:
        text = file.read() if largest is None else file.read(largest + 1)
    if largest is not None and len(text) > largest:
        raise DamagedFile(f"{path}: expected at most {largest} bytes, got more")
    reason = ""
    try:
        value = parse_json(text)
    except InputError as error:
        value, reason = None, f" ({error})"
    if not isinstance(value, dict):
        raise DamagedFile(f"{path}: expected a JSON object, got {text[:40]!r}{reason}; {remedy}")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name, value in pairs:
        if name in table:
            raise ValueError(f"the key {name[:80]!r} twice in one object")
        table[name] = value
    return table


def difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> str:
    """List every entry that differs, as ``alpha is 2 there and 4 here``."""
    parts = []
    for name in sorted({*old, *new}):
        old_value, new_value = old.get(name), new.get(name)
        if isinstance(old_value, Mapping) and isinstance(new_value, Mapping):
            if old_value != new_value:
                parts.append(difference(old_value, new_value, prefix=f"{name}."))
        elif old_value != new_value:
            parts.append(f"{prefix}{name} is {old_value!r} there and {new_value!r} here")
    return ", ".join(parts)
