"""The options of ``icl run``, from the command line and from a TOML file with the same names."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any

from icllab.cli.formulas import numbers
from icllab.core.errors import InputError, expected, require_known

_RANGE = re.compile(r"(log:)?[-+.\de]+:[-+.\de]+:\d+")

_KINDS: dict[str, tuple[type | UnionType, str]] = {
    "size": (str, "a name"),
    "set": (dict, "a table of axes"),
    "seeds": (int, "an integer"),
    "out": (str, "a path"),
    "workers": (int, "an integer"),
    "scheduler": (str, "an address"),
    "limit": (int | float, "a number of seconds"),
    "shard": (str, "i/N"),
    "device": (str, "a name"),
    "precision": (str, "a name"),
    "distributed": (str, "HOST:PORT,N,I or auto"),
    "fresh": (bool, "true or false"),
    "control": (str, "a name"),
    "claims": (str, "a path"),
}


def typed(*, set: Sequence[str] | None, **others: Any) -> dict[str, Any]:
    """What was given on the command line, and nothing else; ``set`` as axis -> values, still text."""
    given = {name: value for name, value in others.items() if value is not None}
    return {**given, "set": _axes(set or ())}


def from_file(path: Path) -> dict[str, Any]:
    """The options of a TOML file; unknown names and wrong types are refused."""
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise InputError(f"--config: expected a TOML file, got {str(path)!r}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--config: expected TOML in {path}, got a file that is not: {error}") from error
    for name, value in table.items():
        require_known(f"option in {path}:", name, _KINDS)
        kind, wanted = _KINDS[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise expected(f"{path}: {name}", wanted, value)
    for axis, values in table.get("set", {}).items():
        values = values if isinstance(values, list) else [values]
        if not all(isinstance(v, int | float | str) and not isinstance(v, bool) for v in values):
            raise expected(f"{path}: set.{axis}", "a number, a name, or a list of them", values)
        table["set"][axis] = values
    return table


def merged(command_line: Mapping[str, Any], file: Mapping[str, Any]) -> dict[str, Any]:
    """The command line beats the file, axis by axis in ``set``; ``shard`` as two numbers."""
    both = {**file, **command_line, "set": {**file.get("set", {}), **command_line.get("set", {})}}
    return both | ({"shard": _shard(both["shard"])} if "shard" in both else {})


def _shard(text: str) -> tuple[int, int]:
    """``2/8`` as two numbers."""
    number, _, shards = text.partition("/")
    if not (number.isdecimal() and shards.isdecimal() and 1 <= int(number) <= int(shards)):
        raise expected("--shard", "i/N with i from 1 to N", text, "--shard 2/8 is the second of eight")
    return int(number), int(shards)


def _axes(texts: Sequence[str]) -> dict[str, list[str]]:
    axes: dict[str, list[str]] = {}
    for text in texts:
        name, sign, values = text.partition("=")
        if not (name and sign and values):
            raise expected("--set", "axis=value or axis=value,value", text)
        if name in axes:
            raise expected(f"--set {name}", "each axis once", text, "join its values with commas")
        axes[name] = [one for value in values.split(",") for one in _values(name, value.strip())]
    return axes


def _values(axis: str, text: str) -> list[str]:
    """A value; or those of a range, ``start:stop:count`` or ``log:start:stop:count``."""
    if not _RANGE.fullmatch(text):
        return [text]
    return [str(int(number)) if number.is_integer() else repr(number) for number in numbers(axis, text)]
