"""The content of the ``record.json`` of a claim from elsewhere, as plain values of the expected types.

Nothing of the claim is imported, and nothing that it states is trusted: other keys are dropped, characters that a
terminal would obey are replaced, and a file of another shape is refused in one line.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from icllab.core.files import DamagedFile, parse_json, read_object
from icllab.lab.claim import SIZES
from icllab.lab.outcomes import Outcome, worst

if TYPE_CHECKING:
    from icllab.lab.checks import Verdict

LARGEST = 2 << 20
"""Bytes of a ``record.json`` from elsewhere."""
BY_AUTHOR = "as its author recorded it; nothing of it was run here"
_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)
_NOT_FINITE = ("inf", "-inf", "nan")

Shape: TypeAlias = Any
"""A type; a tuple of types; ``[shape]``, a list; ``{"key": shape}``, an object; ``{str: shape}``, one of any names."""
_FINDING = {"id": str, "what": str, "outcome": Outcome, "about": str} | dict.fromkeys(
    ("predicted", "measured", "standard_error", "tolerance"), float
)
_ENTRY = {"measure": int, "commit": str, "created": str, "machine": str, "seconds": float, "digest": str}
_CONTROL = {"verdict": Outcome, "fails": [str]}
_JUDGED = _ENTRY | {"verdict": Outcome, "findings": [_FINDING], "controls": {str: _CONTROL}}
_CLAIM = {"title": str, "sentence": str, "conditions": str, "references": str} | {
    "sources": [str],
    "sizes": [SIZES],
    "controls": {str: str},
}


def content(path: Path) -> dict[str, Any]:
    """The claim's statement under ``claim``, and the entries of its sizes.

    Raises:
        DamagedFile: The file is not JSON of that shape.
    """
    value = read_object(path, "restore it", LARGEST)
    shapes = {"claim": _CLAIM, SIZES[0]: _ENTRY, **dict.fromkeys(SIZES[1:], _JUDGED)}
    try:
        entries = {name: _taken(value[name], shape, name) for name, shape in shapes.items() if name in value}
        for name in {*entries} - {"claim"}:
            _require_consistent(entries[name], name)
    except ValueError as error:
        raise DamagedFile(f"{path}: expected {error}; its author writes it with `icl check --record`") from None
    return entries


def verdict(claim: str, findings: list[Mapping[str, Any]], note: str) -> "Verdict":
    """The verdict of stated findings.

    Raises:
        DamagedFile: They are none.
    """
    from icllab.lab.checks import Finding, Verdict

    try:
        rows = [_taken(row, _FINDING, "finding") for row in findings]
    except ValueError as error:
        raise DamagedFile(f"{claim}: expected {error}") from None
    for row in rows:
        row |= {name: float(row[name]) for name, shape in _FINDING.items() if shape is float}
        row["outcome"] = Outcome(row["outcome"])
    return Verdict(claim, tuple(Finding(**row) for row in rows), (note,))


def _taken(value: Any, shape: Shape, place: str) -> Any:
    """Select the parts of a value that a shape names; raise ValueError with the expected shape."""
    if isinstance(shape, list):
        _require(isinstance(value, list), f"a list of {place}", value)
        return [_taken(part, shape[0], place) for part in value]
    if isinstance(shape, dict) and str in shape:
        _require(isinstance(value, dict), f"an object of {place}", value)
        for name in value:  # of a control, which names a directory
            _require(bool(_NAME.fullmatch(name)), f"plain names of {place}", name)
        return {name: _taken(part, shape[str], place) for name, part in value.items()}
    if isinstance(shape, dict):
        _require(isinstance(value, dict), f"an object as {place}", value)
        for name in shape:
            _require(name in value, f"{name!r} in {place}", list(value))
        return {name: _taken(value[name], part, f"{place}.{name}") for name, part in shape.items()}
    if isinstance(shape, tuple) or shape is Outcome:
        words = [str(word) for word in shape]
        _require(isinstance(value, str) and value in words, f"{place} among {', '.join(words)}", value)
        return value
    if shape is str:
        _require(isinstance(value, str), f"text as {place}", value)
        return "".join(letter if letter.isprintable() or letter == "\n" else "�" for letter in value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if shape is int:
        _require(number and isinstance(value, int), f"an integer as {place}", value)
        return value
    _require((number and math.isfinite(value)) or value in _NOT_FINITE, f"a number as {place}", value)
    return value


def _require_consistent(entry: Mapping[str, Any], size: str) -> None:
    """Raise ValueError unless the verdict follows from the findings, and origins are text or JSON lists of texts."""
    if "verdict" in entry:
        outcome = worst(Outcome(row["outcome"]) for row in entry["findings"])
        _require(entry["verdict"] == outcome, f"the verdict at {size} to be that of its findings", entry["verdict"])
    for name in ("commit", "machine"):
        if entry[name].startswith("["):
            texts = parse_json(entry[name], f"{name} at {size}")
            _require(all(isinstance(text, str) for text in texts), f"a list of texts as {name}", entry[name])


def _require(met: bool, requirement: str, value: Any) -> None:
    if not met:
        raise ValueError(f"{requirement}, got {ascii(value)[:60]}")
