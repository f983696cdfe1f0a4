r"""Results on disk and in memory: one checksummed file per cell, and one Dataset of all cells.

A cell file is a 512-byte text block, then HDF5 (netCDF-4). The block names the SHA-256 of all that follows, because
HDF5 itself returns a flipped bit without a word. Files are written under a temporary name, fsynced and moved into
place: a reader sees a whole file or none, and any number of processes may share a directory.

    DIR/<claim>/<size>/configuration.json      what a cell depends on besides its coordinates
    DIR/<claim>/<size>/grids/<digest>.json     every grid that was requested
    DIR/<claim>/<size>/cells/dim=40,tau=1.5.nc
    DIR/<claim>/<size>/failures/dim=80,tau=2.txt   the traceback of a cell that failed, until it is there
    DIR/<claim>/<size>/scratch/dim=80,tau=2/   checkpoints of a cell under way
    DIR/<claim>/<size>/checkpoints/dim=40,tau=1.5/   checkpoints that a cell leaves for others
    DIR/<claim>/<size>/results.nc              all cells with the claim's theory; plain netCDF
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import xarray as xr

from icllab.core.errors import CellsMissing, IclError, InputError, expected
from icllab.core.files import DamagedFile, difference, disk_faults, parse_json, read_object, write_atomically
from icllab.core.grid import Coordinates, Grid, Named, Value, canonical, spelled
from icllab.core.lazy import renamed
from icllab.lab.claim import Claim, completed
from icllab.lab.netcdf import from_bytes, payload

_REMEDY = "restore it, or start again with --fresh"
Block: TypeAlias = dict[str, tuple[Value, ...]]
"""Axis -> values inside a cell."""


class Store:
    """The cells of one claim at one size, under one configuration."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._checked: set[str] = set()  # configurations of cells that belong to this store

    @classmethod
    def open(cls, root: Path, configuration: Mapping[str, Any]) -> "Store":
        """The store at ``root``, made if it is not there; one of another configuration raises InputError."""
        store = cls(root)
        with disk_faults(f"cannot use {root} for results"):
            (root / "cells").mkdir(parents=True, exist_ok=True)
            (root / "grids").mkdir(exist_ok=True)
        path = root / "configuration.json"
        if not path.exists():
            if any((root / "cells").glob("*.nc")):
                raise InputError(
                    f"{root}: expected a configuration.json beside its cells, found none; restore it, choose another "
                    "--out, or --fresh to set the cells aside"
                )
            write_atomically(path, _json(configuration))
        if changes := difference(completed(store.configuration()), completed(parse_json(_json(configuration)))):
            raise InputError(
                f"{root} holds results of another configuration: {changes}; "
                "choose another --out, or --fresh to set the old ones aside"
            )
        return store

    @classmethod
    def existing(cls, root: Path) -> "Store":
        """The store at ``root``, which must be there."""
        if not (root / "configuration.json").is_file():
            raise InputError(f"{root}: expected a directory of results with a configuration.json, found none")
        return cls(root)

    def configuration(self) -> dict[str, Any]:
        """The settings of the cells besides their coordinates; version 1 if they state none, as in version 0.2."""
        return {"version": 1, **read_object(self.root / "configuration.json", _REMEDY)}

    def _grid_file(self, grid: Grid) -> tuple[Path, bytes]:
        content = _json({"static": grid.static, "traced": grid.traced, "block": grid.block})
        return self.root / "grids" / f"{hashlib.sha256(content).hexdigest()[:16]}.json", content

    def request(self, grid: Grid) -> None:
        """Note that ``grid`` is requested; a requested cell that is not there is *missing*."""
        path, content = self._grid_file(grid)
        with disk_faults(f"cannot read {path}"):
            if path.exists() and path.read_bytes() == content:
                return
        write_atomically(path, content)

    def withdraw(self, grid: Grid) -> None:
        """Remove a request; an empty store then takes any configuration."""
        with disk_faults(f"cannot withdraw a grid from {self.root}"):
            self._grid_file(grid)[0].unlink(missing_ok=True)
            if not any((self.root / "grids").iterdir()) and not any((self.root / "cells").iterdir()):
                (self.root / "configuration.json").unlink(missing_ok=True)

    def requests(self) -> list[Grid]:
        """Every grid that was requested."""
        with disk_faults(f"cannot read {self.root}"):
            paths = sorted((self.root / "grids").glob("*.json"))
        return [_grid(path) for path in paths]

    def path(self, cell: Coordinates) -> Path:
        """The file of a cell."""
        name = ",".join(f"{axis}={value}" for axis, value in sorted(cell.items())) or "single"
        # A name is for people; one that a file system would not take is replaced by its digest.
        if len(name) > 120 or not name.isascii() or any(c in name for c in '/\\:*?"<>|\0'):
            name = hashlib.sha256(name.encode()).hexdigest()[:32]
        return self.root / "cells" / f"{name}.nc"

    def read(self, cell: Coordinates) -> xr.Dataset | None:
        """Read a finished cell, or None; raise DamagedFile for a damaged file or another cell's."""
        path = self.path(cell)
        with disk_faults(f"cannot read {path}"):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                return None
        dataset = from_bytes(content, path)
        self._require_same(cell, dataset.attrs)
        if "configuration" in dataset.attrs:  # cells of version 0.3 are of one configuration with those of today
            configuration = completed(parse_json(dataset.attrs["configuration"]))
            settings = {name: configuration[name] for name in ("generator", "matmul_precision")}
            dataset.attrs |= {"configuration": json.dumps(configuration, sort_keys=True), **settings}
        return dataset

    def _require_same(self, cell: Coordinates, attributes: Mapping[str, Any]) -> None:
        """Raise if a file holds another cell, or another configuration: a file can be copied or renamed."""
        path, coordinates = self.path(cell), parse_json(attributes.get("cell", "null"), f"{self.path(cell)}: cell")
        if coordinates is not None and coordinates != parse_json(json.dumps(cell)):
            raise DamagedFile(f"{path}: expected the cell {cell}, got {coordinates}; `icl run` computes it again")
        configuration = attributes.get("configuration")
        if configuration is None or configuration in self._checked:
            return
        stated = parse_json(configuration, f"{path}: configuration")
        if changes := difference(completed(stated), completed(self.configuration())):
            raise DamagedFile(
                f"{path}: expected a cell of the configuration of its directory, got another: {changes}; "
                "`icl run` computes it again"
            )
        self._checked.add(configuration)

    def block_to_measure(self, cell: Coordinates, block: Block) -> Block | None:
        """The values at which a cell must be measured; None if the stored cell has all of ``block``.

        A cell that lacks a value is measured again at the union of the stored and the requested values. A damaged
        file is set aside.
        """
        try:
            dataset = self.read(cell)
        except DamagedFile:
            path = self.path(cell)
            # Another process may just have done so.
            with disk_faults(f"cannot set {path} aside"), contextlib.suppress(FileNotFoundError):
                path.replace(path.with_suffix(".nc.damaged"))
            dataset = None
        if dataset is None:
            return dict(block)
        values = {axis: tuple(map(canonical, dataset[axis].values)) for axis in block}
        if all(set(block[axis]) <= set(values[axis]) for axis in block):
            return None
        return {axis: tuple(dict.fromkeys((*values[axis], *block[axis]))) for axis in block}

    def has(self, cell: Coordinates, block: Block) -> bool:
        """True if a sound file has a cell at all values of a block; no file is changed."""
        try:
            dataset = self.read(cell)
        except DamagedFile:
            return False
        return dataset is not None and all(set(block[a]) <= set(map(canonical, dataset[a].values)) for a in block)

    def put(self, cell: Coordinates, content: bytes) -> None:
        """Keep a finished cell as the bytes of its file, whose checksum is checked."""
        path, failure = self.path(cell), self.failure(cell)
        payload(content, path)
        write_atomically(path, content)
        with contextlib.suppress(OSError):
            failure.unlink(missing_ok=True)
            failure.parent.rmdir()

    def note_failure(self, cell: Coordinates, text: str) -> None:
        """Keep the traceback of a cell that failed."""
        path = self.failure(cell)
        with disk_faults(f"cannot note in {self.root} why a cell failed"):
            path.parent.mkdir(exist_ok=True)
        write_atomically(path, text.encode())

    def failure(self, cell: Coordinates) -> Path:
        """The file that says why a cell failed."""
        return self.root / "failures" / f"{self.path(cell).stem}.txt"

    def scratch(self, cell: Coordinates) -> Path:
        """The directory in which a cell may keep checkpoints until it is finished."""
        return self.root / "scratch" / self.path(cell).stem

    def checkpoints(self, cell: Coordinates) -> Path:
        """The directory in which a cell may leave checkpoints."""
        return self.root / "checkpoints" / self.path(cell).stem

    def set_aside(self) -> Path | None:
        """Rename the store and return its new path, or None if no store exists."""
        if not self.root.exists():
            return None
        target = self.root.with_name(
            f"{self.root.name}.before-{time.strftime('%Y%m%dT%H%M%S')}-{time.time_ns() % 10**9}"
        )
        with disk_faults(f"cannot set {self.root} aside"):
            self.root.rename(target)
        return target

    def collect(self, claim: Claim, grids: Sequence[Grid]) -> xr.Dataset:
        """All cells of the grids as one Dataset, without the claim's theory.

        Raises:
            CellsMissing: Cells are not there.
            DamagedFile: A cell's bytes are not those that were written.
        """
        cells, missing = [], []
        for cell, block in _requests(grids):
            dataset = self.read(cell)
            if dataset is None or any(not v <= set(map(canonical, dataset[axis].values)) for axis, v in block.items()):
                missing.append(cell)
            else:
                cells.append((cell, dataset))
        if missing:
            failures = [path for cell in missing if (path := self.failure(cell)).exists()]
            reason = f"; {len(failures)} have failed, and {failures[0]} tells why of one" if failures else ""
            raise CellsMissing(
                f"{claim.name}: expected {len(cells) + len(missing)} cells, {len(missing)} are missing (the first: "
                f"{spelled(missing[0])}){reason}; `icl run {claim.name}` with the same --out computes them"
            )
        return assemble(claim, grids, cells)


