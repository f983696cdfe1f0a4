r"""Measure a random sample of a claim's cells again, and compare number by number.

The verifier chooses the key of the sample. A cell's own key depends on its coordinates alone, so a cell is measured
again as it was. Where a number moved, the cell is measured once more as JAX compiles it with other optimisations, which
move the numbers of a quantity by :math:`D` at most.

*On the machine of the data* (equal JAX, jaxlib, NumPy, generator, device and processor) bits are equal. A number
:math:`g` moved if the new one, :math:`m`, has :math:`|m - g| > 5\cdot10^{-7} |g|`. The quantity differs if more than
one number in a hundred moved by more than :math:`3 D`, or if those that moved have one sign, or one sign relative to
:math:`g`: a sign test at :math:`10^{-3}`.

*Elsewhere* rounding differs, and training may amplify it. A number moved if :math:`|m - g| > 10^{-4} \max|g|` over the
quantity in the cell. Rounding is a reason if the optimisations move numbers of the quantity too, and
:math:`|m - g| \le 3 D` or the means over seeds are those of a record's regression test,
:func:`icllab.lab.regression.differences`. Without that reason the quantity differs if a gap exceeds a hundredth of
:math:`\max|g|`, or by the sign test.

Whatever moved and does not differ cannot be told from rounding, and is no agreement.
"""

import contextlib
import math
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from icllab.core.errors import expected
from icllab.core.grid import Coordinates, spelled
from icllab.lab import placement, provenance, records, regression
from icllab.lab.evidence import Evidence
from icllab.lab.job import Job, measure
from icllab.lab.placement import SEED
from icllab.lab.regression import ROUNDING, SCALE

if TYPE_CHECKING:
    import xarray as xr

