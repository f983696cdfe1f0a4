"""What the recorded runs of a claim found, and the data that their verdicts were given on.

Beside a claim lie two files. ``record.json`` has what the claim says, and an entry for each size: the verdict and its
findings, the command, the commit, the versions and the machine of the run, the version of ``measure.py``, a digest of
the data, and the verdict under every negative control. ``record.nc`` has the data: a group for each size and control
(``small``, ``small@shuffled``), and ``smoke``, the golden numbers of the regression test.
"""

import dataclasses
import hashlib
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from icllab.core.errors import CellsMissing, InputError, expected, require_known
from icllab.core.files import DamagedFile, difference, disk_faults, parse_json, read_object, write_atomically
from icllab.core.grid import Grid, canonical
from icllab.core.settings import GENERATOR
from icllab.core.sources import Reference, parsed, references
from icllab.lab import registry, source_files, stated
from icllab.lab.claim import SIZES, Claim, Control, completed

if TYPE_CHECKING:
    import xarray as xr

    from icllab.lab.checks import Finding, Verdict

LARGEST = 300_000
"""Bytes of the data of one size, or of one control, in a ``record.nc``."""
SCALE = 1e-4
STRICT = 1e-6
SIGMAS = 3.0
ROUNDING = 1e-10
RHAT = 0.01
_ERRORS = ("_error", "_mcse")
_COUNTED = "_warnings"
_UNLOCKED = {"locking": False}  # a reader needs no lock, and some disks refuse it
DIGITS = 6
NOT_RECORDED = "not recorded"
"""What stands for a verdict whose data are not in the record."""
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
    """A note if the data of a run over a grid will hardly fit a record; empty if they will, or the claim reduces them.

    A number takes four bytes before compression. Axes of a quantity besides those of the grid are not counted.
    """
    names = [name if isinstance(name, str) else name.name for name in claim.quantities]
    measured = [name for name in names if not name.endswith(("_theory", "_line"))]
    numbers = len(measured) * sum(math.prod(map(len, grid.inside(cell).values())) for cell in grid.cells())
    if claim.reduce is not None or 4 * numbers <= LARGEST:
        return ""
    return f"the run measures up to {numbers} numbers, {4 * numbers} bytes, and a record holds {LARGEST}; {FEWER}"


def record_file(claim: Path) -> Path:
    """The ``record.json`` of a claim's file; ``record.nc`` is beside it."""
    return claim.with_name("record.json" if claim.name == "claim.py" else f"{claim.stem}.record.json")


def group(size: str, control: str | None = None) -> str:
    """The name of the data of a size, or of a control at that size."""
    return size if control is None else f"{size}@{control}"


def read(claim: str, folder: str | Path | None = None) -> dict[str, Any]:
    """Size -> entry; empty where nothing was recorded."""
    return {size: entry for size, entry in _content(claim, folder).items() if size in SIZES}


def _content(claim: str, folder: str | Path | None) -> dict[str, Any]:
    """What ``record.json`` has: the sizes, and under ``claim`` what the claim says."""
    path = record_file(registry.file(claim, folder))
    if not path.is_file():
        return {}
    if registry.is_foreign(claim, folder):
        return stated.content(path)
    return read_object(path, "restore it")


def statement(claim: str, folder: str | Path | None = None) -> dict[str, Any]:
    """The claim's words as the record has them; empty without a record."""
    return _content(claim, folder).get("claim", {})


def groups(claim: str, folder: str | Path | None = None) -> list[str]:
    """The groups of data in a claim's record."""
    import h5py

    path = record_file(registry.file(claim, folder)).with_suffix(".nc")
    if not path.is_file():
        return []
    with disk_faults(f"cannot read {path}"), h5py.File(path, locking=False) as file:
        return list(file)


