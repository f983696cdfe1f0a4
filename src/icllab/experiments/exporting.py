"""Results for other programs: tables, netCDF, and chains as ArviZ has them."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from icllab.core.errors import InputError, expected, require_known
from icllab.core.files import write_atomically
from icllab.experiments.requests import OUT

if TYPE_CHECKING:
    import xarray as xr


def _csv(dataset: "xr.Dataset") -> bytes:
    from icllab.experiments.tables import as_csv, table

    return as_csv(table(dataset))


def _parquet(dataset: "xr.Dataset") -> bytes:
    from icllab.experiments.tables import as_parquet, table

    return as_parquet(table(dataset))


def _netcdf(dataset: "xr.Dataset") -> bytes:
    from icllab.experiments.store import packed
    from icllab.experiments.trees import spelled

    return packed(dataset.assign_attrs(spelled(dataset.attrs)))


def _arviz(dataset: "xr.Dataset") -> bytes:
    from icllab.experiments.trees import as_netcdf, tree

    return as_netcdf(tree(dataset))


FORMATS: dict[str, Callable[["xr.Dataset"], bytes]] = {
    "csv": _csv,
    "parquet": _parquet,
    "netcdf": _netcdf,
    "arviz": _arviz,
}
"""Name -> the bytes of a file."""
_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".nc": "netcdf"}


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
    """Write results as a file for other programs.

    ``csv`` and ``parquet`` are one table, which :func:`read_table <icllab.experiments.tables.read_table>` brings back
    to the same bits. ``netcdf`` is the Dataset as it is. ``arviz`` is a tree of Datasets in the groups of ArviZ, in a
    netCDF file.

    Args:
        results: A Dataset, of :func:`icl.run <icllab.experiments.contract.run>` or of a diagnostic; or a claim's name,
            a directory of results, or a ``.nc`` file.
        to: The file.
        format: ``csv``, ``parquet``, ``netcdf`` or ``arviz``; None: by the file's suffix.
        force: Whether to replace a file that is there.
        size: Size of a claim's results; None: the largest there.
        out: Where a claim's results are.
        control: One of the claim's negative controls.
        claims: A folder with claims of your own.

    Returns:
        The file.

    Raises:
        InputError: The file is there, the format unknown, or it cannot hold the results.
        CellsMissing: Results are not complete.
        EnvironmentFault: Parquet without pyarrow, or the disk refuses.
    """
    to = Path(to)
    if format is None and to.suffix not in _SUFFIXES:
        raise expected("to", f"a file that ends in {', '.join(_SUFFIXES)}", str(to), "or name the format")
    chosen = _SUFFIXES[to.suffix] if format is None else format
    require_known("format", chosen, FORMATS)
    if (_SUFFIXES.get(to.suffix) or chosen) != (chosen if chosen != "arviz" else "netcdf"):
        raise expected("to", f"a file whose suffix is not that of another format than {chosen}", str(to))
    if to.parent.name == "cells" and (to.parent.parent / "configuration.json").exists():
        raise expected("to", "a file outside the cells of a run", str(to))
    if to.is_dir():
        raise expected("to", "a file", f"the directory {to}")
    if to.exists() and not force:
        raise InputError(
            f"{to}: expected a file that is not there yet, got one that is; `--force` (force=True) replaces it"
        )
    dataset = _dataset(results, size=size, out=out, control=control, claims=claims)
    write_atomically(to, FORMATS[chosen](dataset), "nothing was changed")
    return to


def _dataset(
    results: "xr.Dataset | str | Path",
    *,
    size: str | None,
    out: str | Path,
    control: str | None,
    claims: str | Path | None,
) -> "xr.Dataset":
    if isinstance(results, str | Path):
        from icllab.experiments.locations import located

        return located(str(results), size=size, out=out, control=control, claims=claims)[0]
    if not hasattr(results, "data_vars"):
        raise expected("results", "a Dataset, a claim's name or a path", type(results).__name__)
    if size is not None or control is not None:
        raise InputError("expected a size and a control with a claim, got them with a Dataset")
    return results