Cell = TypeVar("Cell")
AMPLIFIED = 3.0
"""Times that a quantity may move as far as another compilation moves it."""
EQUAL = 5e-7
"""Largest relative change of a number on the machine of the data: four units in the last place of float32."""
FEW = 0.01
"""Fraction of the numbers of a quantity that may move on the machine of the data."""
TURNED = 0.05
"""Fraction of the numbers of a quantity that another machine may turn over where the optimisations move others."""
LEVEL = 1e-3
"""Level of the sign test, over the quantities of a cell and two signs of each."""
_MACHINE = ("jax_version", "jaxlib_version", "numpy_version", "device", "processor")
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
        moved: A line for each quantity that moved so that it cannot be told from rounding.
        numbers: Count of the numbers that were compared.
        largest: Largest :math:`|m - g| / \\max|g|` of all quantities.
        worst: The quantity and cell with that gap, if it was measured on another machine than this; else empty.
    """

    key: int
    cells: tuple[str, ...]
    total: int
    differs: tuple[str, ...]
    moved: tuple[str, ...]
    numbers: int
    largest: float
    worst: str


def rerun(evidence: Evidence, fraction: float, key: int, *, two_seeds: bool = False) -> Rerun:
    """Measure a random ``fraction`` of the cells again, and compare them with the data.

    At least one cell of the claim is drawn, and at least one of those controls that have data of their own.

    Args:
        evidence: The data.
        fraction: Part of the cells.
        key: Key of the sample.
        two_seeds: Whether two seeds of a cell are measured, drawn by the same key, and only what is a number of a seed
            is compared.

    Raises:
        InputError: The data are not those of the cells that are to be measured.
    """
    placement.require_start(children=False)
    if faults := list(evidence.misplaced()):
        raise expected("rerun", f"cells of the size {evidence.size}", faults[0])
    cells = [[(control, cell) for cell in evidence.cells(control)] for control in evidence.datasets]
    pools = [pool for pool in (cells[0], [cell for part in cells[1:] for cell in part]) if pool]
    sample = [cell for pool in pools for cell in drawn(pool, fraction, key)]
    parts = [_compared(evidence, control, cell, key if two_seeds else None) for control, cell in sample]
    worst = max(parts, key=lambda part: part.largest)
    return Rerun(
        key,
        tuple(cell for part in parts for cell in part.cells),
        sum(map(len, pools)),
        tuple(line for part in parts for line in part.differs),
        tuple(line for part in parts for line in part.moved),
        sum(part.numbers for part in parts),
        worst.largest,
        max((part for part in parts if part.worst), key=lambda part: part.largest, default=worst).worst,
    )


def drawn(cells: Sequence[Cell], fraction: float, key: int) -> list[Cell]:
    """The cells of a sample: as many as the fraction, rounded up."""
    if not 0 < fraction <= 1:
        raise expected("rerun", "a part of the cells above 0 and at most 100%", fraction)
    return random.Random(key).sample(cells, math.ceil(fraction * len(cells)))


def _compared(evidence: Evidence, control: str | None, cell: Coordinates, seeds_key: int | None = None) -> Rerun:
    """Measure one cell again, or with a key two of its seeds, and compare it with the data."""
    stored, now = _parts(evidence, control, cell, seeds_key)
    place = " under ".join(filter(None, (spelled(cell), control)))
    at = f" at {place}" if place else ""
    same, names = on_this_machine(stored.attrs), [str(name) for name in stored.data_vars]
    absent = [name for name in names if name not in now or dict(now[name].sizes) != dict(stored[name].sizes)]
    differs, moved = [f"{name}{at}: in the data, and not measured so now" for name in absent], []
    gaps = {name: _Gap.between(stored, now, name, same) for name in names if name not in absent}
    if any(gap.count for gap in gaps.values()):
        with _other_compilation():
            again = _parts(evidence, control, cell, seeds_key)[1]
        roundings = {name: _Gap.between(now, again, name, same) for name in gaps}
        chaotic = any(rounding.count for rounding in roundings.values())
        for name in (name for name, gap in gaps.items() if gap.count):
            text = f"{name}{at}: {gaps[name].text}; other optimisations move {roundings[name].count}"
            accused = _differs(stored, now, name, gaps[name], roundings[name], same, chaotic)
            (differs if accused else moved).append(text)
    name = max(gaps, key=lambda name: gaps[name].relative, default="")
    largest = gaps[name].relative if gaps else 0.0
    worst = f"{name}{at}" if largest and not same else ""
    numbers = sum(stored[name].size for name in names)
    return Rerun(0, (place or "the one cell",), 1, tuple(differs), tuple(moved), numbers, largest, worst)


def on_this_machine(attributes: Mapping[str, Any]) -> bool:
    """True if the attributes of data name the software and the processor of this process."""
    machine = provenance.machine()
    return all(attributes.get(name) == machine[name] for name in _MACHINE)


@dataclass(frozen=True)
class _Gap:
    """Distance of a quantity in two measurements: its changes, the changes that count, and the largest gap."""

    changes: np.ndarray
    values: np.ndarray
    counted: np.ndarray
    count: int
    largest: float
    relative: float
    text: str

    @classmethod
    def between(cls, first: "xr.Dataset", second: "xr.Dataset", name: str, same: bool) -> "_Gap":
        """The changes from the first to the second; a number that is finite in one alone counts."""
        before = first[name].values.reshape(-1)
        after = second[name].transpose(*first[name].dims).values.reshape(-1)
        both = np.isfinite(before) & np.isfinite(after)
        values = np.where(both, before, 0.0)
        scale = float(np.abs(values).max(initial=0.0))
        changes = np.where(both, after, 0.0) - values
        changes = np.where(both | (np.isfinite(before) == np.isfinite(after)), changes, np.inf)
        gaps = np.abs(changes)
        counted = gaps > np.maximum(EQUAL * np.abs(values) if same else SCALE * scale, ROUNDING)
        largest = float(gaps.max(initial=0.0))
        i = int(np.argmax(gaps)) if gaps.size else 0
        text = f"{counted.sum()} of {gaps.size} numbers"
        if counted.any():
            text += f", the worst {before[i]:.6g} in the data and {after[i]:.6g} now"
        return cls(changes, values, counted, int(counted.sum()), largest, largest / max(scale, ROUNDING), text)


def _differs(
    stored: "xr.Dataset", now: "xr.Dataset", name: str, gap: _Gap, rounding: _Gap, same: bool, chaotic: bool
) -> bool:
    """True if rounding, as far as it is known, does not explain how a quantity moved."""
    # The largest of n gaps exceeds k times the largest of n others with a probability of about k ** -n.
    reach = max(AMPLIFIED, LEVEL ** (-1 / gap.counted.size)) * rounding.largest
    one_sign = _one_sign(gap, LEVEL / (2 * len(stored.data_vars)))
    if same:
        beyond = gap.counted & (np.abs(gap.changes) > reach)
        return one_sign or int(beyond.sum()) > FEW * beyond.size
    if rounding.count and gap.largest <= reach:
        return False
    if rounding.count or (chaotic and gap.count <= TURNED * gap.counted.size):
        names = [part for part in stored.data_vars if str(part).startswith(name) and part in now]
        both = np.isfinite(stored[names]) & np.isfinite(now[names])
        lines = regression.differences(stored[names].where(both, 0.0), now[names].where(both, 0.0))
        if not any(line.startswith(f"{name}:") for line in lines):
            return False
    return one_sign or gap.relative > DOUBTFUL


def _one_sign(gap: _Gap, level: float) -> bool:
    """Two-sided sign tests of the changes, and of the changes relative to the numbers."""
    from scipy.stats import binomtest

    changes, values = gap.changes[gap.counted], gap.values[gap.counted]
    kinds = [part[part != 0] for part in (np.sign(changes), np.sign(changes) * np.sign(values))]
    return any(signs.size and binomtest(int((signs > 0).sum()), signs.size).pvalue < level for signs in kinds)


def _parts(
    evidence: Evidence, control: str | None, cell: Coordinates, seeds_key: int | None
) -> "tuple[xr.Dataset, xr.Dataset]":
    """The stored data of a cell, and the data that are measured now."""
    from icllab.lab.netcdf import from_bytes
    from icllab.lab.results import assemble

    dataset, request, grids = evidence.datasets[control], evidence.request(control), evidence.grids(control)
    claim = request.claim()
    parts = [grid.inside(cell) for grid in grids if cell in grid.cells()]
    # In the order of the grid: a measurement may know the values of its outputs by their places.
    block = {axis: tuple(dict.fromkeys(value for part in parts for value in part[axis])) for axis in parts[0]}
    if seeds_key is not None:
        block[SEED] = tuple(random.Random(seeds_key).sample(block[SEED], min(2, len(block[SEED]))))
        dataset = dataset[[name for name, values in dataset.data_vars.items() if SEED in values.dims]]
    with tempfile.TemporaryDirectory() as folder:
        directories = [str(Path(folder, name)) for name in ("scratch", "checkpoints")]
        content = measure(Job(request, cell, block, provenance.versions(), None, *directories))
    whole = assemble(claim, grids, [(cell, from_bytes(content, Path(spelled(cell))))])
    whole = records.reduced(claim, whole) if evidence.out is None else whole
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