def _requests(grids: Sequence[Grid]) -> Iterator[tuple[Coordinates, dict[str, set[Value]]]]:
    """Each cell of the grids once, with the union of the values that they ask of it."""
    cells: dict[str, tuple[Coordinates, dict[str, set[Value]]]] = {}
    for grid in grids:
        for cell in grid.cells():
            _, block = cells.setdefault(json.dumps(cell, sort_keys=True), (cell, {}))
            for axis, values in grid.inside(cell).items():
                block.setdefault(axis, set()).update(values)
    yield from cells.values()


def values_of_block(
    claim: Claim, size: str, values: Mapping[str, Named], block: Mapping[str, Sequence[Any]], names_read: set[str]
) -> dict[str, Named]:
    """Select the values of a block where ``measure`` returned all values of the size.

    It did so along an axis whose name it has not read, and where it returned as many values as the size has.

    Raises:
        InputError: A value is not one of the size's.
    """
    selection, of_size = dict(values), claim.grid(size).traced
    for axis, requested in block.items():
        known = of_size[axis]
        if tuple(map(canonical, requested)) == known or (axis in names_read and len(requested) == len(known)):
            continue
        for name, (axes, array) in selection.items():
            if axis in axes and np.shape(array)[axes.index(axis)] == len(known):
                if strange := [value for value in requested if canonical(value) not in known]:
                    raise expected(axis, f"some of {list(known)}, which `measure` returns whatever is set", strange)
                places = [known.index(canonical(value)) for value in requested]
                selection[name] = (axes, np.take(np.asarray(array), places, axes.index(axis)))
    return selection


