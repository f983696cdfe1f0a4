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
import io
import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import xarray as xr

from icllab.core import calls
from icllab.core.errors import CellsMissing, EnvironmentFault, IclError, InputError, expected
from icllab.core.files import DamagedFile, difference, disk_faults, parse_json, read_object, write_atomically
from icllab.core.grid import Coordinates, Grid, Named, Value, canonical, spelled
from icllab.core.spelling import strict
from icllab.lab import checks
from icllab.lab.checks import Finding, Verdict, withheld
from icllab.lab.claim import SCHEMA, SIZES, Claim, Theory, completed
from icllab.lab.intervals import comparisons
from icllab.lab.job import Request
from icllab.lab.outcomes import NO_VERDICT, Outcome, kept_verdict
from icllab.lab.placement import SEED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_REMEDY = "restore it, or start again with --fresh"
PREDICTED = ("_theory", "_line")
"""Ends of the names of what is predicted."""
_BLOCK = 512
_LONGEST = 255
_STORED = "expected numbers, times or texts that netCDF stores"
Block: TypeAlias = dict[str, tuple[Value, ...]]
"""Axis -> values inside a cell."""


def netcdf_bytes(dataset: xr.Dataset) -> bytes:
    """A Dataset as plain netCDF-4; what that cannot store raises InputError."""
    with netcdf_refusals(dataset):
        return _netcdf_bytes(dataset)


def _netcdf_bytes(dataset: xr.Dataset) -> bytes:
    from xarray.backends import H5NetCDFStore

    # As Dataset.to_netcdf, but for its lock: on a dask worker that one is the scheduler's, named by a file we have not.
    target = io.BytesIO()
    backend = H5NetCDFStore.open(target, mode="w", lock=False)
    dataset.dump_to_store(backend)
    backend.close()
    return target.getvalue()


@contextlib.contextmanager
def netcdf_refusals(dataset: xr.Dataset) -> Iterator[None]:
    """Name the variable or attribute of a Dataset that netCDF cannot store, in one line."""
    for text, part in _parts(dataset):
        if reason := _silent_loss(part):
            raise InputError(f"{text}: {_STORED}, got {reason}")
    try:
        yield
    except Exception as error:  # whatever xarray, h5netcdf and h5py raise
        for text, part in _parts(dataset):
            try:
                _netcdf_bytes(part)
            except Exception as reason:
                raise InputError(f"{text}: {_STORED}, got {_content(part)} ({_line(reason)})") from error
        raise InputError(f"results: {_STORED}, got a Dataset that it cannot ({_line(error)})") from error


def _parts(dataset: xr.Dataset) -> Iterator[tuple[str, xr.Dataset]]:
    """Every attribute and every variable of a Dataset alone, with its name in words."""
    for key, value in dataset.attrs.items():
        yield f"attribute {key!r}", xr.Dataset(attrs={key: value})
    for name, variable in dataset.variables.items():
        yield f"variable {name!r}", xr.Dataset({name: (variable.dims, variable.values)})
        for key, value in variable.attrs.items():
            yield f"variable {name!r}, attribute {key!r}", xr.Dataset(attrs={key: value})
        yield (
            f"variable {name!r} with its attributes",
            xr.Dataset({name: (variable.dims, variable.values, variable.attrs)}),
        )


def _silent_loss(part: xr.Dataset) -> str:
    """What is written without an error and is not there, or another value, when it is read; empty if nothing is."""
    for name in (*part.attrs, *part.variables, *part.dims):
        if not isinstance(name, str) or not name or "/" in name or len(name.encode()) > _LONGEST:
            return f"a name that is no text of 1 to {_LONGEST} bytes without '/'"
    for variable in part.variables.values():
        if variable.dtype.kind == "O":
            texts = [isinstance(value, str) for value in variable.values.ravel().tolist()]
            if any(texts) and not all(texts):
                return "texts beside values that are none"
    return ""


def _content(part: xr.Dataset) -> str:
    """Type of the one attribute or variable of a part."""
    kinds = [type(value).__name__ for value in part.attrs.values()]
    return (kinds or [f"values of type {variable.dtype}" for variable in part.variables.values()])[0]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


def to_bytes(dataset: xr.Dataset) -> bytes:
    """A Dataset as the bytes of a checksummed file."""
    payload = netcdf_bytes(dataset)
    return _header(payload) + payload


def from_bytes(content: bytes, name: object) -> xr.Dataset:
    """The Dataset in the bytes of a checksummed file; ``name`` is for the message."""
    return xr.load_dataset(io.BytesIO(payload(content, name)), engine="h5netcdf")


