"""Write complete results into the record of a claim, and judge the record."""

import dataclasses
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from icllab.core.errors import InputError, expected
from icllab.core.files import disk_faults, write_atomically
from icllab.core.grid import Grid
from icllab.lab import registry
from icllab.lab.claim import SIZES, Claim
from icllab.lab.evidence import Evidence
from icllab.lab.records import (
    UNLOCKED,
    about,
    configuration,
    data_digest,
    definition,
    group,
    groups,
    measured_by_another,
    phrase,
    plain_finding,
    read,
    record_file,
    reduced,
    size_faults,
)

if TYPE_CHECKING:
    import xarray as xr

LARGEST = 300_000
"""Bytes of the data of one size, or of one control, in a ``record.nc``."""
_ORIGIN = {"commit": "git_commit", "created": "created", "package": "package_version", "jax": "jax_version"}
_BOOK = {name: name for name in ("book", "book_commit")}
"""Where the claim is from; results of version 0.3, when the library had the claims, do not state it."""
_ROUNDING = {"jaxlib": "jaxlib_version", "numpy": "numpy_version", "processor": "processor"}
"""What also decides how numbers are rounded; results of version 0.3 state none of it."""
_ATTRIBUTES = (
    *("claim", "sources", "configuration", "precision", "key", "names", "measure_digest"),
    *(*_ORIGIN.values(), *_BOOK, *_ROUNDING.values(), "device", "machine"),
)
FEWER = (
    "fewer values of an axis, or `Claim(reduce=...)`, a function of the Dataset that keeps what the check and "
    "the figure need, make them fewer"
)


def size_note(claim: Claim, grid: Grid) -> str:
    """A note if the data of a run over a grid will hardly fit a record; else empty.

    A number takes four bytes before compression. Axes of a quantity besides those of the grid are not counted.
    """
    names = [name if isinstance(name, str) else name.name for name in claim.quantities]
    measured = [name for name in names if not name.endswith(("_theory", "_line"))]
    numbers = len(measured) * sum(math.prod(map(len, grid.inside(cell).values())) for cell in grid.cells())
    if claim.reduce is not None or 4 * numbers <= LARGEST:
        return ""
    return f"the run measures up to {numbers} numbers, {4 * numbers} bytes, and a record holds {LARGEST}; {FEWER}"


def write(claim: Claim, size: str, control: str | None, dataset: "xr.Dataset", folder: Any = None) -> Path:
    """Record complete results and judge the whole record again; a control goes to the entry of its size.

    Args:
        claim: The claim itself, not under the control.
        size: The size of the results; ``smoke`` has no verdict.
        control: The negative control under which they were measured.
        dataset: What was measured, without theory.
        folder: A folder with the user's claims.

    Raises:
        InputError: The results are of another grid or configuration than the size's, of other code than is here, or
            measured with changes that are not committed; or too large, even reduced.
    """
    path = record_file(registry.file(claim.name, folder))
    _require_code(claim, dataset, folder)
    if faults := list(size_faults(dataclasses.replace(claim, reduce=None), size, control, dataset)):
        advice = f"`icl run {claim.name} --size {size} --fresh` without --set, --seeds and --precision measures them"
        raise expected("record", f"results of {group(size, control)}", "; ".join(faults), advice)
    record = read(claim.name, folder)
    if control is not None and size not in record:
        raise expected("record", f"the claim at size {size} before its controls", control)
    dataset = reduced(claim, dataset)
    entry = {
        **{name: dataset.attrs[attribute] for name, attribute in _ORIGIN.items()},
        "measure": claim.version,
        "machine": ", ".join(phrase(dataset.attrs[name]) for name in ("device", "machine")),
        **{name: configuration(dataset)[name] for name in ("generator", "matmul_precision")},
        **{name: dataset.attrs[key] for name, key in (_BOOK | _ROUNDING).items() if key in dataset.attrs},
        "seconds": round(float(dataset.attrs["seconds"]), 1),
        **{name: round(float(dataset.attrs[name]), 1) for name in ("cpu_seconds",) if name in dataset.attrs},
        **{name: round(float(dataset.attrs[name])) for name in ("peak_bytes",) if name in dataset.attrs},
        "digest": data_digest(dataset),
    }
    if control is not None:
        record[size]["controls"][control] = entry | {"definition": definition(claim.controls[control])}
    elif size == SIZES[0]:
        record[size] = entry
    else:
        controls = record.get(size, {}).get("controls", {})
        record[size] = {"command": f"icl run {claim.name} --size {size}", **entry, "controls": controls}
    _write_data(path.with_suffix(".nc"), group(size, control), dataset, claim.name)
    _write_entries(claim, record, folder)
    judge_again(claim, folder)
    return path


