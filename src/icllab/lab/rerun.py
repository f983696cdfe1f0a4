r"""A random sample of the cells of a claim's data, measured again and compared number by number.

The verifier chooses the key of the sample. A cell's own key depends on its coordinates alone, so a cell is measured
again as it was: with equal software on an equal processor to the bit. Elsewhere rounding differs, and training may
amplify it. A number :math:`g` of the data and the new one :math:`m` agree where

.. math:: |m - g| \le 10^{-4} \max|g|,

over the quantity in the cell, and where both are finite or both are not. Where some do not agree, the cell is measured
once more as JAX compiles it with other optimisations. If it moves numbers of the quantity itself, by :math:`D` at
most, rounding decides them, and the quantity agrees if :math:`|m - g| \le 3 D`, or if the means over seeds are those
of a record's regression test, :func:`icllab.lab.records.differences`. If it moves none, a gap of more than a hundredth
of :math:`\max|g|` differs. A smaller one may be a single answer that another rounding turns over: it is doubtful.
"""

import contextlib
import math
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from icllab.core.errors import expected
from icllab.core.grid import Coordinates, spelled
from icllab.lab import placement, provenance, records
from icllab.lab.basis import Basis
from icllab.lab.job import Job, measure
from icllab.lab.placement import SEED
from icllab.lab.records import ROUNDING, SCALE

if TYPE_CHECKING:
    import xarray as xr

AMPLIFIED = 3.0
"""Times that a quantity may move as far as another compilation moves it."""
DOUBTFUL = 0.01
"""Largest gap, over the scale of the quantity, that one turned answer may make where rounding moves nothing."""


@dataclass(frozen=True)
class Rerun:
    """Cells that were measured again.

    Attributes:
        key: Key of the sample.
        cells: Coordinates of the cells, in words.
        total: Number of cells of the data.
        differs: A line for each quantity of a cell that is another now.
        doubtful: A line for each quantity of which that cannot be told from rounding.
        moved: A line for each quantity that moved as far as rounding moves it, and no farther.
        numbers: Count of the numbers that were compared.
        largest: Largest :math:`|m - g| / \\max|g|` of the quantities that rounding does not move.
    """

    key: int
    cells: tuple[str, ...]
    total: int
    differs: tuple[str, ...]
    doubtful: tuple[str, ...]
    moved: tuple[str, ...]
    numbers: int
    largest: float


def rerun(basis: Basis, fraction: float, key: int) -> Rerun:
    """Measure a random ``fraction`` of the cells again, at least one, and compare them with the data."""
    placement.require_start(children=False)
    dataset, cells = basis.measured()[0], basis.cells()
    sample = drawn(cells, fraction, key)
    comparisons = [_compared(basis, dataset, cell) for cell in sample]
    return Rerun(
        key,
        tuple(spelled(cell) or "the one cell" for cell in sample),
        len(cells),
        tuple(line for part in comparisons for line in part.differs),
        tuple(line for part in comparisons for line in part.doubtful),
        tuple(line for part in comparisons for line in part.moved),
        sum(part.numbers for part in comparisons),
        max(part.largest for part in comparisons),
    )


def drawn(cells: Sequence[Coordinates], fraction: float, key: int) -> list[Coordinates]:
    """The cells of a sample: as many as the fraction, rounded up."""
    if not 0 < fraction <= 1:
        raise expected("rerun", "a part of the cells above 0 and at most 100%", fraction)
    return random.Random(key).sample(cells, math.ceil(fraction * len(cells)))


@dataclass(frozen=True)
class _Comparison:
    differs: list[str]
    doubtful: list[str]
    moved: list[str]
    numbers: int
    largest: float


