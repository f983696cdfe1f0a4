"""Results for other programs: tables through pandas, netCDF through xarray, and the groups of ArviZ."""

import csv
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import icllab
from icllab.core.errors import EnvironmentFault, InputError, expected, install_command, require_known
from icllab.core.files import write_atomically
from icllab.lab.job import OUT

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

_ORIGIN = {"inference_library": "icl-lab", "inference_library_version": icllab.__version__}
_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".nc": "netcdf"}


def table(dataset: "xr.Dataset") -> "pd.DataFrame":
    """A row for every combination of coordinates, and a column for every axis, quantity and error.

    A quantity that does not depend on an axis is repeated along it. Quantities whose axes do not fit into one another
    (a curve along ``tau`` and a line along ``tau_line``) have rows of their own, one block after the other, in which
    the columns of the other block are empty. ``table(dataset).attrs`` are the Dataset's.
    """
    import pandas as pd

    sizes, names = list(map(str, dataset.sizes)), list(map(str, dataset.variables))
    axes = {frozenset(map(str, variable.dims)) for variable in dataset.variables.values() if variable.size}
    frames = []
    for block in sorted(axes, key=lambda block: sorted(map(sizes.index, block))):
        if any(block < larger for larger in axes):
            continue
        part = dataset[[name for name in names if set(dataset[name].dims) <= block]]
        if block:
            frames.append(part.to_dataframe(dim_order=[axis for axis in sizes if axis in block]).reset_index())
        else:
            frames.append(pd.DataFrame([{name: part[name].item() for name in part.variables}]))
    frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=names)
    order = [*(axis for axis in sizes if axis in frame), *(name for name in names if name not in sizes)]
    frame = frame.reindex(columns=order)
    columns = {name: attributes for name in order if (attributes := _plain(dataset[name].attrs))}
    frame.attrs = {**_plain(dataset.attrs), "columns": columns}
    return frame


def tree(dataset: "xr.Dataset") -> "xr.DataTree":
    """Convert a Dataset to a DataTree with the groups of ArviZ; the root keeps its attributes.

    For chains of a sampler, ``posterior`` has the draws, over ``chain`` and ``draw``, and ``sample_stats`` the
    other quantities. For results of a claim, ``observed_data`` has the measurements, with their errors, and
    ``predictions`` closed forms and lines.
    """
    import xarray as xr

    draws = {str(name) for name, v in dataset.data_vars.items() if {"chain", "draw"} <= set(v.dims)}
    groups: dict[str, list[str]] = {}
    for name in map(str, dataset.data_vars):
        if draws:
            group = "posterior" if name in draws else "sample_stats"
        else:
            group = "predictions" if "_theory" in name or name.endswith("_line") else "observed_data"
        groups.setdefault(group, []).append(name)
    nodes = {group: dataset[names].drop_attrs(deep=False).assign_attrs(_ORIGIN) for group, names in groups.items()}
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs=_text(dataset.attrs)), **nodes})


