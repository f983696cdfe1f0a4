"""A phenomenon: a measured number, its conditions, and the cells that are held out."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from icllab.core.errors import expected, require_integer

if TYPE_CHECKING:
    import xarray as xr

LEAST = 4
"""Cells of the smaller part, at least: a standard error of fewer says little."""


@dataclass(frozen=True)
class Phenomenon:
    """A grid of positive numbers with a part held out.

    Attributes:
        value: What is measured, with its unit.
        conditions: Name of a condition -> its meaning; every cell has a number for each.
        cells: Conditions of each cell.
        seeds: Number of independent measurements of a cell.
        held_out: Number of cells that are held out; at least four, and at least four remain.
        key: Integer that draws which cells are held out, and seeds the measurements.
        sources: Keys of the papers that the theories are from.
        published: Whether all values could be read elsewhere before any theory was registered: all are late then.
        levels: Condition -> values, of whose combinations fresh cells are drawn; empty: there are none.
    """

    value: str
    conditions: Mapping[str, str]
    cells: Sequence[Mapping[str, float]]
    seeds: int
    held_out: int
    key: int
    sources: tuple[str, ...] = ()
    published: bool = False
    levels: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_integer("seeds", self.seeds)
        require_integer("key", self.key, least=0)
        require_integer("held_out", self.held_out, least=LEAST)
        if len(self.cells) - self.held_out < LEAST:
            raise expected("held_out", f"at most {len(self.cells) - LEAST} of {len(self.cells)} cells", self.held_out)
        if self.levels and set(self.levels) != set(self.conditions):
            raise expected("levels", f"values for {', '.join(self.conditions)}", dict(self.levels))
        for cell in self.cells:
            if set(cell) != set(self.conditions):
                raise expected("cells", f"numbers for {', '.join(self.conditions)}", dict(cell))
        if len({tuple(sorted(cell.items())) for cell in self.cells}) < len(self.cells):
            raise expected("cells", "conditions that differ from cell to cell", "some twice")

    @property
    def is_held_out(self) -> np.ndarray:
        """True for each held-out cell, [cell]; the key alone draws them."""
        flags = np.zeros(len(self.cells), bool)
        flags[np.random.default_rng([self.key, len(self.cells)]).permutation(len(self.cells))[: self.held_out]] = True
        return flags

    def parts(self, dataset: "xr.Dataset") -> "tuple[xr.Dataset, xr.Dataset]":
        """The measurements that theories are fitted to, and the held-out ones."""
        return dataset.isel(cell=~self.is_held_out), dataset.isel(cell=self.is_held_out)

    def fresh_cells(self) -> list[dict[str, float]]:
        """As many combinations of the levels as are held out, none of them a cell; the key draws them."""
        known = {tuple(sorted(cell.items())) for cell in self.cells}
        every = [dict(zip(self.levels, map(float, values), strict=True)) for values in product(*self.levels.values())]
        others = [cell for cell in every if tuple(sorted(cell.items())) not in known] if self.levels else []
        if len(others) < self.held_out:
            raise expected("levels", f"{self.held_out} combinations beside the cells", len(others))
        chosen = np.random.default_rng([self.key, len(others)]).choice(len(others), self.held_out, replace=False)
        return [others[i] for i in sorted(chosen.tolist())]

    def measurement_seed(self, cell: Mapping[str, float], seed: int) -> int:
        """An integer below 2^31 for one measurement of a cell: a digest of the key, the conditions and the seed."""
        text = repr((self.key, sorted((name, float(value)) for name, value in cell.items()), seed))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1

    def empty(self) -> "xr.Dataset":
        """The Dataset of a record in which nothing is measured: ``value`` is NaN, ``censored`` is 0, [cell, seed]."""
        import xarray as xr

        shape = len(self.cells), self.seeds
        columns = {name: ("cell", np.array([float(cell[name]) for cell in self.cells])) for name in self.conditions}
        values = {"value": (("cell", "seed"), np.full(shape, np.nan)), "censored": (("cell", "seed"), np.zeros(shape))}
        return xr.Dataset(values, {"seed": np.arange(self.seeds), **columns})


def drawn_cells(levels: Mapping[str, Sequence[float]], *, count: int, key: int) -> list[dict[str, float]]:
    """Different cells of the grid of all combinations of ``levels``, drawn uniformly; ``key``: integer of the draw."""
    grid = [dict(zip(levels, values, strict=True)) for values in product(*levels.values())]
    require_integer("count", count)
    if count > len(grid):
        raise expected("count", f"at most {len(grid)} combinations", count)
    return [grid[i] for i in sorted(np.random.default_rng(key).choice(len(grid), count, replace=False))]
