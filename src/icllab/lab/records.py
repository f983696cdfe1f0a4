"""Recorded verdicts of a claim, and the data on which they were given.

Beside a claim lie two files. ``record.json`` has what the claim says, and an entry for each size: the verdict and its
findings, the command, the commit, the versions and the machine of the run, the version of ``measure.py``, a digest of
the data, and the verdict under every negative control. ``record.nc`` has the data: a group for each size and control
(``small``, ``small@shuffled``), and ``smoke``, the golden numbers of the regression test.
"""

import hashlib
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from icllab.core.errors import CellsMissing, InputError, expected, require_known
from icllab.core.files import DamagedFile, difference, disk_faults, parse_json, read_object
from icllab.core.grid import canonical
from icllab.core.lazy import renamed
from icllab.core.settings import GENERATOR
from icllab.core.sources import Reference, parsed, references
from icllab.lab import registry, source_files, stated
from icllab.lab.claim import SIZES, Claim, Control, Subject, completed

if TYPE_CHECKING:
    import xarray as xr

    from icllab.lab.checks import Finding, Verdict

UNLOCKED = {"locking": False}
"""Options of a reader of netCDF, which needs no lock; some disks refuse it."""
DIGITS = 6
NOT_RECORDED = "not recorded"
"""What stands for a verdict whose data are not in the record."""


def record_file(claim: Path) -> Path:
    """The ``record.json`` of a claim's file; ``record.nc`` is beside it."""
    return claim.with_name("record.json" if claim.name == "claim.py" else f"{claim.stem}.record.json")


def group(size: str, control: str | None = None) -> str:
    """The name of the data of a size, or of a control at that size."""
    return size if control is None else f"{size}@{control}"


def read(claim: str, folder: str | Path | None = None) -> dict[str, Any]:
    """Map each recorded size to its entry."""
    return {size: entry for size, entry in _content(claim, folder).items() if size in SIZES}


def _content(claim: str, folder: str | Path | None) -> dict[str, Any]:
    """The content of ``record.json``: entries of sizes, and the statement of the claim under ``claim``."""
    path = record_file(registry.file(claim, folder))
    if not path.is_file():
        return {}
    if registry.is_foreign(claim, folder):
        return stated.content(path)
    return read_object(path, "restore it")


def statement(claim: str, folder: str | Path | None = None) -> dict[str, Any]:
    """The statement of the claim in its record; empty without a record."""
    return _content(claim, folder).get("claim", {})


def groups(claim: str, folder: str | Path | None = None) -> list[str]:
    """The groups of data in a claim's record; for a claim from elsewhere, whose data are not opened, its sizes."""
    path = record_file(registry.file(claim, folder)).with_suffix(".nc")
    if not path.is_file():
        return []
    if registry.is_foreign(claim, folder):
        return list(read(claim, folder))
    import h5py

    with disk_faults(f"cannot read {path}"), h5py.File(path, locking=False) as file:
        return list(file)


def recorded_size(claim: str, size: str | None, control: str | None, folder: str | Path | None) -> str:
    """Return a size whose data are in the claim's record; for None the largest.

    Raises:
        CellsMissing: The record has no such data.
    """
    present = groups(claim, folder)
    if size is None:
        names = {s for s in SIZES[1:] if group(s, control) in present} or {*read(claim, folder)} - {SIZES[0]}
        names = names or {"small"}
        size = max(names, key=SIZES.index)
    if group(size, control) not in present:
        under = f" under the control {control!r}" if control else ""
        advice = commands(claim, size, folder, control)
        raise CellsMissing(f"{claim} is {NOT_RECORDED} at size {size}{under}; {advice}")
    return size


def commands(claim: str, size: str, folder: str | Path | None, control: str | None = None) -> str:
    """The two commands that measure and record."""
    words = f"{claim} --size {size}{f' --control {control}' if control else ''}"
    words += f" --claims {shlex.quote(str(folder))}" if folder else ""
    return f"`icl run {words}` measures it, `icl check {words} --record` records it"


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
            dataset = xr.load_dataset(path, group=name, engine="h5netcdf", driver_kwds=UNLOCKED)
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
    """The recorded measurements with the claim's theory, or with the formula of a control."""
    from icllab.lab.judging import predicted

    content = registry.load(claim, folder)
    world = content.under(control)
    if control is not None and not content.controls[control].measured:
        return predicted(world, data(claim, size, None, folder))
    return predicted(world, data(claim, size, control, folder))


