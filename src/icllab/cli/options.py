"""The options of ``icl run``, from the command line and from a TOML file with the same names."""

import dataclasses
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from icllab.cli.formulas import numbers
from icllab.cli.parameters import RunOptions
from icllab.core.errors import InputError, expected, require_known

_RANGE = re.compile(r"(log:)?[-+.\de]+:[-+.\de]+:\d+")
_KINDS: dict[str, tuple[Any, str]] = {
    "set": (dict, "a table of axes"),
    "limit": (int | float, "a number of seconds"),
    **dict.fromkeys(("fresh", "dry_run"), (bool, "true or false")),
    **dict.fromkeys(("seeds", "workers", "heads"), (int, "an integer")),
}


def merged(options: RunOptions, config: Path | None) -> dict[str, Any]:
    """The options that are given; the command line beats the file ``config``, axis by axis in ``set``."""
    names = [field.name for field in dataclasses.fields(options) if field.name not in ("json", "debug", "set")]
    command_line = {
        name: value for name in names if (value := getattr(options, name)) is not None and value is not False
    }
    table = {} if config is None else _table(config, ["set", *names])
    values = table | command_line | {"set": table.get("set", {}) | axes(options.set or ())}
    return values | ({"shard": _shard(values["shard"])} if "shard" in values else {})


def _table(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """The options of a TOML file; unknown names and wrong types raise InputError."""
    try:
        table = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise InputError(f"--config: expected a TOML file, got {str(path)!r}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--config: expected TOML in {path}, got a file that is not: {error}") from error
    for name, value in table.items():
        require_known(f"option in {path}:", name, names)
        kind, description = _KINDS.get(name, (str, "text"))
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise expected(f"{path}: {name}", description, value)
    for axis, values in table.get("set", {}).items():
        values = values if isinstance(values, list) else [values]
        if not all(isinstance(v, int | float | str) and not isinstance(v, bool) for v in values):
            raise expected(f"{path}: set.{axis}", "a number, a name, or a list of them", values)
        table["set"][axis] = values
    return table


def _shard(text: str) -> tuple[int, int]:
    """``2/8`` as two numbers."""
    number, _, shards = text.partition("/")
    if not (number.isdecimal() and shards.isdecimal() and 1 <= int(number) <= int(shards)):
        raise expected("--shard", "i/N with i from 1 to N", text, "--shard 2/8 is the second of eight")
    return int(number), int(shards)


def axes(texts: Sequence[str]) -> dict[str, list[str]]:
    """Map each axis of ``axis=value,value`` to its values; raise InputError for another form."""
    values_of: dict[str, list[str]] = {}
    for text in texts:
        name, sign, values = text.partition("=")
        if not (name and sign and values):
            raise expected("--set", "axis=value or axis=value,value", text)
        if name in values_of:
            raise expected(f"--set {name}", "each axis once", text, "join its values with commas")
        values_of[name] = [number for value in values.split(",") for number in _values(name, value.strip())]
    return values_of


def _values(axis: str, text: str) -> list[str]:
    """One value, or the values of a range ``start:stop:count`` or ``log:start:stop:count``."""
    if not _RANGE.fullmatch(text):
        return [text]
    return [str(int(number)) if number.is_integer() else repr(number) for number in numbers(axis, text)]