def recorded_size(claim: str, size: str | None, control: str | None, folder: str | Path | None) -> str:
    """The size, if its data are in the claim's record; for None the largest size that has data.

    Raises:
        CellsMissing: The record has no such data.
    """
    stated = list(read(claim, folder))
    present = stated if registry.is_foreign(claim, folder) else groups(claim, folder)  # its file is not opened here
    if size is None:
        names = {s for s in SIZES[1:] if group(s, control) in present} or {*stated} - {SIZES[0]} or {"small"}
        size = max(names, key=SIZES.index)
    if group(size, control) not in present:
        under = f" under the control {control!r}" if control else ""
        raise CellsMissing(
            f"{claim} is {NOT_RECORDED} at size {size}{under}; `icl run {claim} --size {size}` measures it, and "
            f"`icl check {claim} --size {size} --record` keeps its data"
        )
    return size


def data(
    claim: str, size: str | None = None, control: str | None = None, folder: str | Path | None = None
) -> "xr.Dataset":
    """The recorded measurements of a claim at a size (the largest with data), without its theory.

    Raises:
        CellsMissing: The record has no such data.
        DamagedFile: The data have another digest than the record states.
    """
    import xarray as xr

    size = recorded_size(claim, size, control, folder)
    path, name = record_file(registry.file(claim, folder)).with_suffix(".nc"), group(size, control)
    if registry.is_foreign(claim, folder):
        from icllab.lab.foreign import read_foreign

        dataset = read_foreign(path, name)
    else:
        with disk_faults(f"cannot read {path}"):
            dataset = xr.load_dataset(path, group=name, engine="h5netcdf", driver_kwds=_UNLOCKED)
    dataset = dataset.astype({n: np.float64 for n, v in dataset.data_vars.items() if v.dtype.kind == "f"})
    entry = read(claim, folder).get(size, {})
    digest = (entry.get("controls", {}).get(control, {}) if control else entry).get("digest")
    if digest != data_digest(dataset):
        raise DamagedFile(f"{path}: expected data of digest {digest} in {name}, got {data_digest(dataset)}; restore it")
    if "configuration" in dataset.attrs and (drawn := configuration(dataset)["generator"]) != GENERATOR:
        raise expected(f"{path}: generator", f"numbers drawn by {GENERATOR!r}", drawn, "measure and record them again")
    return dataset


def predicted_data(
    claim: str, size: str | None = None, control: str | None = None, folder: str | Path | None = None
) -> "xr.Dataset":
    """The recorded measurements with the claim's theory; of a control that is another formula, with that."""
    from icllab.lab.results import predicted

    content = registry.load(claim, folder)
    world = content.under(control)
    if control is not None and not content.controls[control].measured:
        return predicted(world, data(claim, size, None, folder))
    return predicted(world, data(claim, size, control, folder))


def judged(
    claim: str, size: str | None = None, control: str | None = None, folder: str | Path | None = None
) -> "tuple[str, Verdict]":
    """The size, the largest with data unless one is named, and the verdict of the claim's check on recorded data."""
    from icllab.lab.results import verdict_at

    dataset = predicted_data(claim, size, control, folder)
    judged_size = str(configuration(dataset)["size"])
    larger = [s for s, entry in card(claim, folder).record.items() if entry["verdict"] is None and size is None]
    notes = [f"{s} is {NOT_RECORDED}: the record states numbers of it and keeps no data" for s in larger]
    return judged_size, verdict_at(registry.load(claim, folder).under(control), judged_size, dataset, notes)


def configuration(dataset: "xr.Dataset") -> dict[str, Any]:
    """The configuration under which results were measured."""
    return completed(parse_json(dataset.attrs["configuration"], "configuration"))


def data_digest(dataset: "xr.Dataset") -> str:
    """SHA-256 of the names, axes and values of a Dataset, whatever its attributes and the order of its variables."""
    digest = hashlib.sha256()
    for name in sorted(map(str, dataset.variables)):
        variable = dataset[name].variable
        values = variable.values
        values = values.astype(str) if values.dtype.kind == "O" else values
        values = values.astype(np.float64) if values.dtype.kind in "biuf" else values.astype(str)
        text = values.tobytes() if values.dtype.kind == "f" else json.dumps(values.tolist()).encode()
        digest.update(f"{name} {variable.dims} {values.shape} ".encode() + text)
    return digest.hexdigest()


