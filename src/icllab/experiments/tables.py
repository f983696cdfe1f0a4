"""A Dataset as one table, and back to the same bits: CSV, or Parquet (extra ``[tables]``).

A table has a row for every combination of coordinates and a column for every axis, quantity and error. A quantity that
does not depend on an axis is repeated along it. Quantities whose axes do not fit into one another (a curve along
``tau`` and a line along ``tau_line``) have rows of their own, one block after the other, in which the columns of the
other block are empty. Labels, units and provenance stand above the table, in lines that begin with ``#``; of Parquet
they are the metadata.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from icllab.core.errors import EnvironmentFault, InputError, expected
from icllab.core.files import disk_faults

if TYPE_CHECKING:
    import xarray as xr

SCHEMA = 1
_TITLE = "icl-lab table, schema "
_METADATA = b"icl-lab"
_KINDS = "biufUO"


@dataclass(frozen=True)
class Table:
    """Rows and what they mean.

    Attributes:
        about: Plain data: ``blocks`` (the axes and lengths of each), ``columns`` (kind, axes, type and attributes of
            each) and ``attributes``.
        columns: Name -> one array for each block, None where the block has no such column.
    """

    about: Mapping[str, Any]
    columns: Mapping[str, Sequence[np.ndarray | None]]

    @property
    def rows(self) -> list[int]:
        """Number of rows of each block."""
        return [int(np.prod(list(sizes.values()), dtype=int)) for sizes in self.about["blocks"]]


def table(dataset: "xr.Dataset") -> Table:
    """The table of a Dataset.

    Raises:
        InputError: A variable is neither real numbers nor text, or an attribute is no plain data.
    """
    sizes = {str(name): int(size) for name, size in dataset.sizes.items()}
    blocks = [{axis: sizes[axis] for axis in axes} for axes in _largest(dataset)]
    columns: dict[str, list[np.ndarray | None]] = {}
    about: dict[str, dict[str, Any]] = {}
    numbers = {axis: dataset[axis].variable for axis in sizes if axis not in dataset.coords}
    others = {name: dataset.variables[name] for name in (*dataset.coords, *dataset.data_vars) if name not in sizes}
    for name, variable in {**{axis: dataset[axis].variable for axis in sizes}, **others}.items():
        kind = "number" if name in numbers else "axis" if name in sizes else "quantity"
        about[str(name)] = {
            "kind": "coordinate" if kind == "quantity" and name in dataset.coords else kind,
            "axes": {str(axis): size for axis, size in variable.sizes.items()},
            "type": _type(str(name), variable.values),
            **({"attributes": plain_attributes(f"attributes of {name}", variable.attrs)} if variable.attrs else {}),
        }
        columns[str(name)] = [
            variable.set_dims(block).transpose(*block).values.reshape(-1) if set(variable.dims) <= set(block) else None
            for block in blocks
        ]
    attributes = plain_attributes("attributes", dataset.attrs)
    return Table({"blocks": blocks, "columns": about, "attributes": attributes}, columns)


def dataset_of(content: Table, name: object) -> "xr.Dataset":
    """The Dataset that a table was made of; ``name`` is for the message."""
    import xarray as xr

    variables, coordinates = {}, set()
    for column, about in content.about["columns"].items():
        axes, values = about["axes"], np.empty(tuple(about["axes"].values()), about["type"])
        if values.size:
            block, sizes = next((i, b) for i, b in enumerate(content.about["blocks"]) if set(axes) <= set(b))
            rows = content.columns[column][block]
            assert rows is not None  # the block has the column
            whole = xr.Variable(tuple(sizes), rows.reshape(tuple(sizes.values())))
            values = whole.isel({axis: 0 for axis in sizes if axis not in axes}).transpose(*axes).values
        if about["kind"] != "number":
            variables[column] = (tuple(axes), values.astype(about["type"]), about.get("attributes", {}))
        if about["kind"] in ("axis", "coordinate"):
            coordinates.add(column)
    coords = {column: variables.pop(column) for column in list(variables) if column in coordinates}
    dataset = xr.Dataset(variables, coords, content.about["attributes"])
    again = table(dataset).columns
    for column, parts in content.columns.items():
        for ours, theirs in zip(again[column], parts, strict=True):
            if ours is not None and theirs is not None and not _same(ours, theirs):
                raise InputError(f"{name}: expected one value of {column} along the axes that it lacks, got several")
    return dataset


def as_csv(content: Table) -> bytes:
    """A table as UTF-8 text; numbers have as many digits as bring them back."""
    target = io.StringIO()
    target.write(f"# {_TITLE}{SCHEMA}\n")
    for name, value in content.about["attributes"].items():
        target.write(f"# attribute {_text(name)} {_text(value)}\n")
    for sizes in content.about["blocks"]:
        target.write(f"# block {_text(sizes)}\n")
    for name, about in content.about["columns"].items():
        target.write(f"# column {_text(name)} {_text(about)}\n")
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(content.columns)
    for i, rows in enumerate(content.rows):
        parts = [own[i] for own in content.columns.values()]
        writer.writerows(zip(*([""] * rows if part is None else _words(part) for part in parts), strict=True))
    return target.getvalue().encode()


def from_csv(text: bytes, name: object) -> Table:
    """The table in the bytes of a file that :func:`as_csv` made; ``name`` is for the message."""
    try:
        stream = io.StringIO(text.decode(), newline="")
        about: dict[str, Any] = {"blocks": [], "columns": {}, "attributes": {}}
        if stream.readline() != f"# {_TITLE}{SCHEMA}\n":
            raise ValueError("another first line")
        position = stream.tell()
        while (line := stream.readline()).startswith("# "):
            what, _, rest = line[2:].partition(" ")
            if what == "block":
                about["blocks"].append(json.loads(rest))
            else:
                key, end = json.JSONDecoder().raw_decode(rest)
                about[{"column": "columns", "attribute": "attributes"}[what]][key] = json.loads(rest[end:])
            position = stream.tell()
        stream.seek(position)
        header, *rows = csv.reader(stream)
        if header != list(about["columns"]):
            raise ValueError("other columns than its header says")
        words = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in header]
        return _cut(about, dict(zip(header, words, strict=True)), _values)
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise InputError(f"{name}: expected a table that icl exported, got {error}") from error


def as_parquet(content: Table) -> bytes:
    """A table as a Parquet file.

    Raises:
        EnvironmentFault: There is no pyarrow.
    """
    pyarrow, parquet = _pyarrow()
    arrays, fields = [], []
    for name, parts in content.columns.items():
        about = content.about["columns"][name]
        native = np.dtype(about["type"]).newbyteorder("=")
        text = native.kind in "UO"
        kind = pyarrow.string() if text else pyarrow.from_numpy_dtype(native)
        chunks = [
            pyarrow.nulls(rows, kind)
            if part is None
            else pyarrow.array(part.tolist() if text else part.astype(native), kind)
            for part, rows in zip(parts, content.rows, strict=True)
        ]
        arrays.append(pyarrow.chunked_array(chunks, kind))
        described = {key: str(value) for key, value in about.get("attributes", {}).items()}
        fields.append(pyarrow.field(name, kind, metadata=described))
    whole = json.dumps({"schema": SCHEMA, **content.about})
    schema = pyarrow.schema(fields, metadata={_METADATA: whole.encode()})
    target = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=schema), target)
    return target.getvalue()


def from_parquet(content: bytes, name: object) -> Table:
    """The table in the bytes of a file that :func:`as_parquet` made; ``name`` is for the message."""
    pyarrow, parquet = _pyarrow()
    try:
        read = parquet.read_table(io.BytesIO(content))
        about = json.loads((read.schema.metadata or {})[_METADATA])
        if about.pop("schema") != SCHEMA:
            raise ValueError("another schema")
        columns = {column: read.column(column).combine_chunks() for column in about["columns"]}
        return _cut(about, columns, lambda part, type: part.to_numpy(zero_copy_only=False).astype(type))
    except (ValueError, KeyError, TypeError, pyarrow.ArrowException) as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{name}: expected a table that icl exported, got {said}") from error


def read_table(path: str | Path) -> "xr.Dataset":
    """The Dataset in a ``.csv`` or ``.parquet`` file that ``icl export`` made, to the bit.

    Raises:
        InputError: It is no such file.
        EnvironmentFault: It cannot be read; or there is no pyarrow.
    """
    path = Path(path)
    readers = {".csv": from_csv, ".parquet": from_parquet}
    if path.suffix not in readers:
        raise expected("path", "a .csv or .parquet file", str(path))
    with disk_faults(f"cannot read {path}", "nothing was changed"):
        content = path.read_bytes()
    return dataset_of(readers[path.suffix](content, path), path)


def _largest(dataset: "xr.Dataset") -> list[tuple[str, ...]]:
    """The axes of variables that are not among those of another, each set once; what is empty has no rows."""
    every: dict[frozenset[str], tuple[str, ...]] = {}
    for variable in (dataset[name].variable for name in (*dataset.variables, *dataset.sizes)):
        axes = tuple(map(str, variable.dims))
        if variable.size:
            every.setdefault(frozenset(axes), axes)
    return [axes for own, axes in every.items() if not any(own < other for other in every)] or [()]


def _type(name: str, values: np.ndarray) -> str:
    """What brings the array back; an array that a table cannot hold is refused."""
    text = values.dtype.kind == "O" and all(isinstance(value, str) for value in values.flat)
    if values.dtype.kind not in _KINDS or (values.dtype.kind == "O" and not text) or values.dtype.str[2:] == "16":
        raise expected(name, "real numbers or text, as a table holds them", values.dtype.name, "netcdf has other types")
    return values.dtype.str


def plain_attributes(what: str, attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes as JSON has them; ``what`` is for the message."""

    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, np.generic | np.ndarray) else value

    found = {str(name): plain(value) for name, value in attributes.items()}
    try:
        json.dumps(found)
    except TypeError as error:
        raise InputError(
            f"{what}: expected numbers, text and lists, got one that JSON cannot spell: {error}"
        ) from error
    return found


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _words(values: np.ndarray) -> list[str]:
    """Every value as text; a float as the shortest that is the same float64."""
    if values.dtype.kind == "f":
        return list(map(repr, values.astype(np.float64).tolist()))
    return list(map(str, values.tolist()))