def judged(
    claim: str, size: str | None = None, control: str | None = None, folder: str | Path | None = None
) -> "tuple[str, Verdict]":
    """The size, the largest with data unless one is named, and the verdict of the claim's check on recorded data."""
    from icllab.lab.judging import verdict_at

    dataset = predicted_data(claim, size, control, folder)
    judged_size = str(configuration(dataset)["size"])
    larger = [s for s, entry in card(claim, folder).record.items() if entry["verdict"] is None and size is None]
    notes = [f"{s} is {NOT_RECORDED}: the record states numbers of it and keeps no data" for s in larger]
    return judged_size, verdict_at(registry.load(claim, folder).under(control), judged_size, dataset, notes)


def configuration(dataset: "xr.Dataset") -> dict[str, Any]:
    """The configuration under which results were measured."""
    return completed(parse_json(dataset.attrs["configuration"], "configuration"))


def data_digest(dataset: "xr.Dataset") -> str:
    """SHA-256 of a Dataset's names, axes and values; independent of attributes and variable order."""
    digest = hashlib.sha256()
    for name in sorted(map(str, dataset.variables)):
        variable = dataset[name].variable
        values = variable.values
        values = values.astype(str) if values.dtype.kind == "O" else values
        values = values.astype(np.float64) if values.dtype.kind in "biuf" else values.astype(str)
        text = values.tobytes() if values.dtype.kind == "f" else json.dumps(values.tolist()).encode()
        digest.update(f"{name} {variable.dims} {values.shape} ".encode() + text)
    return digest.hexdigest()


def size_faults(claim: Claim, size: str, control: str | None, dataset: "xr.Dataset") -> Iterator[str]:
    """Yield each way in which data differ from a size, or from a control at a size: configuration, values of axes.

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
    """True if data state another ``measure.py`` or ``VERSION`` than is here."""
    digests = texts(dataset.attrs.get("measure_digest", ""))
    return configuration(dataset)["version"] != claim.version or not all(
        source_files.is_measured_by(digest, claim, folder) for digest in digests
    )


def texts(attribute: str) -> list[str]:
    """The values of an attribute: cells that differ in it have a JSON list of them."""
    return parse_json(attribute) if attribute.startswith("[") else [attribute]


def phrase(text: str) -> str:
    """An attribute in words; cells of several machines have a JSON list of them."""
    return " and ".join(texts(text))


def about(claim: Claim) -> dict[str, Any]:
    """The statement of a claim as its record keeps it, so that a list of all claims imports none."""
    return {
        "title": claim.title,
        "sentence": claim.sentence,
        "conditions": claim.conditions,
        "sources": list(claim.sources),
        "references": claim.references,
        "sizes": list(claim.sizes),
        "controls": {name: control.meaning for name, control in claim.controls.items()},
        **({} if claim.subject is None else {"subject": _subject(claim.subject)}),
    }


def _subject(subject: Subject) -> dict[str, Any]:
    """The kind of network that a claim speaks of, and the claim's own, as its record states them."""
    return {"kind": subject.kind, "run": subject.run, "network": subject.network}


def definition(control: Control) -> str:
    """A digest of a control's arguments and axes, independent of its words."""
    axes = {
        name: values if isinstance(values, int | float | str) else list(values) for name, values in control.axes.items()
    }
    return hashlib.sha256(repr((dict(control.measure), axes)).encode()).hexdigest()[:16]


def reduced(claim: Claim, dataset: "xr.Dataset") -> "xr.Dataset":
    """The Dataset as a record keeps it, reduced by the claim's ``reduce``."""
    attributes = dataset.attrs
    return dataset if claim.reduce is None else claim.reduce(dataset).assign_attrs(attributes)


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
    """Statement and recorded verdicts of a claim, for every list and page.

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
        """The size of a run unless another is named: ``small``, or else the smallest above ``smoke``."""
        return next((size for size in self.sizes if size != SIZES[0]), self.sizes[0])

    @property
    def recorded(self) -> str | None:
        """The largest size with a recorded verdict; if none has data, the largest with an entry."""
        return max(self.record, key=lambda size: (bool(self.record[size]["verdict"]), SIZES.index(size)), default=None)

    @property
    def verdict(self) -> str | None:
        """The verdict at that size; None where it is not recorded."""
        return self.record[self.recorded]["verdict"] if self.recorded else None

    @property
    def stale(self) -> bool:
        """True if the record at that size is stale."""
        return bool(self.recorded and self.record[self.recorded]["stale"])


def _backed(entry: Mapping[str, Any], size: str, present: Iterable[str]) -> dict[str, Any]:
    """An entry with None for verdicts whose data are absent; a control by formula has the data of its size."""

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
    content, present = (content, groups(claim, folder)) if judged else ({}, [])
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


_OTHERS = {"recording": "write judge_again size_note LARGEST", "regression": "differences same_platform"}
__getattr__ = renamed(
    __name__, {name: f"icllab.lab.{module}.{name}" for module, names in _OTHERS.items() for name in names.split()}
)