def write(claim: Claim, size: str, control: str | None, dataset: "xr.Dataset", folder: Any = None) -> Path:
    """Record complete results and judge all that is recorded; a control goes to the entry of its size.

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


def size_faults(claim: Claim, size: str, control: str | None, dataset: "xr.Dataset") -> Iterator[str]:
    """Each way in which data differ from a size, or from a control at a size: configuration, values of axes.

    The claim may be renamed. Its ``reduce`` may leave out axes and values, and number values anew.
    """
    world, stated = claim.at(size).under(control), configuration(dataset)
    expected_settings = parse_json(json.dumps(world.configuration(size, control, stated["matmul_precision"])))
    if changes := difference(
        stated, completed(expected_settings) | {name: stated[name] for name in ("claim", "version")}
    ):
        yield f"another configuration: {changes}"
    grid = world.grid(size)
    for axis, values in {**grid.static, **grid.traced}.items():
        if axis not in dataset.dims:
            if claim.reduce is None:
                yield f"no axis {axis}"
            continue
        stored, of_size = set(map(canonical, dataset[axis].values)), set(values)
        if stored != of_size and (claim.reduce is None or not (stored < of_size or len(stored) == len(of_size))):
            yield f"{len(stored)} values of {axis} {_few(stored)} where the size has {len(of_size)} {_few(of_size)}"


def _few(values: Iterable[Any]) -> str:
    ordered = sorted(values)
    return f"({', '.join(map(str, ordered[:3]))}{', ...' if len(ordered) > 3 else ''})"


def measured_by_another(claim: Claim, dataset: "xr.Dataset", folder: Any) -> bool:
    """True if data state another ``measure.py`` or ``VERSION`` than is here; data of version 0.3 state no digest."""
    current = source_files.measure_digest(claim, folder)
    return configuration(dataset)["version"] != claim.version or any(
        digest not in ("", current) for digest in texts(dataset.attrs.get("measure_digest", ""))
    )


def _require_code(claim: Claim, dataset: "xr.Dataset", folder: Any) -> None:
    """Raise unless the measuring code is committed and its ``measure.py`` is here."""
    for commit in (dataset.attrs["git_commit"], dataset.attrs.get("book_commit", "")):
        if "+changes" in commit:
            advice = "commit them, and measure again with --fresh"
            raise expected("record", "results of committed code", phrase(commit), advice)
    if measured_by_another(claim, dataset, folder):
        advice = "measure again with --fresh, or restore the file"
        raise expected("record", "results of the measure.py that is here", "those of another", advice)


def texts(attribute: str) -> list[str]:
    """The values of an attribute: cells that differ in it have a JSON list of them."""
    return parse_json(attribute) if attribute.startswith("[") else [attribute]


def phrase(text: str) -> str:
    """An attribute in words; cells of several machines have a JSON list of them."""
    return " and ".join(texts(text))


def judge_again(claim: Claim, folder: Any = None) -> None:
    """Judge all recorded data by the claim's check as it is now, and by those of its controls.

    Of a control that is another formula, the data are those of the claim. A control whose data are not recorded has no
    entry, and neither has one that the claim no longer names.
    """
    record, present = read(claim.name, folder), groups(claim.name, folder)
    for size, entry in record.items():
        if size == SIZES[0] or group(size) not in present:
            continue
        verdict = _verdict(claim, size, None, folder)
        entries, origin = entry.pop("controls"), {n: v for n, v in entry.items() if n not in ("verdict", "findings")}
        controls = {}
        for name, control in claim.controls.items():
            if not control.measured or group(size, name) in present:
                under = _verdict(claim, size, name, folder)
                failing = [finding.id for finding in under.findings if finding.outcome == "fails"]
                entry_origin = {n: v for n, v in entries.get(name, {}).items() if n not in ("verdict", "fails")}
                controls[name] = {"verdict": under.outcome.value, **entry_origin, "fails": failing}
        findings = [plain_finding(finding) for finding in verdict.findings]
        record[size] = {"verdict": verdict.outcome.value, **origin, "findings": findings, "controls": controls}
    _write_entries(claim, record, folder)


def _verdict(claim: Claim, size: str, control: str | None, folder: Any) -> "Verdict":
    from icllab.lab.results import judge

    return judge(claim.under(control), predicted_data(claim.name, size, control, folder))


def _write_entries(claim: Claim, record: Mapping[str, Any], folder: Any) -> None:
    content = {"claim": about(claim), **{size: record[size] for size in SIZES if size in record}}
    path = record_file(registry.file(claim.name, folder))
    write_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def about(claim: Claim) -> dict[str, Any]:
    """What a claim says of itself: its record has that too, so that a list of all claims imports none."""
    return {
        "title": claim.title,
        "sentence": claim.sentence,
        "conditions": claim.conditions,
        "sources": list(claim.sources),
        "references": claim.references,
        "sizes": list(claim.sizes),
        "controls": {name: control.meaning for name, control in claim.controls.items()},
    }


def definition(control: Control) -> str:
    """A digest of what a control measures: its arguments and its axes, whatever its words."""
    axes = {name: values if isinstance(values, int) else list(values) for name, values in control.axes.items()}
    return hashlib.sha256(repr((dict(control.measure), axes)).encode()).hexdigest()[:16]


def reduced(claim: Claim, dataset: "xr.Dataset") -> "xr.Dataset":
    """The Dataset as a record keeps it: what the claim's ``reduce`` makes of it."""
    attributes = dataset.attrs
    return dataset if claim.reduce is None else claim.reduce(dataset).assign_attrs(attributes)


