"""Stacks put every number where a loop over cells puts it."""

import itertools
import json

import numpy as np
import pytest
import xarray as xr

from icllab.core.grid import Grid, Seeds
from icllab.experiments import stacks
from icllab.experiments.results import label

RNG = np.random.default_rng(0)


def one_by_one(grids, cells):
    """Each variable as a dictionary from coordinates to numbers."""
    asked = {}
    for grid in grids:
        for cell in grid.cells():
            stored = cells[label(cell)]
            static = {axis: cell[axis] for axis in grid.static}
            for name, variable in stored.data_vars.items():
                for at in itertools.product(*(range(size) for size in variable.shape)):
                    where = {d: stored[d].values.tolist()[i] for d, i in zip(variable.dims, at, strict=True)}
                    every = {d: {v for g in grids for v in g.traced[d]} for d in where}
                    if all(value in every[d] for d, value in where.items()):
                        key = frozenset({**static, **where}.items())
                        asked.setdefault(str(name), {})[key] = float(variable.values[at])
    return asked


def cell_of(traced, dims=("tau", "seed"), **attributes):
    """A cell with a number of its own in each place."""
    shape = [len(traced[d]) for d in dims]
    variables = {
        "icl_error": (dims, RNG.normal(size=shape)),
        "prompts": ((), RNG.integers(1000)),
        "converged": (("predictor",), RNG.normal(size=len(traced["predictor"])) > 0),
    }
    coords = {name: np.array(values, object if name == "predictor" else None) for name, values in traced.items()}
    return xr.Dataset(variables, coords, attributes)


PREDICTORS = ("ridge", "λ")


def blocks():
    """Cells that are blocks of seeds: their coordinates differ from row to row."""
    seeds = tuple(range(7))
    grid = Grid(static={"dim": (4, 2)}, traced={"tau": (1, 0.5), "seed": seeds, "predictor": PREDICTORS}, block=2)
    return [grid], {label(cell): cell_of(grid.inside(cell)) for cell in grid.cells()}


def grids():
    """Grids that overlap, cells that hold more than was asked for, in other orders, of several shapes."""
    first = Grid(static={"dim": (4, 2)}, traced={"tau": (1, 0.5), "seed": (0, 1), "predictor": PREDICTORS})
    second = Grid(static={"dim": (8, 2)}, traced={"tau": (2,), "seed": (1, 2), "predictor": ("ridge",)})
    whole = {"tau": (2, 0.5, 1), "seed": (3, 1, 0, 2), "predictor": ("λ", "ridge")}
    cells = {
        label({"dim": 2}): cell_of(whole),
        label({"dim": 4}): cell_of({**first.traced, "seed": (1, 0)}, dims=("seed", "tau")),
        label({"dim": 8}): cell_of(second.traced),
    }
    return [first, second], cells


def nothing_static():
    grid = Grid(static={}, traced={"tau": (1,), "seed": (0, 1, 2), "predictor": PREDICTORS})
    return [grid], {label({}): cell_of(grid.traced)}


@pytest.mark.parametrize("made", [blocks, grids, nothing_static])
@pytest.mark.parametrize("order", [1, -1])
def test_every_number_is_where_a_loop_over_cells_puts_it(made, order):
    some, cells = made()
    variables, axes = stacks.assembled(stacks.stacked(dict(list(cells.items())[::order])), some, label)
    wanted = one_by_one(some, cells)
    assert set(variables) == set(wanted)
    for name, (dims, values) in variables.items():
        assert values.shape == tuple(len(axes[d]) for d in dims)
        assert np.isfinite(values).sum() == len(wanted[name])
        for key, number in wanted[name].items():
            at = dict(key)
            assert values[tuple(axes[d].index(at[d]) for d in dims)] == number


def test_cells_of_one_shape_are_one_stack():
    _, cells = blocks()
    found = stacks.stacked(cells)
    assert sorted(len(stack.names) for stack in found) == [2, 6]  # the last block has one seed
    assert {name for stack in found for name in stack.names} == set(cells)
    again = stacks.joined([stack.take([i]) for stack in found for i in range(len(stack.names))])
    assert [stack.names for stack in again] == [stack.names for stack in found]
    for one, other in zip(found, again, strict=True):
        assert one.shape == other.shape
        np.testing.assert_array_equal(one.variables["icl_error"][1], other.variables["icl_error"][1])
        np.testing.assert_array_equal(one.axes["seed"], other.axes["seed"])


def test_attributes_that_all_cells_share_and_others():
    seeds = Seeds(4, 1)
    grid = Grid(static={"dim": (2,)}, traced={"seed": tuple(range(4))}, block=seeds.block)
    cells = {
        label(cell): xr.Dataset(
            {"loss": ("seed", [0.0])},
            {"seed": [i]},
            {"claim": "a/b", "seconds": 0.1 * i, "created": f"2026-01-0{9 - i}", "cell": str(i), "device": "xy"[i % 2]},
        )
        for i, cell in enumerate(grid.cells())
    }
    assert stacks.shared_attributes(stacks.stacked(cells), [grid], label) == {
        "claim": "a/b",
        "seconds": 0.0 + 0.1 + 0.2 + 0.1 * 3,
        "created": "2026-01-09",
        "device": json.dumps(["x", "y"]),
    }
