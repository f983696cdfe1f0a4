"""What a certificate's verdict rests on: findings, controls, design and measurement, as plain values."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icllab.core.errors import CellsMissing
from icllab.core.grid import canonical
from icllab.lab import records
from icllab.lab.basis import Basis
from icllab.lab.claim import Claim, completed
from icllab.lab.outcomes import Outcome
from icllab.lab.placement import SEED

if TYPE_CHECKING:
    import xarray as xr

NUMBERS = ("predicted", "measured", "standard_error", "tolerance")
NO_DATA = "the record keeps these numbers and not the data that they were computed from: nobody can compute them again"
_CORES = re.compile(r"(\d+) cores? of")
Table = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Evidence:
    """Sections of a certificate.

    Attributes:
        verdict: Outcome of the claim.
        notes: What a reader of the verdict should know.
        findings: Identifier -> number, error, tolerance, outcome, and the controls that falsify findings of its name.
        controls: Name -> meaning, verdict, and the findings that fail under it.
        design: What was varied, what was fixed, and what is random.
        measurement: Where and when it was measured, and what it cost, as whoever measured it states.
        data: Name of data -> digest.
    """

    verdict: str
    notes: list[str]
    findings: Table
    controls: Table
    design: dict[str, Any]
    measurement: dict[str, Any]
    data: dict[str, str]


def from_data(basis: Basis) -> Evidence:
    """Data of a record, or results, judged by the claim's check as it is now, and by those of its controls."""
    claim, (dataset, notes) = basis.claim, basis.measured()
    version = records.configuration(dataset).get("version", 1)  # results of version 0.2 state none
    if version != claim.version and not any(note.startswith("stale") for note in notes):
        notes = [*notes, f"stale: measured by version {version} of the claim's measure, which is {claim.version} now"]
    verdict = basis.judged(None, dataset)
    parts: dict[str | None, xr.Dataset] = {None: dataset}
    controls: Table = {}
    for name, control in claim.controls.items():
        measured = control.simulated or bool(control.axes)
        controls[name] = {"meaning": control.meaning, "simulated": control.simulated, "verdict": None, "falsifies": []}
        try:
            part = basis.measured(name)[0] if measured else dataset
        except CellsMissing:
            continue
        if measured:
            parts[name] = part
        under = basis.judged(name, part)
        failing = [finding.id for finding in under.findings if finding.outcome is Outcome.FAILS]
        controls[name] |= {"verdict": under.outcome.value, "falsifies": failing}
    labels = {name: records.group(basis.size, name) for name in parts}
    attributes = {name: records.phrase(str(value)) for name, value in dataset.attrs.items()}
    seconds = {labels[name]: basis.seconds(name, part) for name, part in parts.items()}
    machines = {labels[name]: records.phrase(str(part.attrs["machine"])) for name, part in parts.items()}
    origin = [attributes[name] for name in ("git_commit", "package_version", "jax_version", "created")]
    machine = f"{attributes['device']}, {attributes['machine']}"
    return Evidence(
        verdict.outcome.value,
        notes,
        _table(verdict.as_dict()["findings"], controls),
        controls,
        _design(claim, dataset) | {"measure": version},
        _measurement(origin, machine, seconds, machines),
        {labels[name]: records.data_digest(part) for name, part in parts.items()},
    )


def from_entry(basis: Basis) -> Evidence:
    """The numbers that a record states where it keeps no data."""
    claim, entry = basis.claim, records.read(basis.name, basis.folder)[basis.size]
    controls = {name: {"meaning": c.meaning, "simulated": c.simulated} for name, c in claim.controls.items()}
    for name, control in controls.items():
        under = entry["controls"].get(name, {})
        control |= {"verdict": under.get("verdict"), "falsifies": under.get("fails", [])}
    world, grid = claim.at(basis.size), claim.at(basis.size).grid(basis.size)
    axes = {**grid.static, **grid.traced}
    swept = {axis: list(values) for axis, values in axes.items() if axis not in (*claim.outputs, SEED)}
    design = {
        "axes": swept,
        "fixed": dict(world.fixed),
        "precision": claim.precision,
        "key": claim.key,
        **{name: completed(entry)[name] for name in ("generator", "matmul_precision")},
        "seeds": list(axes.get(SEED, ())),
        "measure": entry["measure"],
    }
    seconds, machine = {basis.size: float(entry["seconds"])}, records.phrase(entry["machine"])
    origin = [records.phrase(entry[name]) for name in ("commit", "package", "jax", "created")]
    return Evidence(
        entry["verdict"],
        [NO_DATA],
        _table(entry["findings"], controls),
        controls,
        design,
        _measurement(origin, machine, seconds, {basis.size: machine}),
        {},
    )


def _table(rows: Iterable[Mapping[str, Any]], controls: Mapping[str, Mapping[str, Any]]) -> Table:
    """Findings by identifier; a control may have other coordinates, so it falsifies those of one name."""
    falsified = {name: {_name(id) for id in control["falsifies"]} for name, control in controls.items()}
    table: Table = {}
    for row in rows:
        by = [name for name, failing in falsified.items() if _name(row["id"]) in failing]
        texts = {"about": row.get("about", "claim"), "advice": row.get("advice", ""), "falsified_by": by}
        numbers = {name: float(row[name]) for name in NUMBERS}
        table[row["id"]] = {"what": row["what"], **numbers, "outcome": row["outcome"], **texts}
    return table


def _name(id: str) -> str:
    return id.partition("[")[0]


def _design(claim: Claim, dataset: "xr.Dataset") -> dict[str, Any]:
    configuration = records.configuration(dataset)
    swept = [str(axis) for axis in dataset.dims if axis not in (*claim.outputs, SEED)]
    return {
        "axes": {axis: [canonical(value) for value in dataset[axis].values] for axis in swept},
        "fixed": configuration["fixed"],
        "precision": configuration["precision"],
        **{name: configuration[name] for name in ("key", "generator", "matmul_precision")},
        "seeds": dataset[SEED].values.tolist() if SEED in dataset.dims else [],
    }


def _measurement(
    origin: Sequence[str], machine: str, seconds: Mapping[str, float], machines: Mapping[str, str]
) -> dict[str, Any]:
    commit, package, jax, created = origin
    cores = {name: max(map(int, _CORES.findall(text)), default=0) for name, text in machines.items()}
    core_hours = sum(seconds[name] * cores[name] for name in seconds) / 3600
    return {
        "commit": commit,
        "working_tree": "unknown" if not commit else "changed" if "+changes" in commit else "clean",
        "package": package,
        "jax": jax,
        "machine": machine,
        "created": created,
        "seconds": dict(seconds),
        "hours": float(f"{sum(seconds.values()) / 3600:.3g}"),
        "core_hours_at_most": float(f"{core_hours:.3g}") if all(cores.values()) else None,
    }
