"""Files that are whole or not there: atomic writes, and the operating system's refusals in one line."""

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
    """A stored file is not what was written (exit status 4)."""


@contextlib.contextmanager
def disk_faults(doing: str, status: str = "every finished cell is kept") -> Iterator[None]:
    """Turn the operating system's refusal into one line that says what still stands."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise EnvironmentFault(f"{doing}: {reason}; {status}, mend the directory and run again to go on") from error


def write_atomically(path: Path, content: bytes, status: str = "every finished cell is kept") -> None:
    """Write ``content`` so that ``path`` holds either all of it or what it held before."""
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
    """The text of a Python file as Python reads it: by its byte-order mark or declared encoding, lines ended by \\n."""
    try:
        return importlib.util.decode_source(path.read_bytes())
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: expected a file that can be read, got {error}") from error


def parse_json(text: str | bytes, name: str = "text") -> Any:
    """Parse JSON in which no object has a key twice: programs differ in which of the two values they take.

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
    """``alpha is 2 there and 4 here``, for every entry that differs."""
    parts = []
    for name in sorted({*old, *new}):
        old_value, new_value = old.get(name), new.get(name)
        if isinstance(old_value, Mapping) and isinstance(new_value, Mapping):
            if old_value != new_value:
                parts.append(difference(old_value, new_value, prefix=f"{name}."))
        elif old_value != new_value:
            parts.append(f"{prefix}{name} is {old_value!r} there and {new_value!r} here")
    return ", ".join(parts)