def cell_dataset(
    claim: Claim, values: Mapping[str, Named], block: Mapping[str, Sequence[Any]], attributes: Mapping[str, Any]
) -> xr.Dataset:
    """The values of ``measure`` as a Dataset over the axes of a block; raise for another shape or an unknown name."""
    sizes = {axis: len(coordinates) for axis, coordinates in block.items()}
    for name, (axes, array) in values.items():
        claim.vocabulary.quantity(name)
        if np.shape(array) != tuple(sizes.get(axis, -1) for axis in axes):
            raise IclError(
                f"measure: expected values over traced axes {sizes}, "
                f"got {name!r} with axes {axes} and shape {np.shape(array)}"
            )
    variables = {name: (axes, np.asarray(array)) for name, (axes, array) in values.items()}
    return xr.Dataset(variables, {axis: list(v) for axis, v in block.items()}, dict(attributes))


def assemble(claim: Claim, grids: Sequence[Grid], cells: Sequence[tuple[Coordinates, xr.Dataset]]) -> xr.Dataset:
    """One Dataset over the union of the grids' axes; NaN where nothing was requested."""
    parts = [{**grid.static, **grid.traced} for grid in grids]
    names = (*claim.static, *grids[0].traced)
    axes = {axis: sorted({value for part in parts for value in part[axis]}) for axis in names}
    whole = xr.Dataset(coords=axes)
    for cell, dataset in cells:
        block = {str(axis): [v for v in index if canonical(v) in axes[axis]] for axis, index in dataset.indexes.items()}
        place = {axis: cell[axis] for axis in claim.static} | block
        for name, variable in dataset.sel(block).data_vars.items():
            if name not in whole:
                dims = (*claim.static, *map(str, variable.dims))
                whole[name] = (dims, np.full([len(axes[axis]) for axis in dims], np.nan))
            target = whole[name]
            inner = target.dims[len(claim.static) :]
            target.loc[{axis: place[str(axis)] for axis in target.dims}] = variable.transpose(*inner).values
    attributes = shared_attributes([dataset.attrs for _, dataset in cells])
    attributes["names"] = json.dumps(claim.vocabulary.described())
    return xr.Dataset({name: values.variable for name, values in whole.data_vars.items()}, axes, attributes)


