"""Fresh cells of a table: theories predict them first, and then they are measured and every theory is scored.

A fresh part is one file. Its cells are combinations of the table's levels that the table lacks, drawn by a key. The
distributions that every theory predicts, fitted to the training part as it is, are written before any value: there is
no value that a theory could read. An interrupted measurement goes on.
"""

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from icllab.arena import registry
from icllab.arena.prediction import Prediction
from icllab.arena.scores import Score, ranked
from icllab.core.errors import CellsMissing
from icllab.core.files import disk_faults, write_atomically

if TYPE_CHECKING:
    import xarray as xr

SHIPPED = "fresh.nc"


def path(table: str | Path, key: int) -> Path:
    """The file of a fresh part: in the table's folder if it ships with this key, else in ``icl-results``."""
    shipped = registry.folder(table) / SHIPPED
    if shipped.is_file() and read(shipped).attrs["key"] == key:
        return shipped
    return Path("icl-results", "arena", f"{registry.folder(table).name}-fresh-{key}.nc")


def read(file: Path) -> "xr.Dataset":
    """A fresh part."""
    import xarray as xr

    with disk_faults(f"cannot read {file}"):
        return xr.load_dataset(file, engine="h5netcdf", driver_kwds={"locking": False})


def predicted(table: str | Path, key: int, own: str | Path | None = None) -> "xr.Dataset":
    """A fresh part without values: the cells, and the predictions of all theories of the table and of ``own``.

    Raises:
        InputError: The table declares no levels, or too few combinations are left.
        CellsMissing: The training part is not measured.
    """
    import xarray as xr

    declared, dataset = registry.phenomenon(table), registry.record(table)
    cells = dataclasses.replace(declared, key=key).fresh_cells()
    train, _ = declared.parts(dataset)
    registry.require_measured(table, train, "the training part")
    theories = registry.theories(table, own)
    columns = {name: ("cell", np.array([cell[name] for cell in cells])) for name in declared.conditions}
    part = xr.Dataset(coords={"seed": np.arange(declared.seeds), **columns})
    of_theories = [
        np.stack(registry.predicted(theory, registry.fitted(theory, train), part).arrays(len(cells)))[..., 0]
        for theory in theories.values()
    ]
    stacked = np.stack(of_theories, axis=1)
    values = {name: (("theory", "cell"), stacked[i]) for i, name in enumerate(Prediction._fields)}
    shape = len(cells), declared.seeds
    values |= {"value": (("cell", "seed"), np.full(shape, np.nan)), "censored": (("cell", "seed"), np.zeros(shape))}
    about = {"title": [x.title for x in theories.values()], "null": [x.null for x in theories.values()]}
    labels = {"theory": list(theories)} | {name: ("theory", column) for name, column in about.items()}
    return part.assign(values).assign_coords(labels).assign_attrs(key=key)


def measured(table: str | Path, file: Path, dataset: "xr.Dataset", *, show: Callable[..., None]) -> "xr.Dataset":
    """Measure the cells that lack values; the file is written before the first and after each."""
    declared = dataclasses.replace(registry.phenomenon(table), key=int(dataset.attrs["key"]))
    measure, dataset, count = registry.measure(table), dataset.copy(deep=True), dataset.sizes["cell"]
    file.parent.mkdir(parents=True, exist_ok=True)
    _write(file, dataset)
    for i in np.flatnonzero(~np.isfinite(dataset["value"].values).all(1)).tolist():
        cell = {name: float(dataset[name].values[i]) for name in declared.conditions}
        seeds = [declared.measurement_seed(cell, seed) for seed in range(declared.seeds)]
        dataset["value"].values[i], dataset["censored"].values[i] = np.array(measure(cell, seeds), float).T
        _write(file, dataset)
        show(i + 1, count, str(cell), None)
    return dataset


def scores(dataset: "xr.Dataset") -> list[Score]:
    """Scores of the predictions in a fresh part, the best first.

    Raises:
        CellsMissing: Not all cells are measured.
    """
    value, censored = dataset["value"].values, dataset["censored"].values.astype(bool)
    if not np.isfinite(value).all():
        raise CellsMissing("expected all fresh cells, some are not measured yet")
    rows, predictions = {}, {}
    for name in dataset["theory"].values.tolist():
        theory = dataset.sel(theory=name)
        rows[name] = {"title": str(theory["title"].item()), "null": bool(theory["null"])}
        predictions[name] = Prediction(*(theory[field].values for field in Prediction._fields))
    return ranked(rows, predictions, value, censored)


def _write(file: Path, dataset: "xr.Dataset") -> None:
    target = io.BytesIO()
    dataset.to_netcdf(target, engine="h5netcdf")
    write_atomically(file, target.getvalue(), "the fresh part is what it was")