def _compared(basis: Basis, dataset: "xr.Dataset", cell: Coordinates) -> _Comparison:
    """One cell, measured again, against its part of the data."""
    stored, now = _parts(basis, dataset, cell)
    place = f" at {spelled(cell)}" if cell else ""
    names = [str(name) for name in stored.data_vars]
    differs = [f"{name}{place}: in the data, not measured now" for name in names if name not in now]
    apart = {name: gap for name in names if name in now and (gap := _Gap.between(stored, now, name)).count}
    doubtful: list[str] = []
    moved: list[str] = []
    if apart:
        with _other_compilation():
            again = _parts(basis, dataset, cell)[1]
        for name, gap in apart.items():
            rounding = _Gap.between(now, again, name)
            text = f"{name}{place}: {gap.text}; other optimisations move {rounding.count}"
            explained = _explained(stored[[name]], now[[name]], gap, rounding)
            (moved if explained else doubtful if gap.relative <= DOUBTFUL else differs).append(text)
    equal = [_Gap.between(stored, now, name).relative for name in names if name in now and name not in apart]
    return _Comparison(differs, doubtful, moved, sum(stored[name].size for name in names), max(equal, default=0.0))


@dataclass(frozen=True)
class _Gap:
    """How far a quantity of two measurements is apart: numbers farther apart than rounding, and the largest gap."""

    count: int
    largest: float
    relative: float
    text: str

    @classmethod
    def between(cls, first: "xr.Dataset", second: "xr.Dataset", name: str) -> "_Gap":
        """The gaps of the second from the first; a number that is finite in one alone counts."""
        before, after = first[name].values, second[name].transpose(*first[name].dims).values
        both = np.isfinite(before) & np.isfinite(after)
        scale = float(np.abs(before[both]).max(initial=0.0))
        gaps = np.where(both, np.abs(np.where(both, after, 0.0) - np.where(both, before, 0.0)), 0.0)
        gaps = np.where(both | (np.isfinite(before) == np.isfinite(after)), gaps, np.inf)
        count, largest = int((gaps > max(SCALE * scale, ROUNDING)).sum()), float(gaps.max(initial=0.0))
        i = int(np.argmax(gaps)) if gaps.size else 0
        text = f"{count} of {gaps.size} numbers"
        if count:
            text += f", the worst {before.flat[i]:.6g} in the data and {after.flat[i]:.6g} now"
        return cls(count, largest, largest / scale if scale else largest, text)


def _explained(stored: "xr.Dataset", now: "xr.Dataset", gap: _Gap, rounding: _Gap) -> bool:
    """Whether rounding, which moves numbers of the quantity itself, explains a gap."""
    if not rounding.count:
        return False
    if gap.largest <= AMPLIFIED * rounding.largest:
        return True
    if SEED not in stored.dims:
        return False
    finite = [np.isfinite(part) for part in (stored, now)]
    same = [part.where(finite[0] & finite[1], 0.0) for part in (stored, now)]
    return not records.differences(*same)


def _parts(basis: Basis, dataset: "xr.Dataset", cell: Coordinates) -> "tuple[xr.Dataset, xr.Dataset]":
    """The part of the data that is a cell's, and the same measured now."""
    from icllab.lab.results import assemble, from_bytes

    request, grids = basis.rerun_request(dataset), basis.grids()
    claim = request.claim()
    parts = [grid.inside(cell) for grid in grids if cell in grid.cells()]
    # In the order of the grid: a measurement may know the values of its outputs by their places.
    block = {axis: tuple(dict.fromkeys(value for part in parts for value in part[axis])) for axis in parts[0]}
    with tempfile.TemporaryDirectory() as folder:
        directories = [str(Path(folder, name)) for name in ("scratch", "checkpoints")]
        content = measure(Job(request, cell, block, provenance.versions(), None, *directories))
    whole = assemble(claim, grids, [(cell, from_bytes(content, Path(spelled(cell))))])
    whole = records.reduced(claim, whole) if basis.out is None else whole
    place = {axis: [cell[axis]] for axis in claim.static} | {axis: list(values) for axis, values in block.items()}
    stored, now = (part.sel({a: v for a, v in place.items() if a in part.dims}) for part in (dataset, whole))
    return stored.astype(float), now.astype(float)


@contextlib.contextmanager
def _other_compilation() -> Iterator[None]:
    """Programs compiled with other optimisations: the same mathematics, rounded elsewhere."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    try:
        jax.config.update("jax_disable_most_optimizations", not before)
        jax.clear_caches()
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
        jax.clear_caches()
