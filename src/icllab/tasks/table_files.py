"""Numbers from a file: columns of a CSV or Parquet table, chosen by name or index, with clear refusals."""

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from icllab.core.errors import EnvironmentFault, InputError, expected, install_command, unknown

Columns: TypeAlias = Mapping[str, Any]
"""Name -> a pyarrow column, in the order of the file."""

Place: TypeAlias = str | PathLike[str]
Chosen: TypeAlias = Sequence[str | int] | None
_HINT = "choose other columns with columns=[...], or fill or drop what is missing first"


def read_csv(path: Place, delimiter: str = ",") -> Columns:
    """All columns of a CSV file with a header."""
    csv = _pyarrow("csv")
    return _read(path, lambda: csv.read_csv(fspath(path), parse_options=csv.ParseOptions(delimiter=delimiter)))


def read_parquet(path: Place) -> Columns:
    """All columns of a Parquet file."""
    parquet = _pyarrow("parquet")
    return _read(path, lambda: parquet.read_table(fspath(path)))


def _pyarrow(part: str) -> Any:
    try:
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise EnvironmentFault(f"reading a table needs pyarrow ({error}): {install_command('tables')}") from None
    return getattr(pyarrow, part)


def _read(path: Place, read: Any) -> Columns:
    if not Path(path).is_file():
        raise expected("path", "a file that exists", fspath(path))
    try:
        table = read()
    except (ValueError, OSError) as error:  # pyarrow's own errors are of these kinds
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"{Path(path).name}: expected a table that can be read; {reason}") from None
    for name in table.column_names:
        if table.column_names.count(name) > 1:
            raise expected(f"{Path(path).name}, columns", "names that differ", name)
    return dict(zip(table.column_names, table.columns, strict=True))


def choice(columns: Columns, path: Place, target: str | int, selection: Chosen) -> tuple[tuple[str, ...], str]:
    """Names of the inputs and of the target."""
    names = list(columns)

    def named(argument: str, column: str | int) -> str:
        if isinstance(column, int):
            if not -len(names) <= column < len(names):
                raise expected(argument, f"a name, or an index below {len(names)}", column)
            return names[column]
        if column not in columns:
            raise unknown(f"column of {Path(path).name}", column, names)
        return column

    goal = named("target", target)
    inputs = (
        [n for n in names if n != goal] if selection is None else [named("columns", column) for column in selection]
    )
    if goal in inputs or len(set(inputs)) != len(inputs) or not inputs:
        raise expected("columns", f"at least one column, each once, without the target {goal!r}", inputs)
    return tuple(inputs), goal


def numbers(columns: Columns, path: Place, name: str) -> Float[np.ndarray, " row"]:
    """A column as float64; text and missing values are refused with column and row."""
    column, source = columns[name], f"{Path(path).name}, column {name!r}"
    import pyarrow.types as kinds

    kind, entries = column.type, column.to_pylist()
    for row, value in enumerate(entries, 1):
        if not _is_number(value):
            raise expected(f"{source}, row {row}", "a number", value, _HINT)
    if not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind) or kinds.is_decimal(kind)):
        raise expected(source, "numbers", str(kind), _HINT)
    values = np.array(entries, dtype=np.float64)
    require_finite(Path(path).name, name, values)
    return values


def require_finite(source: str, name: str, values: Float[np.ndarray, " row"]) -> None:
    """Raise if a column has NaN or infinity; the error names the first such row, counted from 1."""
    rows = np.flatnonzero(~np.isfinite(values))
    if rows.size:
        raise expected(f"{source}, column {name!r}, row {rows[0] + 1}", "a number", float(values[rows[0]]), _HINT)


def _is_number(value: Any) -> bool:
    """Whether a text could be read as a number (or the value is one)."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
