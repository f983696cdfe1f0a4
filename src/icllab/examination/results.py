"""Results of an examination: sections with their measurements and findings, and the files that keep them."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xarray as xr

from icllab.core.errors import InputError, require_known, unknown
from icllab.core.files import difference, read_object, write_atomically
from icllab.core.spelling import strict
from icllab.examination.section import Finding
from icllab.examination.sections import SECTIONS
from icllab.lab.netcdf import netcdf_bytes

HEADER = "examination.json"


@dataclass(frozen=True)
class Answered:
    """A section of an examination: its Dataset and finding, or why there is none.

    Attributes:
        name: Name of the section.
        status: ``"answered"``, ``"not asked"``, ``"skipped"``, ``"ended"`` or ``"failed"``.
        reason: Why there is no finding; empty if there is.
        cost: Seconds that were stated before.
        seconds: Seconds that it took.
        dataset: Measurement.
        finding: Judgement, after the correction for several verdicts.
    """

    name: str
    status: str
    reason: str = ""
    cost: float = 0.0
    seconds: float = 0.0
    dataset: xr.Dataset | None = None
    finding: Finding | None = None


@dataclass(frozen=True)
class Results:
    """Sections of one subject, at one size of the samples, and their files.

    Attributes:
        header: What was examined and how: name, task, size, key, versions, digests.
        sections: The sections in order.
        claims: Claims of the book about such a network, with their verdicts if they were asked.
    """

    header: Mapping[str, Any]
    sections: Sequence[Answered] = field(default_factory=tuple)
    claims: Sequence[Mapping[str, Any]] = ()

    def __getitem__(self, name: str) -> Answered:
        """The section of a name."""
        for section in self.sections:
            if section.name == name:
                return section
        raise unknown("section", name, [section.name for section in self.sections])

    def dataset(self, section: str) -> xr.Dataset:
        """The measurement of a section.

        Raises:
            InputError: There is no such section, or it was not measured.
        """
        answered = self[section]
        if answered.dataset is None:
            raise InputError(
                f"{section}: expected a section that was measured, got {answered.status}: {answered.reason}"
            )
        return answered.dataset

    def save(self, folder: str | Path) -> Path:
        """Write a folder: ``examination.json``, and one netCDF file for each section that was measured."""
        at = Path(folder)
        at.mkdir(parents=True, exist_ok=True)
        for section in self.sections:
            if section.dataset is not None:
                write_cell(at, section)
        write_header(at, self.header)
        return at


def circuit(dataset: xr.Dataset) -> dict[str, Any]:
    """The heads of a Dataset by the names of the MIB circuit track, ``a5.h1``, with their scores, and which are named.

    The score is the effect of a head's ablation, or its induction score where heads are not ablated one by one.
    """
    if "named" not in dataset:
        return {}
    name = "ablation_effect" if "ablation_effect" in dataset else "induction_score"
    rows = zip(dataset["attention_head"].values, dataset[name].values, dataset["named"].values, strict=True)
    nodes = {
        re.sub(r"block(\d+)\.(\d+)", r"a\1.h\2", str(head)): {"score": float(score), "in_graph": bool(is_named)}
        for head, score, is_named in rows
    }
    return {"circuit": {"nodes": nodes, "edges": {}}}


def write_header(at: Path, header: Mapping[str, Any]) -> None:
    """Write the header of a folder of cells."""
    write_atomically(at / HEADER, (json.dumps(strict(dict(header)), indent=1) + "\n").encode())


def write_cell(at: Path, section: Answered) -> None:
    """Write the measurement of a section as netCDF."""
    assert section.dataset is not None
    attributes = {"section": section.name, "cost": section.cost, "seconds": section.seconds}
    kept = {name: value for name, value in section.dataset.attrs.items() if _is_stored(value)}
    kept |= {name: int(value) for name, value in kept.items() if isinstance(value, bool)}  # netCDF has no booleans
    write_atomically(at / f"{section.name}.nc", netcdf_bytes(section.dataset.assign_attrs(kept | attributes)))


def _is_stored(value: Any) -> bool:
    return value is not None and not (isinstance(value, list | tuple) and not value)


def read_cell(path: Path) -> Answered:
    """The section in a file, judged again."""
    dataset = xr.load_dataset(path, engine="h5netcdf")
    dataset.attrs.setdefault("warnings", [])
    name = str(dataset.attrs["section"])
    require_known("section", name, SECTIONS)
    cost, seconds = (float(dataset.attrs[part]) for part in ("cost", "seconds"))
    return Answered(name, "answered", "", cost, seconds, dataset, SECTIONS[name].judge(dataset))


def stored_size(at: Path) -> str | None:
    """Name of the size of the cells in a folder; None if there are none."""
    if not (at / HEADER).is_file():
        return None
    return str(read_object(at / HEADER, "remove the folder to examine anew").get("size"))


def require_same(at: Path, header: Mapping[str, Any]) -> None:
    """Raise if a folder has cells of another network, task, size or key; versions may differ."""
    if not (at / HEADER).is_file():
        return
    old = read_object(at / HEADER, "remove the folder to examine anew")
    ignored = ("versions", "name")
    there, here = ({k: v for k, v in strict(dict(h)).items() if k not in ignored} for h in (old, header))
    if changes := difference(there, here):
        raise InputError(f"{at}: expected cells of the same examination, got {changes}; give another folder with -o")
