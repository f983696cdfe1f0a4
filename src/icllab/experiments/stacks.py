"""Many cells at once: those of one shape are stacked on a leading axis, and put where they belong in a few assignments.

A Dataset of xarray takes about a millisecond to look into; ten thousand cells are few enough numbers and too many
Datasets.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from icllab.core.grid import Coordinates, Grid, Value, canonical

if TYPE_CHECKING:
    import xarray as xr

Variable: TypeAlias = tuple[tuple[str, ...], np.ndarray]
"""Axes, and values over them."""


@dataclass(frozen=True)
class Stack:
    """Cells with the same variables, of the same axes, lengths and types.

    Attributes:
        names: What each cell is called.
        axes: Traced axis -> coordinates, [cell, value].
        variables: Name -> axes, and values [cell, ...].
        attributes: Those of each cell.
    """

    names: tuple[str, ...]
    axes: Mapping[str, np.ndarray]
    variables: Mapping[str, Variable]
    attributes: tuple[Mapping[str, Any], ...]

    @property
    def shape(self) -> tuple[Any, ...]:
        """What cells of one stack have in common."""
        variables = ((name, axes, v.dtype.str, v.shape[1:]) for name, (axes, v) in self.variables.items())
        return (*variables, *((name, values.dtype.kind, values.shape[1]) for name, values in self.axes.items()))

    @property
    def size(self) -> int:
        """Bytes of the arrays."""
        return sum(values.nbytes for values in (*self.axes.values(), *(v for _, v in self.variables.values())))

    def take(self, rows: Sequence[int]) -> "Stack":
        """Some of its cells."""
        return Stack(
            tuple(self.names[row] for row in rows),
            {name: values[rows] for name, values in self.axes.items()},
            {name: (axes, values[rows]) for name, (axes, values) in self.variables.items()},
            tuple(self.attributes[row] for row in rows),
        )


def stacked(cells: Mapping[str, "xr.Dataset"]) -> list[Stack]:
    """Cells by what they are called, as stacks."""
    return joined(_alone(name, cell) for name, cell in cells.items())


def joined(stacks: Iterable[Stack]) -> list[Stack]:
    """One stack for each shape."""
    alike: dict[tuple[Any, ...], list[Stack]] = {}
    for stack in stacks:
        alike.setdefault(stack.shape, []).append(stack)
    return [some[0] if len(some) == 1 else _one(some) for some in alike.values()]


def _one(stacks: Sequence[Stack]) -> Stack:
    return Stack(
        tuple(name for stack in stacks for name in stack.names),
        {axis: np.concatenate([stack.axes[axis] for stack in stacks]) for axis in stacks[0].axes},
        {
            name: (axes, np.concatenate([stack.variables[name][1] for stack in stacks]))
            for name, (axes, _) in stacks[0].variables.items()
        },
        tuple(attributes for stack in stacks for attributes in stack.attributes),
    )


def _alone(name: str, cell: "xr.Dataset") -> Stack:
    """A stack of one cell; text as fixed-width text, numbers of attributes as Python's."""
    axes = {str(axis): cell.variables[axis].values for axis in cell.dims}
    attributes = {str(k): v.item() if isinstance(v, np.generic) else v for k, v in cell.attrs.items()}
    return Stack(
        (name,),
        {axis: (values.astype(str) if values.dtype == object else values)[None] for axis, values in axes.items()},
        {str(key): (tuple(map(str, v.dims)), v.values[None]) for key, v in cell.data_vars.variables.items()},
        (attributes,),
    )


def assembled(
    stacks: Sequence[Stack], grids: Sequence[Grid], name: Callable[[Coordinates], str]
) -> tuple[dict[str, Variable], dict[str, list[Value]]]:
    """Variables over the union of the grids' axes, NaN where nothing was asked for; and the values of the axes.

    Every cell of the grids must be there; ``name`` says what it is called.
    """
    static = {axis: _union(grid.static[axis] for grid in grids) for axis in grids[0].static}
    traced = {axis: _union(grid.traced[axis] for grid in grids) for axis in grids[0].traced}
    axes = {**static, **traced}
    places = {axis: {value: i for i, value in enumerate(values)} for axis, values in axes.items()}
    rows: dict[int, list[int]] = {}
    cells: dict[int, list[list[int]]] = {}
    for cell, (i, row) in _wanted(stacks, grids, name):
        rows.setdefault(i, []).append(row)
        cells.setdefault(i, []).append([places[axis][cell[axis]] for axis in static])
    # A value that was not asked for goes one place beyond the end of its axis, which is cut off.
    whole: dict[str, Variable] = {}
    for i, taken in rows.items():
        stack = stacks[i].take(taken)
        at = np.array(cells[i], int).reshape(len(taken), len(static)).T
        to = {axis: _places(values, places[axis]) for axis, values in stack.axes.items()}
        for variable, (own, values) in stack.variables.items():
            if variable not in whole:
                shape = [len(values) for values in static.values()] + [len(traced[axis]) + 1 for axis in own]
                whole[variable] = ((*static, *own), np.full(shape, np.nan))
            order = whole[variable][0][len(static) :]
            index = [one.reshape(-1, *[1] * len(order)) for one in at]
            for k, axis in enumerate(order):
                index.append(np.expand_dims(to[axis], [1 + j for j in range(len(order)) if j != k]))
            values = values.transpose(0, *(1 + own.index(axis) for axis in order))
            whole[variable][1][tuple(index)] = values if index else values[0]
    ends = {axis: slice(len(values)) for axis, values in axes.items()}
    found = {variable: (own, values[tuple(ends[axis] for axis in own)]) for variable, (own, values) in whole.items()}
    return {variable: (own, np.array(values)) for variable, (own, values) in found.items()}, axes


def shared_attributes(
    stacks: Sequence[Stack], grids: Sequence[Grid], name: Callable[[Coordinates], str]
) -> dict[str, Any]:
    """One value where all cells agree, else all as JSON; the latest ``created`` and the sum of ``seconds``."""
    cells = [stacks[i].attributes[row] for _, (i, row) in _wanted(stacks, grids, name)]
    attributes: dict[str, Any] = {}
    for key in dict.fromkeys(key for cell in cells for key in cell):
        values = sorted({str(cell.get(key, "")) for cell in cells})
        if key == "created":
            attributes[key] = values[-1]
        elif key == "seconds":
            attributes[key] = sum(float(cell[key]) for cell in cells)
        elif key != "cell":
            attributes[key] = values[0] if len(values) == 1 else json.dumps(values)
    return attributes


def _wanted(
    stacks: Sequence[Stack], grids: Sequence[Grid], name: Callable[[Coordinates], str]
) -> Iterable[tuple[Coordinates, tuple[int, int]]]:
    """Each cell of the grids once, and its stack and row."""
    held = {called: (i, row) for i, stack in enumerate(stacks) for row, called in enumerate(stack.names)}
    wanted = {name(cell): cell for grid in grids for cell in grid.cells()}
    return [(cell, held[called]) for called, cell in wanted.items()]


def _places(coordinates: np.ndarray, places: Mapping[Value, int]) -> np.ndarray:
    """Where values stand on the whole axis, [cell, value]; one beyond its end, if they were not asked for."""
    unique, inverse = np.unique(coordinates, return_inverse=True)
    known = np.array([places.get(canonical(value), len(places)) for value in unique], int)
    return known[inverse].reshape(coordinates.shape)


def _union(values: Iterable[tuple[Any, ...]]) -> list[Any]:
    return sorted({value for some in values for value in some})
