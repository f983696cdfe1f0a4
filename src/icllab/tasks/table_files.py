"""Read numbers from a file: columns of a CSV or Parquet table, chosen by name or index, with clear errors."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from icllab.core.errors import EnvironmentFault, InputError, expected, install_command, require_path, unknown

Place: TypeAlias = str | PathLike[str]
Chosen: TypeAlias = Sequence[str | int] | None
_HINT = "choose other columns with columns=[...], or fill or drop missing values first"
_UNNAMED = re.compile(r"(Unnamed: \d+|__index_level_\d+__)?")
_COUNTERS = ("index", "rownames")
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True)
class Columns:
    """The columns of a file.

    Attributes:
        entries: Name -> the values, as a list or a pyarrow column, in the order of the file.
        index: Names of the columns that number or name the rows, which are inputs only if they are chosen.
    """

    entries: Mapping[str, Any]
    index: frozenset[str]


def read_csv(
    path: Place, delimiter: str = ",", *, decimal: str = ".", comment: str | None = None, encoding: str = "utf-8"
) -> Columns:
    """All columns of a CSV file with a header."""
    import pandas as pd

    for name, character in (("delimiter", delimiter), ("decimal", decimal), ("comment", comment)):
        if character is not None and (not isinstance(character, str) or len(character) != 1):
            raise expected(name, "one character", character)
    if comment in (delimiter, decimal):
        raise expected("comment", "a character that differs from the delimiter and the decimal sign", comment)
    _require_file(path)
    try:
        frame = pd.read_csv(
            fspath(path),
            sep=delimiter,
            comment=comment,
            encoding=encoding,
            header=None,
            dtype=str,
            na_filter=False,
        )
    except UnicodeDecodeError as error:
        hint = "give the encoding it was saved in, such as encoding='latin-1' or 'utf-16'"
        raise InputError(f"{Path(path).name}: expected text in {encoding}, got other bytes ({error}); {hint}") from None
    except (ValueError, OSError, LookupError) as error:  # pandas' own errors are of these kinds
        hint = "; comment='#' leaves out lines that begin with it" if _begins_with_comment(path, comment) else ""
        raise _unreadable(path, error, hint) from None
    names, rows = list(map(str, frame.iloc[0])), frame.iloc[1:]
    entries = {name: _parsed(rows[i].tolist(), decimal) for i, name in enumerate(names)}
    return _columns(path, names, entries, ())


def read_parquet(path: Place) -> Columns:
    """All columns of a Parquet file."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise EnvironmentFault(f"reading Parquet needs pyarrow ({error}): {install_command('tables')}") from None
    _require_file(path)
    try:
        table = parquet.read_table(fspath(path))
    except (ValueError, OSError) as error:  # pyarrow's own errors are of these kinds
        raise _unreadable(path, error) from None
    index = (table.schema.pandas_metadata or {}).get("index_columns", ())
    names = table.column_names
    return _columns(path, names, dict(zip(names, table.columns, strict=True)), [i for i in index if isinstance(i, str)])


def _require_file(path: Place) -> None:
    require_path("path", path)
    if not Path(path).is_file():
        raise expected("path", "a file that exists", fspath(path))


def _unreadable(path: Place, error: Exception, hint: str = "") -> InputError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return InputError(f"{Path(path).name}: expected a table that can be read; {reason}{hint}")


def _begins_with_comment(path: Place, comment: str | None) -> bool:
    try:
        with Path(path).open("rb") as file:
            return comment is None and file.read(1) == b"#"
    except OSError:
        return False


def _columns(path: Place, names: list[str], entries: Mapping[str, Any], index: Sequence[str]) -> Columns:
    for name in names:
        if names.count(name) > 1:
            raise expected(f"{Path(path).name}, columns", "names that differ", name)
    unnamed = [name for name in names if _UNNAMED.fullmatch(name)]
    counters = [name for name in _COUNTERS if name in entries and _counts(entries[name])]
    return Columns(entries, frozenset({*index, *unnamed, *counters}))


def _counts(column: Any) -> bool:
    """True if the entries number the rows, from 0 or from 1."""
    entries = _listed(column)
    return entries in (list(range(len(entries))), list(range(1, len(entries) + 1)))


def _listed(column: Any) -> list[Any]:
    return column if isinstance(column, list) else column.to_pylist()


def _parsed(texts: list[str], decimal: str) -> list[Any]:
    """Parse texts that are numbers, exactly to the last bit; a column of true and false becomes booleans."""
    if all(text.lower() in _BOOLEANS for text in texts):
        return [_BOOLEANS[text.lower()] for text in texts]
    return [_number(text, decimal) for text in texts]


def _number(text: str, decimal: str) -> int | float | str:
    if "_" in text or (decimal != "." and "." in text):  # Python's digits in groups, or a thousand's point
        return text
    for kind in (int, float):
        try:
            return kind(text.replace(decimal, "."))
        except ValueError:
            continue
    return text


def choice(columns: Columns, path: Place, target: str | int, selection: Chosen) -> tuple[tuple[str, ...], str]:
    """Names of the inputs and of the target; by default the inputs are all other columns except those of the index."""
    names = list(columns.entries)

    def named(argument: str, column: str | int) -> str:
        if isinstance(column, int):
            if not -len(names) <= column < len(names):
                raise expected(argument, f"a name, or an index below {len(names)}", column)
            return names[column]
        if column not in names:
            raise unknown(f"column of {Path(path).name}", column, names)
        return column

    goal = named("target", target)
    if selection is None:
        inputs = [name for name in names if name != goal and name not in columns.index]
    else:
        inputs = [named("columns", column) for column in selection]
    if goal in inputs or len(set(inputs)) != len(inputs) or not inputs:
        raise expected("columns", f"at least one column, each once, without the target {goal!r}", inputs)
    return tuple(inputs), goal


def numbers(columns: Columns, path: Place, name: str) -> Float[np.ndarray, " row"]:
    """A column as float64; raise, with column and row, for text, missing values and integers that it would round."""
    from decimal import Decimal

    entries, source = _listed(columns.entries[name]), f"{Path(path).name}, column {name!r}"
    for row, value in enumerate(entries, 1):
        if not isinstance(value, bool | int | float | Decimal):
            hint = "decimal=',' reads decimal commas" if _has_decimal_comma(value) else _HINT
            raise expected(f"{source}, row {row}", "a number", value, hint)
        if isinstance(value, int) and abs(value) > 2**53 and (abs(value) > 2**1000 or int(float(value)) != value):
            raise expected(f"{source}, row {row}", "an integer up to 2^53", value, "subtract a constant first")
    values = np.array(entries, dtype=np.float64)
    require_finite(Path(path).name, name, values)
    return values


def _has_decimal_comma(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\s*[-+]?\d+,\d+\s*", value) is not None


def require_finite(source: str, name: str, values: Float[np.ndarray, " row"]) -> None:
    """Raise if a column has NaN or infinity, with the number of the first such row, counted from 1."""
    rows = np.flatnonzero(~np.isfinite(values))
    if rows.size:
        raise expected(f"{source}, column {name!r}, row {rows[0] + 1}", "a number", float(values[rows[0]]), _HINT)