def _plain(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes as JSON has them."""
    values = {str(name): value.tolist() if hasattr(value, "tolist") else value for name, value in attributes.items()}
    for name, value in values.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            requirement = "numbers, text and lists"
            raise InputError(
                f"attribute {name!r}: expected {requirement}, got what JSON cannot spell: {error}"
            ) from None
    return values


def _text(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes for netCDF: values that are neither text nor numbers become JSON."""
    return {
        name: value if isinstance(value, str | int | float) and not isinstance(value, bool) else json.dumps(value)
        for name, value in _plain(attributes).items()
    }


def _csv(dataset: "xr.Dataset") -> bytes:
    """The table without attributes, its texts in quotes; ``pandas.read_csv(file)`` reads it."""
    frame = table(dataset)
    for name, column in frame.items():
        if getattr(column.dtype, "kind", "") == "c":
            raise expected(f"variable {name!r}", "real numbers for CSV", "complex ones", "a .nc file holds them")
    content = frame.to_csv(index=False, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    return content.encode()


def _parquet(dataset: "xr.Dataset") -> bytes:
    try:
        return table(dataset).to_parquet(engine="pyarrow", index=False)
    except ImportError as error:
        raise EnvironmentFault(f"Parquet needs pyarrow; `{install_command('tables')}` brings it") from error
    except (ValueError, TypeError, NotImplementedError) as error:  # of pyarrow
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"results: expected columns of numbers, times or texts for Parquet, got others ({reason})"
        ) from None


def _netcdf(dataset: "xr.Dataset") -> bytes:
    from icllab.lab.results import netcdf_bytes

    return netcdf_bytes(dataset.assign_attrs(_text(dataset.attrs)))


def _arviz(dataset: "xr.Dataset") -> bytes:
    from icllab.lab.results import netcdf_refusals

    target, attributes = io.BytesIO(), _text(dataset.attrs)
    with netcdf_refusals(dataset.assign_attrs(attributes)):
        tree(dataset).to_netcdf(target, engine="h5netcdf")
    return target.getvalue()


FORMATS: dict[str, Callable[["xr.Dataset"], bytes]] = {
    "csv": _csv,
    "parquet": _parquet,
    "netcdf": _netcdf,
    "arviz": _arviz,
}
"""Name -> the bytes of a file."""


def export(
    results: "xr.Dataset | str | Path",
    to: str | Path,
    *,
    format: str | None = None,
    force: bool = False,
    size: str | None = None,
    out: str | Path = OUT,
    control: str | None = None,
    claims: str | Path | None = None,
) -> Path:
    """Write results as a file for other programs and return its path.

    ``csv`` and ``parquet`` are one :func:`table`. ``netcdf`` is the Dataset as it is. ``arviz`` is a :func:`tree` of
    Datasets in the groups of ArviZ, in a netCDF file.

    Args:
        results: A Dataset, of :func:`icl.run <icllab.lab.api.run>` or of a diagnostic; or a claim's name, a directory
            of results, or a ``.nc`` file.
        to: The file.
        format: ``csv``, ``parquet``, ``netcdf`` or ``arviz``; None: by the file's suffix.
        force: Whether to replace a file that is there.
        size: Size of a claim's results; None: the largest there.
        out: Where a claim's results are.
        control: One of the claim's negative controls; None: the claim itself.
        claims: A folder with claims of your own; None: the book's alone.

    Raises:
        InputError: The file is there, the format unknown, or it cannot hold the results.
        CellsMissing: Results are not complete.
        EnvironmentFault: Parquet without pyarrow, or the disk refuses.
    """
    to = Path(to)
    if format is None and to.suffix not in _SUFFIXES:
        raise expected("to", f"a file that ends in {', '.join(_SUFFIXES)}", str(to), "or name the format")
    kind = _SUFFIXES[to.suffix] if format is None else format
    require_known("format", kind, FORMATS)
    if (_SUFFIXES.get(to.suffix) or kind) != (kind if kind != "arviz" else "netcdf"):
        raise expected("to", f"a file whose suffix is not that of another format than {kind}", str(to))
    if to.parent.name == "cells" and (to.parent.parent / "configuration.json").exists():
        raise expected("to", "a file outside the cells of a run", str(to))
    if to.is_dir():
        raise expected("to", "a file", f"the directory {to}")
    if to.exists() and not force:
        raise InputError(f"{to}: expected a new file, got an existing one; `--force` (force=True) replaces it")
    if isinstance(results, str | Path):
        from icllab.lab.api import locate

        dataset = locate(str(results), size=size, out=out, control=control, claims=claims)[0]
    elif not hasattr(results, "data_vars"):
        raise expected("results", "a Dataset, a claim's name or a path", type(results).__name__)
    elif size is not None or control is not None:
        raise InputError("expected a size and a control with a claim, got them with a Dataset")
    else:
        dataset = results
    write_atomically(to, FORMATS[kind](dataset), "nothing was changed")
    return to
