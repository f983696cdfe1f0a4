"""Which cells there are, and which are held out."""

import numpy as np
import pytest

from icllab.arena import Phenomenon
from icllab.arena.phenomenon import drawn_cells
from icllab.core.errors import InputError

CELLS = [{"x": float(x)} for x in range(20)]


def phenomenon(**changes):
    fields = {"value": "steps", "conditions": {"x": "x"}, "cells": CELLS, "seeds": 2, "held_out": 6}
    return Phenomenon(**{**fields, "key": 0, **changes})


def test_the_key_draws_the_held_out_cells():
    flags = phenomenon().is_held_out
    assert flags.sum() == 6  # and not the 14 others
    np.testing.assert_array_equal(flags, phenomenon().is_held_out)
    draws = np.array([phenomenon(key=key).is_held_out for key in range(200)])
    share = draws.mean(0)  # of every cell 0.3, with a standard error of 0.032
    assert abs(share - 0.3).max() < 4 * 0.0325
    assert (draws != flags).any(1).mean() > 0.9


def test_parts_are_disjoint_and_complete():
    declared = phenomenon()
    train, held_out = declared.parts(declared.empty())
    assert (train.sizes["cell"], held_out.sizes["cell"]) == (14, 6)
    np.testing.assert_array_equal(held_out["x"], np.flatnonzero(declared.is_held_out))
    assert set(train["x"].values) | set(held_out["x"].values) == {cell["x"] for cell in CELLS}


def test_measurements_have_seeds_of_their_own():
    declared = phenomenon()
    seeds = [declared.measurement_seed(cell, seed) for cell in CELLS for seed in range(2)]
    assert len(set(seeds)) == len(seeds)
    assert seeds != [phenomenon(key=1).measurement_seed(cell, seed) for cell in CELLS for seed in range(2)]
    assert all(0 <= seed < 2**31 for seed in seeds)
    two = {"x": 1.0, "y": 2.0}
    assert declared.measurement_seed(two, 0) == declared.measurement_seed({"y": 2, "x": 1}, 0)


def test_drawn_cells_differ():
    levels = {"a": (1.0, 2.0, 3.0), "b": (0.0, 1.0)}
    cells = drawn_cells(levels, count=5, key=0)
    assert len({tuple(cell.values()) for cell in cells}) == 5
    assert all(cell["a"] in levels["a"] and cell["b"] in levels["b"] for cell in cells)
    with pytest.raises(InputError, match="count: expected at most 6 combinations, got 7"):
        drawn_cells(levels, count=7, key=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"held_out": 17}, "held_out: expected at most 16 of 20 cells, got 17"),
        ({"held_out": 3}, "held_out: expected an integer of at least 4, got 3"),
        ({"cells": [*CELLS, {"y": 1.0}]}, "cells: expected numbers for x"),
        ({"cells": [*CELLS, {"x": 1.0}]}, "cells: expected conditions that differ"),
    ],
)
def test_a_wrong_declaration_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        phenomenon(**changes)