def _write_data(path: Path, name: str, dataset: "xr.Dataset", claim: str) -> None:
    """Write one group and keep the others; floats that are exact in float32 are stored so."""
    import xarray as xr

    groups = {}
    if path.is_file():
        with disk_faults(f"cannot read {path}"):
            stored = xr.open_datatree(path, engine="h5netcdf", driver_kwds=_UNLOCKED).load()
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


def same_platform(golden: "xr.Dataset", dataset: "xr.Dataset") -> bool:
    """True if versions and processor equal the golden numbers' own, on which equal programs round equally."""
    names = (_ORIGIN["jax"], *_ROUNDING.values())
    return all(golden.attrs.get(name) and golden.attrs[name] == dataset.attrs.get(name) for name in names)


def differences(golden: "xr.Dataset", dataset: "xr.Dataset", *, strict: bool = False) -> list[str]:
    r"""In what the numbers of a run differ from golden ones: one line for each quantity, none where they agree.

    Means over seeds :math:`\bar g` and :math:`\bar m` agree where, element by element,

    .. math:: |\bar m - \bar g| \le \max(10^{-4} \max|\bar g|,\ 3\,\mathrm{SE}(\bar g),\ 10^{-10}),

    which allows for other rounding, and for what training and sampling make of it. The standard error is that over
    seeds, or the quantity's own ``_error``. A standard error itself may change by a half, R-hat by .01. Under another
    version of JAX, or on another machine, a count of warnings of chains has at least the error of a Poisson count: few
    seeds may agree by chance. With ``strict``, for equal programs on one platform, each seed has
    :math:`10^{-6} \max|g|`, and so have standard errors and R-hat. The coordinates, the names and the places of what is
    not finite are equal.
    """
    lines = []
    names = [set(map(str, data.data_vars)) for data in (golden, dataset)]
    lines += [f"{name}: measured once, now missing" for name in sorted(names[0] - names[1])]
    lines += [f"{name}: measured now, not in the record" for name in sorted(names[1] - names[0])]
    for axis in golden.dims:
        if axis not in dataset.dims or not np.array_equal(golden[axis].values, dataset[axis].values):
            values = dataset[axis].values.tolist() if axis in dataset.dims else "none"
            lines.append(f"{axis}: expected the coordinates {golden[axis].values.tolist()}, got {values}")
    if lines:
        return lines
    elsewhere = any(golden.attrs.get(name) != dataset.attrs.get(name) for name in ("jax_version", "machine"))
    for name in sorted(names[0]):
        before, now = golden[name], dataset[name].transpose(*golden[name].dims)
        if not np.array_equal(np.isfinite(before.values), np.isfinite(now.values)):
            lines.append(f"{name}: numbers are not finite at other places than in the record")
            continue
        over = [axis for axis in before.dims if axis == "seed" and not strict]
        if strict:
            scale = float(np.abs(before.values[np.isfinite(before.values)]).max(initial=0.0))
            bounds = np.full(before.shape, max(STRICT * scale, ROUNDING))
        else:
            bounds = _bounds(name, golden, elsewhere).transpose(*(a for a in before.dims if a not in over)).values
        mean, new_mean = (values.mean(over, skipna=False).values for values in (before, now))
        finite = np.isfinite(mean)
        excess = np.abs(new_mean[finite] - mean[finite]) - bounds[finite]
        if (excess > 0).any():
            i = int(np.argmax(excess))
            lines.append(
                f"{name}: {(excess > 0).sum()} of {excess.size} numbers moved, the worst from "
                f"{mean[finite][i]:.6g} to {new_mean[finite][i]:.6g}, where {bounds[finite][i]:.2g} is allowed"
            )
    return lines