def _values(words: Sequence[str], type: str) -> np.ndarray:
    """What :func:`_words` was given."""
    kind = np.dtype(type).kind
    if kind == "b":
        if not set(words) <= {"True", "False"}:
            raise ValueError(f"{sorted(set(words))[0]!r} for True or False")
        return np.array([word == "True" for word in words], type)
    convert = {"f": float, "i": int, "u": int}.get(kind, str)
    return np.array([convert(word) for word in words], type)


def _cut(about: Mapping[str, Any], columns: Mapping[str, Any], values: Any) -> Table:
    """Columns over all rows as those of each block."""
    found: dict[str, list[np.ndarray | None]] = {name: [] for name in columns}
    start = 0
    whole = Table(about, found)
    for sizes, rows in zip(about["blocks"], whole.rows, strict=True):
        for name, column in columns.items():
            known = about["columns"][name]
            part = column[start : start + rows]
            found[name].append(values(part, known["type"]) if set(known["axes"]) <= set(sizes) else None)
        start += rows
    if any(len(column) != start for column in columns.values()):
        raise ValueError(f"other rows than the {start} that its header says")
    return whole


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise EnvironmentFault("Parquet needs pyarrow; `pip install 'icl-lab[tables]'` brings it") from error
    return pyarrow, pyarrow.parquet