def _require_code(claim: Claim, dataset: "xr.Dataset", folder: Any) -> None:
    """Raise unless the measuring code is committed and its ``measure.py`` is here."""
    for commit in (dataset.attrs["git_commit"], dataset.attrs.get("book_commit", "")):
        if "+changes" in commit:
            advice = "commit them, and measure again with --fresh"
            raise expected("record", "results of committed code", phrase(commit), advice)
    if measured_by_another(claim, dataset, folder):
        advice = "measure again with --fresh, or restore the file"
        raise expected("record", "results of the measure.py that is here", "those of another", advice)


def judge_again(claim: Claim, folder: Any = None) -> None:
    """Judge all recorded data by the claim's check as it is now, and by those of its controls.

    Of a control that is another formula, the data are those of the claim. A control whose data are not recorded has no
    entry, and neither has one that the claim no longer names.
    """
    record, present = read(claim.name, folder), groups(claim.name, folder)
    for size, entry in record.items():
        if size == SIZES[0] or group(size) not in present:
            continue
        evidence = Evidence(claim.name, size, None, None if folder is None else str(folder))
        entries, origin = entry.pop("controls"), {n: v for n, v in entry.items() if n not in ("verdict", "findings")}
        controls = {}
        for name, control in evidence.controls.items():
            if control["verdict"]:
                control_origin = {n: v for n, v in entries.get(name, {}).items() if n not in ("verdict", "fails")}
                controls[name] = {"verdict": control["verdict"], **control_origin, "fails": control["falsifies"]}
        verdict = evidence.verdicts[None]
        findings = [plain_finding(finding) for finding in verdict.findings]
        record[size] = {"verdict": verdict.outcome.value, **origin, "findings": findings, "controls": controls}
    _write_entries(claim, record, folder)


def _write_entries(claim: Claim, record: Mapping[str, Any], folder: Any) -> None:
    content = {"claim": about(claim), **{size: record[size] for size in SIZES if size in record}}
    path = record_file(registry.file(claim.name, folder))
    write_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def _write_data(path: Path, name: str, dataset: "xr.Dataset", claim: str) -> None:
    """Write one group and keep the others; floats that are exact in float32 are stored so."""
    import xarray as xr

    groups = {}
    if path.is_file():
        with disk_faults(f"cannot read {path}"):
            stored = xr.open_datatree(path, engine="h5netcdf", driver_kwds=UNLOCKED).load()
            groups = {name: node.to_dataset() for name, node in stored.children.items()}
    attributes = {n: dataset.attrs[n] for n in _ATTRIBUTES if n in dataset.attrs}
    groups[name] = dataset.drop_attrs().assign_attrs(attributes)
    size = len(_encoded({name: groups[name]}))
    if size > LARGEST:
        raise InputError(f"{claim}, {name}: expected at most {LARGEST} bytes of data in a record, got {size}; {FEWER}")
    write_atomically(path, _encoded(groups))


def _encoded(groups: "Mapping[str, xr.Dataset]") -> bytes:
    """Compressed netCDF of the groups; floats that are exact in float32 are stored so."""
    import xarray as xr

    encoding: dict[str, dict[str, Any]] = {}
    contents = {name: dataset.drop_encoding().drop_attrs(deep=True) for name, dataset in sorted(groups.items())}
    for name, dataset in contents.items():
        contents[name] = dataset.assign_attrs(groups[name].attrs)
        encoding[f"/{name}"] = {}
        for variable, values in dataset.data_vars.items():
            if values.dtype.kind == "f":
                single = values.values.astype(np.float32)
                exact = np.array_equal(single.astype(np.float64), values.values, equal_nan=True)
                options = {"zlib": True, "complevel": 9, "shuffle": True} if values.size > 16 else {}
                encoding[f"/{name}"][str(variable)] = {"dtype": "float32" if exact else "float64", **options}
    target = io.BytesIO()
    tree = xr.DataTree.from_dict({f"/{name}": dataset for name, dataset in contents.items()})
    tree.to_netcdf(target, engine="h5netcdf", encoding=encoding)
    return target.getvalue()