def payload(content: bytes, name: object) -> bytes:
    """The HDF5 bytes of a checksummed file; bytes other than those written raise DamagedFile."""
    body = content[_BLOCK:]
    if content[:_BLOCK] != _header(body):
        raise DamagedFile(
            f"{name}: expected a file with the checksum in its first {_BLOCK} bytes, got {len(content)} bytes that "
            "do not match it; `icl run` computes this cell again"
        )
    return body


def _header(body: bytes) -> bytes:
    digest = hashlib.sha256(body).hexdigest()
    return f"icl-lab results, schema {SCHEMA}\nsha256 of what follows byte {_BLOCK}: {digest}\n".encode().ljust(_BLOCK)


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
        """What the cells depend on besides their coordinates; of version 0.2, which states no VERSION, it is 1."""
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
        """Forget a request; a store that is left empty takes any configuration."""
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
        """A finished cell; None where there is none; a damaged one, or another's, raises DamagedFile."""
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
        """The values at which a cell is to be measured; None where the stored cell has all of ``block``.

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
        """Whether a sound file has a cell at all values of a block; nothing is changed."""
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
        """Move the whole store to another name, which is returned; None where there is no store."""
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
    """What ``measure`` returned as a Dataset over the axes of a block; another shape or an unknown name raises."""
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
    """One value where all cells agree, else all as JSON; the latest ``created``, sums of seconds, the largest peak.

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


def predicted(claim: Claim, dataset: xr.Dataset) -> xr.Dataset:
    """A measured Dataset with the claim's theory, and with symbol, meaning and unit of every axis and quantity."""
    dataset = ascending(claim, dataset)
    if claim.theory is not None:
        dataset = _with_theory(claim, claim.theory, dataset)
    dataset = dataset.copy()
    for name in dataset.variables:
        row = claim.vocabulary.row(str(name))
        dataset[name].attrs = {"symbol": row.symbol, "meaning": row.meaning, "unit": row.unit}
    return dataset.assign_attrs(names=json.dumps(claim.vocabulary.described()))


def _with_theory(claim: Claim, theory: Theory, dataset: xr.Dataset) -> xr.Dataset:
    """Assign the predictions, with NaN at missing values of an axis if the theory raises without them.

    A theory that raises then too, or because a quantity has no number, predicts nothing: the attribute ``unpredicted``
    says what it needs.
    """
    try:
        return theory(unnamed(dataset)).assign_attrs(dataset.attrs)
    except Exception as error:  # whatever a claim's theory raises
        lacking = missing_values(claim, dataset)
        with contextlib.suppress(Exception):
            whole = theory(unnamed(completed_axes(dataset, lacking)))
            return whole.sel({axis: dataset[axis].values for axis in lacking}).assign_attrs(dataset.attrs)
        advice = _needed(claim, dataset, lacking, error, lambda part: theory(unnamed(completed_axes(dataset, part))))
        if not advice:
            raise
        return dataset.assign_attrs(unpredicted=advice)


def ascending(claim: Claim, dataset: xr.Dataset) -> xr.Dataset:
    """The Dataset with the values of every axis of the claim's sizes in ascending order, but for the seeds."""
    axes = {axis for axes in claim.sizes.values() for axis in axes} & {str(axis) for axis in dataset.indexes} - {SEED}
    return dataset.sortby([axis for axis in sorted(axes) if not dataset.indexes[axis].is_monotonic_increasing])


def missing_values(claim: Claim, dataset: xr.Dataset) -> Block:
    """Axis -> the values of the data's size that the data lack; seeds apart.

    A claim's ``reduce`` may leave out values: then an axis with several values lacks none.
    """
    size = parse_json(dataset.attrs.get("configuration", "{}"), "configuration").get("size")
    if size not in claim.sizes:
        return {}
    grid, lacking = claim.grid(size), {}
    for axis, values in {**grid.static, **grid.traced}.items():
        if axis != SEED and axis in dataset.indexes and (claim.reduce is None or dataset.sizes[axis] == 1):
            present = set(map(canonical, dataset[axis].values))
            lacking[axis] = tuple(value for value in values if value not in present)
    return {axis: values for axis, values in lacking.items() if values}


def blank_quantities(claim: Claim, dataset: xr.Dataset) -> list[str]:
    """The measured quantities of a claim without a finite number."""
    numbers = {name: dataset[name].values for name in _measured(claim, dataset)}
    return [name for name, values in numbers.items() if values.dtype.kind == "f" and not np.isfinite(values).any()]