def _bounds(name: str, golden: "xr.Dataset", elsewhere: bool) -> "xr.DataArray":
    """Largest change of a quantity's mean over seeds; ``elsewhere``: under another version or on another machine."""
    import xarray as xr

    values = golden[name]
    seeds = values.sizes.get("seed", 1)
    mean = values.mean("seed", skipna=False) if "seed" in values.dims else values
    errors = xr.zeros_like(mean)
    if seeds > 1:
        with np.errstate(invalid="ignore"):
            errors = values.std("seed", ddof=1, skipna=False) / np.sqrt(seeds)
    if elsewhere and name.endswith(_COUNTED):
        errors = xr.where(errors**2 > mean / seeds, errors, np.sqrt(mean / seeds))
    for suffix in _ERRORS:
        if f"{name}{suffix}" in golden:
            squares = golden[f"{name}{suffix}"] ** 2
            squares = (squares.mean("seed") if "seed" in squares.dims else squares) / seeds
            error = squares.fillna(0.0) ** 0.5
            errors = xr.where(errors > error, errors, error)
    scale = float(np.abs(mean.where(np.isfinite(mean))).max().fillna(0.0))
    least = RHAT if name.endswith("_rhat") else max(SCALE * scale, ROUNDING)
    bounds = (SIGMAS * errors.fillna(0.0)).clip(min=least)
    return xr.where(bounds > abs(mean) / 2, bounds, abs(mean) / 2) if name.endswith(_ERRORS) else bounds


def plain_finding(finding: "Finding") -> dict[str, Any]:
    """A finding as a record has it."""
    numbers = ("predicted", "measured", "standard_error", "tolerance")
    values = {name: rounded(getattr(finding, name)) for name in numbers}
    return {"id": finding.id, "what": finding.what, **values, "outcome": finding.outcome.value, "about": finding.about}


def rounded(value: float) -> float | str:
    """A number to six digits, as records state it."""
    return float(f"{value:.{DIGITS}g}") if abs(value) < float("inf") else str(value)


