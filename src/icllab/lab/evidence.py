"""What a certificate's verdict rests on: findings, controls, design and measurement, as plain values."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from icllab.core.grid import canonical
from icllab.core.spelling import strict
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
Place: TypeAlias = tuple[str, ...]
"""Names on the way to a leaf of a certificate."""
ABSENT = object()


@dataclass(frozen=True)
class Evidence:
    """Sections of a certificate.

    Attributes:
        verdict: Outcome of the claim.
        notes: What a reader of the verdict should know.
        findings: Identifier -> number, error, tolerance, outcome, and the controls that falsify it.
        controls: Name -> meaning, verdict, and the findings that fail under it.
        design: What was varied, what was fixed, and what is random.
        measurement: Where and when it was measured, and what it cost, as whoever measured it states.
        data: Name of data -> digest.
        faults: In what the record contradicts its own data, or the data the size that it names.
    """

    verdict: str
    notes: list[str]
    findings: Table
    controls: Table
    design: dict[str, Any]
    measurement: dict[str, Any]
    data: dict[str, str]
    faults: list[str]


def from_data(basis: Basis) -> Evidence:
    """Data of a record, or results, judged by the claim's check as it is now, and by those of its controls."""
    claim, (dataset, notes) = basis.claim, basis.measured()
    version = records.configuration(dataset).get("version", 1)  # results of version 0.2 state none
    if version != claim.version and not any(note.startswith("stale") for note in notes):
        notes = [*notes, f"stale: measured by version {version} of the claim's measure, which is {claim.version} now"]
    verdict, parts = basis.judged(None, dataset), basis.worlds()
    controls: Table = {}
    elements: dict[str, set[str]] = {}
    for name, control in claim.controls.items():
        controls[name] = {"meaning": control.meaning, "simulated": control.simulated, "verdict": None, "falsifies": []}
        if name in parts or not (control.simulated or control.axes):
            under = basis.judged(name, parts.get(name, dataset))
            failing = [finding.id for finding in under.findings if finding.outcome is Outcome.FAILS]
            controls[name] |= {"verdict": under.outcome.value, "falsifies": failing}
            elements[name] = {finding.id for finding in under.findings}
    findings = _table(verdict.as_dict()["findings"], controls, elements)
    labels = {name: records.group(basis.size, name) for name in parts}
    attributes = {name: records.phrase(str(value)) for name, value in dataset.attrs.items()}
    seconds = {labels[name]: basis.seconds(name, part) for name, part in parts.items()}
    machines = {labels[name]: records.phrase(str(part.attrs["machine"])) for name, part in parts.items()}
    origin = [attributes[name] for name in ("git_commit", "package_version", "jax_version", "created")]
    machine = f"{attributes['device']}, {attributes['machine']}"
    return Evidence(
        verdict.outcome.value,
        notes,
        findings,
        controls,
        _design(claim, dataset) | {"measure": version},
        _measurement(origin, machine, seconds, machines),
        {labels[name]: records.data_digest(part) for name, part in parts.items()},
        [
            *basis.misplaced(parts),
            *_contradictions(basis, verdict.outcome.value, findings, controls),
        ],
    )


def _contradictions(basis: Basis, verdict: str, findings: Table, controls: Table) -> Iterator[str]:
    """Yield each difference between ``record.json`` and the judgement of its data."""
    if basis.out is not None:
        return
    entry, known = records.read(basis.name, basis.folder)[basis.size], ("advice", "falsified_by")
    stated = {
        "verdict": entry["verdict"],
        "findings": {row["id"]: {"about": "claim", **row} for row in entry["findings"]},
        "controls": {name: [row["verdict"], row["fails"]] for name, row in entry["controls"].items()},
    }
    right = {
        "verdict": verdict,
        "findings": {id: {"id": id, **{n: row[n] for n in row if n not in known}} for id, row in findings.items()},
        "controls": {n: [row["verdict"], row["falsifies"]] for n, row in controls.items() if row["verdict"]},
    }
    yield from (f"record.json contradicts its data: {worded(*change)}" for change in differences(stated, right))


def differences(stated: Any, computed: Any, at: Place = ()) -> Iterator[tuple[Place, Any, Any]]:
    """Yield (path, stated, computed) for each differing leaf, ignoring ``issued`` and ``digest``.

    A number of a finding is stated to six digits: either neighbour is right where the number computed is between both.
    """
    if isinstance(stated, Mapping) and isinstance(computed, Mapping):
        for name in dict.fromkeys((*computed, *stated)):
            if at or name not in ("issued", "digest"):
                yield from differences(stated.get(name, ABSENT), computed.get(name, ABSENT), (*at, str(name)))
    elif not _same(stated, computed, at):
        yield at, stated, computed


def _same(stated: Any, computed: Any, at: Place) -> bool:
    if at[0] == "findings" and at[-1] in NUMBERS and isinstance(computed, float):
        near = [records.rounded(computed * (1 + change)) for change in (0.0, 1e-9, -1e-9)]
        return not isinstance(stated, bool) and any(stated == number for number in near)
    computed = strict(computed) if computed is not ABSENT else computed
    return isinstance(stated, bool) == isinstance(computed, bool) and stated == computed


def worded(at: Place, stated: Any, computed: Any) -> str:
    """A difference in words."""
    words = ["absent" if value is ABSENT else _short(strict(value)) for value in (stated, computed)]
    return f"{'/'.join(at)} is {words[0]}, computed: {words[1]}"


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 70 else f"{text[:67]}..."


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
    ids = {row["id"] for row in entry["findings"]}
    elements = {name: ids for name, control in claim.controls.items() if not control.axes}
    seconds, machine = {basis.size: float(entry["seconds"])}, records.phrase(entry["machine"])
    origin = [records.phrase(entry[name]) for name in ("commit", "package", "jax", "created")]
    return Evidence(
        entry["verdict"],
        [NO_DATA],
        _table(entry["findings"], controls, elements),
        controls,
        design,
        _measurement(origin, machine, seconds, {basis.size: machine}),
        {},
        [],
    )


def _table(
    rows: Iterable[Mapping[str, Any]], controls: Mapping[str, Mapping[str, Any]], elements: Mapping[str, set[str]]
) -> Table:
    """Findings by identifier, with the controls that falsify each.

    A control may have other coordinates, where a finding has no element of the same identifier: then by its name.
    """
    table: Table = {}
    for row in rows:
        known = {name: row["id"] in elements.get(name, ()) for name in controls}
        fails = {n: c["falsifies"] if known[n] else map(name_of, c["falsifies"]) for n, c in controls.items()}
        by = [name for name, ids in fails.items() if (row["id"] if known[name] else name_of(row["id"])) in ids]
        texts = {"about": row.get("about", "claim"), "advice": row.get("advice", ""), "falsified_by": by}
        numbers = {name: float(row[name]) for name in NUMBERS}
        table[row["id"]] = {"what": row["what"], **numbers, "outcome": row["outcome"], **texts}
    return table


def name_of(id: str) -> str:
    """The name of a finding, without its coordinates."""
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
