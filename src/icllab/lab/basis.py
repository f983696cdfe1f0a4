"""The data that a certificate is about: those of a claim's record, or results on this machine."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from icllab.core.errors import CellsMissing, expected
from icllab.core.grid import Coordinates, Grid, spelled
from icllab.lab import records, registry
from icllab.lab.checks import Verdict
from icllab.lab.claim import SIZES, Claim
from icllab.lab.job import Request, stored_request
from icllab.lab.placement import Placement
from icllab.lab.run import read

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Basis:
    """The data that a certificate is about: those of a claim's record, or results on this machine.

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
        """``results``; ``record``, its data; or ``entry``, the numbers of a record that keeps no data of that size."""
        if self.out is not None:
            return "results"
        kept = self.size in records.groups(self.name, self.folder)
        return "record" if kept or self.size not in records.read(self.name, self.folder) else "entry"

    @property
    def elsewhere(self) -> bool:
        """True for a claim outside the library."""
        return registry.book(registry.file(self.name, self.folder)) is None

    @property
    def claim(self) -> Claim:
        """The claim itself, under no control."""
        return registry.load(self.name, self.folder)

    def measured(self, control: str | None = None) -> "tuple[xr.Dataset, list[str]]":
        """What was measured, without theory, and what a reader of it should know."""
        if self.out is None:
            return records.data(self.name, self.size, control, self.folder), []
        request = stored_request(self.name, self.size, out=self.out, control=control, claims=self.folder)
        return read(request, theory=False)

    def worlds(self) -> "dict[str | None, xr.Dataset]":
        """The data of the claim, and of every control that has data of its own."""
        worlds: dict[str | None, xr.Dataset] = {None: self.measured()[0]}
        for name, control in self.claim.controls.items():
            with contextlib.suppress(CellsMissing):
                worlds |= {name: self.measured(name)[0]} if control.simulated or control.axes else {}
        return worlds

    def misplaced(self, worlds: "Mapping[str | None, xr.Dataset]") -> Iterator[str]:
        """Yield each way in which the cells of a record differ from the size."""
        for control, dataset in worlds.items() if self.out is None else ():
            for text in records.size_faults(self.claim, self.size, control, dataset):
                yield f"these cells are not of the size {records.group(self.size, control)}: {text}"

    def judged(self, control: str | None, dataset: "xr.Dataset") -> Verdict:
        """The verdict of the claim's check on measured data."""
        from icllab.lab.results import judge, predicted

        world = self._world(control)
        return judge(world, predicted(world, dataset))

    def predicted(self) -> "xr.Dataset":
        """The data with the claim's theory, as its figure shows them."""
        from icllab.lab.results import predicted

        return predicted(self._world(None), self.measured()[0])

    def _world(self, control: str | None) -> Claim:
        return self.claim.under(control) if self.out is None else self._request(control).claim()

    def _request(self, control: str | None) -> Request:
        return Request(self.name, self.size, out=str(self.out), control=control, claims=self.folder)

    def rerun_request(self, control: str | None, dataset: "xr.Dataset") -> Request:
        """The request that measures a cell of data as it was measured: the same fixed numbers, the same precision."""
        configuration = records.configuration(dataset)
        fixed = {name: (value,) for name, value in configuration["fixed"].items()}
        placement, products = Placement(precision=configuration["precision"]), configuration["matmul_precision"]
        request = Request(self.name, self.size, fixed, claims=self.folder, placement=placement)
        return dataclasses.replace(request, control=control, matmul_precision=products)

    def grids(self, control: str | None) -> list[Grid]:
        """The grids that were requested; those of a record's size."""
        from icllab.lab.results import Store

        if self.out is None:
            return [self._world(control).at(self.size).grid(self.size)]
        return Store.existing(self._request(control).root).requests()

    def cells(self, control: str | None = None) -> list[Coordinates]:
        """Every cell of the grids once."""
        cells = {spelled(cell): cell for grid in self.grids(control) for cell in grid.cells()}
        return list(cells.values())

    def seconds(self, control: str | None, dataset: "xr.Dataset") -> float:
        """Time of the measurement; a record states it beside the data."""
        if self.out is not None:
            return round(float(dataset.attrs["seconds"]), 1)
        entry = records.read(self.name, self.folder)[self.size]
        return float((entry["controls"][control] if control else entry)["seconds"])


def basis_of(
    claim: str, size: str | None = None, *, out: str | Path | None = None, folder: str | Path | None = None
) -> Basis:
    """The data of a claim's record; or the results under ``out``. The largest size, unless one is named.

    Raises:
        InputError: The size gets no verdict.
        CellsMissing: There are no such data.
    """
    registry.load(claim, folder)
    folder = None if folder is None else str(Path(folder).resolve())
    if out is not None:
        basis = Basis(claim, stored_request(claim, size, out=str(out), claims=folder).size, str(out), folder)
    else:
        present = [s for s in SIZES[1:] if s in records.groups(claim, folder)]
        present = present or [s for s in records.read(claim, folder) if s != SIZES[0]]
        if not present and size is None:
            raise CellsMissing(
                f"{claim}: expected a record, found none; `--out DIR` takes the results that `icl run` keeps"
            )
        basis = Basis(claim, size or present[-1], None, folder)
    if basis.size == SIZES[0]:
        raise expected("size", "one that is judged", basis.size, f"`icl run {claim} --size small` measures it")
    return basis