def _measured(claim: Claim, dataset: xr.Dataset) -> list[str]:
    """The names of a claim's quantities in a Dataset but those of predictions."""
    return [name for name in claim.vocabulary.quantities if name in dataset and not name.endswith(PREDICTED)]


def completed_axes(dataset: xr.Dataset, lacking: Block) -> xr.Dataset:
    """The Dataset with further values of axes, at which every number is NaN."""
    return dataset.reindex({axis: sorted([*dataset[axis].values.tolist(), *v]) for axis, v in lacking.items()})


def unnamed(dataset: xr.Dataset) -> xr.Dataset:
    """A copy with what a theory and a check may know: no attribute that tells a control from the claim."""
    attributes = {name: dataset.attrs[name] for name in ("claim", "names") if name in dataset.attrs}
    if "configuration" in dataset.attrs:
        configuration = parse_json(dataset.attrs["configuration"], "configuration") | {"control": None}
        attributes["configuration"] = json.dumps(configuration)
    return dataset.copy().drop_encoding().drop_attrs(deep=False).assign_attrs(attributes)


def fixed_values(dataset: xr.Dataset) -> dict[str, Any]:
    """The numbers that are not axes, from the configuration the results were computed under."""
    return parse_json(dataset.attrs["configuration"], "configuration")["fixed"]


def verdict_at(claim: Claim, size: str, dataset: xr.Dataset, notes: Sequence[str] = ()) -> Verdict:
    """The verdict of :func:`judge` on results of a size; at ``smoke`` there is none, whatever the findings would be."""
    return Verdict(claim.name, (), (*notes, NO_VERDICT)) if size == SIZES[0] else judge(claim, dataset, notes)


def judge(claim: Claim, dataset: xr.Dataset, notes: Sequence[str] = ()) -> Verdict:
    """The verdict of a claim's check on a Dataset; a check that raises is a fault of the claim's file.

    Data may lack values of an axis that the size has, which stand as NaN where other runs measured some of them. If a
    check raises without them and does not with NaN, it needs them: the verdict is undecided. So is a finding that
    fails without them and not with NaN.
    """
    unpredicted, dataset = dataset.attrs.get("unpredicted", ""), ascending(claim, unnamed(dataset))
    lacking, blank = missing_values(claim, dataset), blank_quantities(claim, dataset)
    try:
        findings = _findings(claim, dataset)
        if blank and blank == _measured(claim, dataset):
            findings = withheld(findings, f"needs a number of {', '.join(blank)}")
        if lacking and any(finding.outcome is Outcome.FAILS for finding in findings):
            findings = _withheld(claim, dataset, lacking, findings)
        return Verdict(claim.name, tuple(findings), tuple(notes))
    except Exception as error:
        advice = unpredicted or _needed(
            claim, dataset, lacking, error, lambda part: _findings(claim, _completed(claim, dataset, part))
        )
        if advice:
            return Verdict(claim.name, (checks.unmeasured(advice),), tuple(notes))
        if isinstance(error, IclError):
            raise
        raise EnvironmentFault(
            f"{claim.name}: expected findings from its check, got {type(error).__name__}: {error}"
        ) from error


def _findings(claim: Claim, dataset: xr.Dataset) -> Sequence[Finding]:
    """The findings of the check; with a single seed, which shows no error, they are undecided."""
    assert claim.check is not None  # the registry has set it
    findings = claim.check(dataset)
    if any(finding.outcome is Outcome.FAILS for finding in findings):  # by more than one of so many by chance?
        with comparisons(sum(finding.standard_error != 0 for finding in findings)):
            findings = claim.check(dataset)
    if dataset.sizes.get(SEED) == 1:
        single = [finding.about == "claim" and not finding.seedless for finding in findings]
        several = withheld(findings, "one seed shows no error; more seeds would tell")
        findings = [w if alone else f for f, w, alone in zip(findings, several, single, strict=True)]
    return findings


def _withheld(claim: Claim, dataset: xr.Dataset, lacking: Block, findings: Sequence[Finding]) -> Sequence[Finding]:
    """Withhold a finding that fails, but does not with NaN at the missing values."""
    try:
        whole = _findings(claim, _completed(claim, dataset, lacking))
        failing = {finding.id for finding in whole if finding.outcome is Outcome.FAILS}
    except Exception:  # the check takes no NaN, and tells nothing of what it needs
        failing = {finding.id for finding in findings}
    points = [axis for axis in lacking if axis in claim.outputs and dataset.sizes[axis] == 1]
    undecided = withheld(findings, checks.needed(lacking))
    return [
        w
        if f.outcome is Outcome.FAILS and (f.id not in failing or any(f"{axis}=" not in f.id for axis in points))
        else f
        for f, w in zip(findings, undecided, strict=True)
    ]