def shared_attributes(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Attributes of all cells: a shared value, or a JSON list of values; latest date, sum of seconds, largest peak.

    Of cells that an older version has measured, CPU time and memory are not known, and neither are those of the run.
    """
    attributes: dict[str, Any] = {}
    for key in dict.fromkeys(key for cell in cells for key in cell):
        values = sorted({str(cell.get(key, "")) for cell in cells})
        if key == "created":
            attributes[key] = values[-1]
        elif key in ("seconds", "cpu_seconds", "peak_bytes"):
            if all(key in cell for cell in cells):
                attributes[key] = (max if key == "peak_bytes" else sum)(float(cell[key]) for cell in cells)
        elif key != "cell":
            attributes[key] = values[0] if len(values) == 1 else json.dumps(values)
    return attributes


def fixed_values(dataset: xr.Dataset) -> dict[str, Any]:
    """The numbers that are not axes, from the configuration the results were computed under."""
    return parse_json(dataset.attrs["configuration"], "configuration")["fixed"]


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, sort_keys=True, indent=1) + "\n").encode()


def _grid(path: Path) -> Grid:
    """The grid in a file of ``grids/``."""
    content = read_object(path, _REMEDY)
    try:
        parts = {part: {axis: tuple(v) for axis, v in content[part].items()} for part in ("static", "traced")}
        return Grid(**parts, block=content["block"])
    except (LookupError, TypeError, AttributeError):
        raise DamagedFile(
            f"{path}: expected a requested grid, got {str(content)[:40]!r}; remove it, and repeat the `icl run` that "
            "requested it"
        ) from None


_OTHERS = {"judging": "judge predicted verdict_at", "drawing": "picture pictures figure_files"}
_OTHERS |= {"netcdf": "netcdf_bytes to_bytes"}
__getattr__ = renamed(
    __name__, {name: f"icllab.lab.{module}.{name}" for module, names in _OTHERS.items() for name in names.split()}
)
