"""The evidence for a claim: the data of its record, or results on this machine, and the verdicts on them."""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from icllab.core.errors import CellsMissing, expected
from icllab.core.grid import Coordinates, Grid, canonical, spelled
from icllab.core.spelling import strict
from icllab.lab import records, registry
from icllab.lab.claim import SIZES, Claim
from icllab.lab.job import Request, stored_request
from icllab.lab.outcomes import Outcome
from icllab.lab.placement import SEED, Placement
from icllab.lab.run import read

if TYPE_CHECKING:
    import xarray as xr

    from icllab.lab.checks import Verdict

NUMBERS = ("predicted", "measured", "standard_error", "tolerance")
_CORES = re.compile(r"(\d+) cores? of")
Table: TypeAlias = dict[str, dict[str, Any]]
Place: TypeAlias = tuple[str, ...]
"""Names on the way to a leaf of a certificate."""
ABSENT = object()


@dataclass(frozen=True)
class Evidence:
    """The data of a claim at one size, and of its controls, with the verdicts on them.

    Data are read, and judged by the check as it is now, when they are first asked for.

    Attributes:
        name: ``subject/finding``.
        size: A size that is judged.
        out: Where the results are kept; None: the claim's record.
        folder: A folder with the user's claims.
    """

    name: str
    size: str
    out: str | None = None
    folder: str | None = None

    @property
    def origin(self) -> str:
        """``record`` or ``results``."""
        return "record" if self.out is None else "results"

    @functools.cached_property
    def claim(self) -> Claim:
        """The claim, under no control."""
        return registry.load(self.name, self.folder)

    def _read(self, control: str | None) -> "tuple[xr.Dataset, list[str]]":
        if self.out is not None:
            request = stored_request(self.name, self.size, out=self.out, control=control, claims=self.folder)
            return read(request, theory=False)
        dataset = records.data(self.name, self.size, control, self.folder)
        version, now = records.configuration(dataset)["version"], self.claim.version
        return dataset, [f"stale: measured by version {version} of the claim's measure, which is {now} now"] * (
            version != now
        )

    @functools.cached_property
    def _measured(self) -> "dict[str | None, tuple[xr.Dataset, list[str]]]":
        measured: dict[str | None, tuple[xr.Dataset, list[str]]] = {None: self._read(None)}
        for name, control in self.claim.controls.items():
            with contextlib.suppress(CellsMissing):
                measured |= {name: self._read(name)} if control.measured else {}
        return measured

    @property
    def datasets(self) -> "dict[str | None, xr.Dataset]":
        """Measurements without theory: of the claim (key None) and of each control with its own data."""
        return {name: dataset for name, (dataset, _) in self._measured.items()}

    @functools.cached_property
    def verdicts(self) -> "dict[str | None, Verdict]":
        """Verdicts on the claim (key None) and under each control; a formula is judged on the claim's data."""
        from icllab.lab.judging import judge

        names = [name for name, control in self.claim.controls.items() if name in self.datasets or not control.measured]
        return {name: judge(self._world(name), self.predicted(name)) for name in (None, *names)}

    def predicted(self, control: str | None = None) -> "xr.Dataset":
        """The data with the theory, as a figure shows them."""
        from icllab.lab.judging import predicted

        return predicted(self._world(control), self.datasets.get(control, self.datasets[None]))

    def _world(self, control: str | None) -> Claim:
        return self.claim.at(self.size).under(control)

    @property
    def notes(self) -> list[str]:
        """Remarks on the data for a reader of the verdict."""
        return self._measured[None][1]

    @functools.cached_property
    def controls(self) -> Table:
        """Map each control to its meaning, its verdict or None, and the findings that fail under it."""
        table: Table = {}
        for name, control in self.claim.controls.items():
            under = self.verdicts.get(name)
            failing = [finding.id for finding in under.findings if finding.outcome is Outcome.FAILS] if under else []
            table[name] = {"meaning": control.meaning, "simulated": control.simulated}
            table[name] |= {"verdict": under.outcome.value if under else None, "falsifies": failing}
        return table

    @functools.cached_property
    def findings(self) -> Table:
        """Map each finding to its numbers, its outcome, and the controls that falsify it."""
        table: Table = {}
        for finding in self.verdicts[None].findings:
            numbers = {name: float(getattr(finding, name)) for name in NUMBERS}
            by = [name for name in self.controls if self._falsifies(name, finding.id)]
            table[finding.id] = {"what": finding.what, **numbers, "outcome": finding.outcome.value}
            table[finding.id] |= {"about": finding.about, "advice": finding.advice, "falsified_by": by}
        return table

    def _falsifies(self, control: str, id: str) -> bool:
        """True if a finding fails under a control, by its name if the control has other coordinates."""
        failing = self.controls[control]["falsifies"]
        if control in self.verdicts and id in {finding.id for finding in self.verdicts[control].findings}:
            return id in failing
        return name_of(id) in map(name_of, failing)

    def design(self) -> dict[str, Any]:
        """Axes, fixed values, precision, key and seeds of the measurement."""
        dataset = self.datasets[None]
        configuration = records.configuration(dataset)
        swept = [str(axis) for axis in dataset.dims if axis not in (*self.claim.outputs, SEED)]
        names = ("fixed", "precision", "key", "generator", "matmul_precision")
        return {
            "axes": {axis: [canonical(value) for value in dataset[axis].values] for axis in swept},
            **{name: configuration[name] for name in names},
            "seeds": dataset[SEED].values.tolist() if SEED in dataset.dims else [],
            "measure": configuration["version"],
        }

    def measurement(self) -> dict[str, Any]:
        """Machine, date, versions and cost of the measurement, as the data state them."""
        attributes = {name: records.phrase(str(value)) for name, value in self.datasets[None].attrs.items()}
        machines = {name: records.phrase(str(part.attrs["machine"])) for name, part in self.datasets.items()}
        seconds = {name: self._seconds(name) for name in self.datasets}
        cores = {name: max(map(int, _CORES.findall(text)), default=0) for name, text in machines.items()}
        core_hours = sum(seconds[name] * cores[name] for name in seconds) / 3600
        commit = attributes["git_commit"]
        return {
            "commit": commit,
            "working_tree": "unknown" if not commit else "changed" if "+changes" in commit else "clean",
            "package": attributes["package_version"],
            "jax": attributes["jax_version"],
            "machine": f"{attributes['device']}, {attributes['machine']}",
            "created": attributes["created"],
            "seconds": {records.group(self.size, name): value for name, value in seconds.items()},
            "hours": float(f"{sum(seconds.values()) / 3600:.3g}"),
            "core_hours_at_most": float(f"{core_hours:.3g}") if all(cores.values()) else None,
        }

    def _seconds(self, control: str | None) -> float:
        if self.out is not None:
            return round(float(self.datasets[control].attrs["seconds"]), 1)
        entry = records.read(self.name, self.folder)[self.size]  # a record states seconds beside the data
        return float((entry["controls"][control] if control else entry)["seconds"])

    def digests(self) -> dict[str, str]:
        """Map the name of each part of the data to its digest."""
        return {records.group(self.size, name): records.data_digest(part) for name, part in self.datasets.items()}

    def faults(self) -> list[str]:
        """List each way in which a record is of another size, or contradicts its own data."""
        return [] if self.out is not None else [*self.misplaced(), *self.contradictions()]

    def misplaced(self) -> Iterator[str]:
        """Yield each way in which the cells of a record differ from the size."""
        for control, dataset in self.datasets.items() if self.out is None else ():
            for text in records.size_faults(self.claim, self.size, control, dataset):
                yield f"these cells are not of the size {records.group(self.size, control)}: {text}"

    def contradictions(self) -> Iterator[str]:
        """Yield each difference between the entry of a ``record.json`` and the judgement of its data."""
        entry, kept = records.read(self.name, self.folder)[self.size], ("what", *NUMBERS, "outcome", "about")
        stated = {
            "verdict": entry["verdict"],
            "findings": {row["id"]: {"about": "claim", **row} for row in entry["findings"]},
            "controls": {name: [row["verdict"], row["fails"]] for name, row in entry["controls"].items()},
        }
        right = {
            "verdict": self.verdicts[None].outcome.value,
            "findings": {id: {"id": id, **{name: row[name] for name in kept}} for id, row in self.findings.items()},
            "controls": {name: [c["verdict"], c["falsifies"]] for name, c in self.controls.items() if c["verdict"]},
        }
        yield from (f"record.json contradicts its data: {worded(*change)}" for change in differences(stated, right))

    def request(self, control: str | None) -> Request:
        """The request that measures a cell as before: with the same fixed numbers and precision."""
        configuration = records.configuration(self.datasets[control])
        fixed = {name: (value,) for name, value in configuration["fixed"].items()}
        placement, products = Placement(precision=configuration["precision"]), configuration["matmul_precision"]
        request = Request(self.name, self.size, fixed, claims=self.folder, placement=placement)
        return dataclasses.replace(request, control=control, matmul_precision=products)

    def grids(self, control: str | None) -> list[Grid]:
        """The requested grids of results, or the grid of a record's size."""
        from icllab.lab.results import Store

        if self.out is None:
            return [self._world(control).grid(self.size)]
        root = Request(self.name, self.size, out=self.out, control=control, claims=self.folder).root
        return Store.existing(root).requests()

    def cells(self, control: str | None = None) -> list[Coordinates]:
        """Every cell of the grids once."""
        cells = {spelled(cell): cell for grid in self.grids(control) for cell in grid.cells()}
        return list(cells.values())


def evidence_of(
    claim: str, size: str | None = None, *, out: str | Path | None = None, folder: str | Path | None = None
) -> Evidence:
    """The data of a claim's record; or the results under ``out``. The largest size, unless one is named.

    Raises:
        InputError: The size gets no verdict.
        CellsMissing: There are no such data.
    """
    registry.load(claim, folder)
    folder = None if folder is None else str(Path(folder).resolve())
    if out is not None:
        size = stored_request(claim, size, out=str(out), claims=folder).size
    else:
        size = records.recorded_size(claim, size, None, folder)
    if size == SIZES[0]:
        raise expected("size", "a size with a verdict", size, f"`icl run {claim} --size small` measures it")
    return Evidence(claim, size, None if out is None else str(out), folder)


def name_of(id: str) -> str:
    """The name of a finding, without its coordinates."""
    return id.partition("[")[0]


def unfalsified(findings: Table) -> set[str]:
    """Names of the findings about the claim that no control falsifies."""
    falsified = {id: bool(row["falsified_by"]) for id, row in findings.items() if row["about"] == "claim"}
    return set(map(name_of, falsified)) - {name_of(id) for id, by in falsified.items() if by}


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