@dataclass(frozen=True)
class Card:
    """A claim and its records, as they are shown wherever a claim is shown.

    Attributes:
        claim: ``subject/finding``; ``title``, ``sentence``, ``conditions``, ``sources`` and ``sizes`` are the claim's.
        controls: Name of a negative control -> its meaning.
        origin: The wheel, or ``added``, of a claim from elsewhere, whose record its author states; else empty.
        record: Size -> entry of the claim's record that is judged, from the smallest size on. Its verdict, and that of
            a control, is None where the data are not in the record, whose numbers are stated only; its ``"stale"``
            says whether ``measure.py`` has another ``VERSION`` since.
    """

    claim: str
    sentence: str
    conditions: str
    sources: tuple[Reference, ...]
    sizes: tuple[str, ...]
    controls: Mapping[str, str]
    record: Mapping[str, Mapping[str, Any]]
    title: str = ""
    origin: str = ""

    @property
    def subject(self) -> str:
        """The first part of the name."""
        return self.claim.split("/")[0]

    @property
    def ordinary(self) -> str:
        """The size that is run where none is named: ``small``, or the first above ``smoke`` of a claim without it."""
        return next((size for size in self.sizes if size != SIZES[0]), self.sizes[0])

    @property
    def recorded(self) -> str | None:
        """The largest size with a recorded verdict; where none has data, the largest with an entry."""
        return max(self.record, key=lambda size: (bool(self.record[size]["verdict"]), SIZES.index(size)), default=None)

    @property
    def verdict(self) -> str | None:
        """The verdict at that size; None where it is not recorded."""
        return self.record[self.recorded]["verdict"] if self.recorded else None

    @property
    def stale(self) -> bool:
        """Whether the record at that size is stale."""
        return bool(self.recorded and self.record[self.recorded]["stale"])


def _backed(entry: Mapping[str, Any], size: str, present: Iterable[str]) -> dict[str, Any]:
    """An entry whose verdicts are None where their data are absent; a control by formula has those of its size."""

    def backed(verdict: str, *names: str) -> str | None:
        return verdict if set(names) & {*present} else None

    controls = {
        name: control
        | {"verdict": backed(control["verdict"], group(size, name), *([] if "digest" in control else [size]))}
        for name, control in entry["controls"].items()
    }
    return {**entry, "verdict": backed(entry["verdict"], size), "controls": controls}


def card(claim: str, folder: str | Path | None = None, *, judged: bool = True) -> Card:
    """The card of a claim: by its record, or where it is the user's own in ``folder``, by its file.

    Unless ``judged`` the card has no record: which verdicts have data stands in another file, which takes a library.

    Raises:
        InputError: A claim from elsewhere has no record, or one that states no claim.
    """
    content, elsewhere = _content(claim, folder), registry.is_foreign(claim, folder)
    if not elsewhere and (folder is not None or "claim" not in content):
        content = content | {"claim": about(registry.load(claim, folder))}
    if "claim" not in content:
        raise InputError(f"{claim}: expected a record.json, by which a claim from elsewhere is shown, found none")
    statement = content["claim"]
    version = registry.version(registry.file(claim, folder))
    entries = {**references(), **parsed(statement["references"], "references")}
    for key in statement["sources"]:
        require_known(f"source of {claim}", key, entries)
    if not judged:
        content, present = {"claim": statement}, []
    elif not elsewhere:
        present = groups(claim, folder)
    else:  # its file is not opened here
        present = [*content] if record_file(registry.file(claim, folder)).with_suffix(".nc").is_file() else []
    return Card(
        claim,
        statement["sentence"],
        statement["conditions"],
        tuple(entries[key] for key in statement["sources"]),
        tuple(statement["sizes"]),
        statement["controls"],
        {
            size: _backed(content[size], size, present) | {"stale": content[size]["measure"] != version}
            for size in SIZES
            if "verdict" in content.get(size, {})
        },
        statement.get("title", ""),
        registry.foreign()[0][claim].origin if elsewhere else "",
    )