def _needed(
    claim: Claim, dataset: xr.Dataset, lacking: Block, error: Exception, repeat: Callable[[Block], object]
) -> str:
    """Say what a theory or a check that raised needs; empty if its error has another reason.

    Missing values are the reason if with NaN in their place nothing is raised, or another error, or one elsewhere. A
    quantity without a finite number is taken for the reason if there is one, and the error is named.
    """
    for part in (*({axis: values} for axis, values in lacking.items()), *([lacking] if len(lacking) > 1 else [])):
        try:
            repeat(part)
        except Exception as another:
            if _origin(another) == _origin(error):
                continue
        return checks.needed(_narrowed(part, error))
    if blank := blank_quantities(claim, dataset):
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return f"needs a number of {', '.join(blank)}; without one: {text}"
    return ""


def _origin(error: Exception) -> tuple[object, ...]:
    """Type and place of an error; of a lookup also the key."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [(frame.filename, frame.lineno) for frame in frames if frame.filename not in (__file__, calls.__file__)]
    key = str(error).partition(". ")[0] if isinstance(error, KeyError) else ""  # what follows lists variables
    return type(error), lines, key


def _narrowed(part: Block, error: Exception) -> Block:
    """The missing value that a lookup did not find; all of them after another error."""
    keys = {str(key) for link in (error, error.__cause__) if isinstance(link, KeyError) for key in link.args}
    exact = {axis: tuple(v for v in values if str(v) in keys) for axis, values in part.items()}
    return {axis: values for axis, values in exact.items() if values} or part


def _completed(claim: Claim, dataset: xr.Dataset, lacking: Block) -> xr.Dataset:
    """The Dataset with NaN at missing values of axes, and with the theory there."""
    return unnamed(predicted(claim, completed_axes(dataset, lacking)))


def picture(claim: Claim, dataset: xr.Dataset) -> "Figure":
    """The claim's figure of a Dataset, in the look in force."""
    from icllab.figures.style import context

    assert claim.figure is not None  # the registry has set it
    with context():
        return claim.figure(dataset)


def pictures(
    drawings: "Sequence[tuple[str, Callable[[], Figure]]]", style: str = "screen", width: str | float | None = None
) -> "Figure":
    """The figure of a claim, which has a name and draws itself, in a style; or those of several side by side."""
    from icllab.figures.layout import side_by_side, sized
    from icllab.figures.style import drawn_as, named_look

    if not drawings:
        raise expected("results", "at least one claim", [])
    with drawn_as(named_look(style, width)):
        return sized(drawings[0][1]()) if len(drawings) == 1 else side_by_side(drawings)


def figure_files(claim: Claim, dataset: xr.Dataset, stem: Path) -> tuple[list[Path], list[str]]:
    """The files of the figure; or a note where it cannot be drawn, since a verdict needs none."""
    from icllab.figures import save

    try:
        figure = picture(claim, dataset)
    except Exception as error:  # whatever a claim's figure raises
        return [], [f"no figure: it raised {type(error).__name__}: {error}"]
    return list(save(figure, stem)), []


def judgement(request: Request, verdict: Verdict) -> dict[str, Any]:
    """A verdict as data, with the sentence, the size and the directory of the results."""
    about = {name: getattr(request, name) for name in ("size", "control")}
    return {**verdict.as_dict(), "sentence": request.claim().sentence, **about, "results": request.root}


def note_verdict(request: Request, verdict: Verdict) -> None:
    """Keep a verdict beside the results that it is about."""
    entry = {**judgement(request, verdict), "measure": request.claim().version}
    write_atomically(request.root / "verdict.json", (json.dumps(strict(entry), indent=1) + "\n").encode())


def noted_verdict(root: Path) -> dict[str, Any] | None:
    """The verdict that is kept beside results, as :func:`kept_verdict` reads it; None where there is none."""
    path = root / "verdict.json"
    if not path.is_file():
        return None
    entry = read_object(path, _REMEDY)
    try:
        return entry | {"verdict": kept_verdict(entry)}
    except (LookupError, TypeError, ValueError, AttributeError):
        raise DamagedFile(f"{path}: expected a verdict with its findings; `icl run` writes it again") from None


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
