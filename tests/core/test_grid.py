"""Cells are named by their coordinates alone; so is what is random in them."""

import itertools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.grid import BLOCK, Grid, Seeds, batched, canonical, cell_key, spelled, stable_hash, tabulated


def test_cells_are_the_product_of_the_static_axes():
    grid = Grid(static={"dim": (2, 4), "tau": (0.5, 1.0, 2.0)}, traced={"seed": (0, 1)})
    cells = list(grid.cells())
    assert len(grid) == len(cells) == 6
    assert [(c["dim"], c["tau"]) for c in cells] == list(itertools.product((2, 4), (0.5, 1, 2)))
    assert len({stable_hash(cell) for cell in cells}) == 6


def test_a_grid_without_static_axes_is_one_cell():
    assert list(Grid(static={}, traced={"seed": (0,)}).cells()) == [{}]


@pytest.mark.parametrize(
    ("static", "said"),
    [
        ({"dim": ()}, r"dim: expected at least one value, got \[\]"),
        ({"dim": (2, 2.0)}, "dim: expected values that differ"),
    ],
)
def test_what_is_no_grid_is_refused(static, said):
    with pytest.raises(InputError, match=said):
        Grid(static=static, traced={})


def test_values_that_differ_in_kind_alone_are_one_value():
    with pytest.raises(InputError, match="tau: expected values that differ"):
        Grid(static={}, traced={"tau": (np.float64(2.0), 2, 3)})


@pytest.mark.parametrize("value", [1, 1.0, np.int32(1), np.float64(1.0)])
def test_a_number_has_one_spelling(value):
    assert canonical(value) == 1
    assert type(canonical(value)) is int
    assert stable_hash({"tau": value}) == stable_hash({"tau": 1})


def test_the_hash_is_one_of_names_and_values():
    coordinates = {"dim": 4, "tau": 0.1, "predictor": "ridge"}
    assert stable_hash(coordinates) == stable_hash(dict(reversed(coordinates.items())))
    assert stable_hash(coordinates) != stable_hash({**coordinates, "tau": 0.1 + 2**-54})
    assert stable_hash({"dim": 1, "tau": 2}) != stable_hash({"dim": 2, "tau": 1})
    assert 0 <= stable_hash(coordinates) < 2**32


def test_the_hash_does_not_change():
    """Cells on disk were computed with these numbers: a change here is a change of every result."""
    assert stable_hash({}) == 0x44136FA3
    code = "from icllab.core.grid import stable_hash; print(stable_hash({'dim': 4, 'tau': 0.1}))"
    elsewhere = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(elsewhere) == stable_hash({"tau": 0.1, "dim": 4.0})


def test_no_two_of_many_cells_share_a_key():
    """A 32-bit hash: among 5000 cells a collision has probability 0.003, and these have none."""
    hashes = {stable_hash({"dim": d, "tau": t / 64}) for d in range(50) for t in range(100)}
    assert len(hashes) == 5000
    key = jax.random.key(0)
    first, second = cell_key(key, {"dim": 1}), cell_key(key, {"dim": 2})
    assert not jnp.array_equal(jax.random.key_data(first), jax.random.key_data(second))


def test_blocks_hold_every_seed_once_and_share_the_key_of_their_cell():
    """What is random depends on the seed, not on the block it is in."""
    grid = Grid(static={"dim": (2, 4)}, traced={"tau": (1.0, 2.0), "seed": (0, 1, 2, 5)}, block=2)
    cells = list(grid.cells())
    assert cells == [{"dim": d, BLOCK: b} for d in (2, 4) for b in (0, 1, 2)]
    assert [grid.inside(cell)["seed"] for cell in cells[:3]] == [(0, 1), (2,), (5,)]
    assert all(grid.inside(cell)["tau"] == (1, 2) for cell in cells)
    keys = {tuple(jax.random.key_data(cell_key(jax.random.key(0), cell)).tolist()) for cell in cells[:3]}
    assert keys == {tuple(jax.random.key_data(cell_key(jax.random.key(0), {"dim": 2})).tolist())}


@pytest.mark.parametrize(("count", "block"), [(0, 1), (4, 0), (2.5, 1), (True, 1)])
def test_blocks_that_cannot_be_are_refused(count, block):
    with pytest.raises(Exception, match=r"seeds|count|block"):
        Seeds(count, block)


def test_seeds_may_begin_where_those_of_another_size_end():
    assert Seeds(4, block=2, first=10).values == (10, 11, 12, 13)
    assert Seeds(2, block=1).values == (0, 1)
    with pytest.raises(Exception, match="first seed"):
        Seeds(4, 2, -1)


def test_a_table_has_the_axes_of_the_call_before_its_own():
    def measured(seed, rate):
        return {"loss": seed + 10 * rate, "curve": (("step",), [seed, rate, 0])}

    table = tabulated(measured, seed=(1, 2, 3), rate=(0.5, 0.25))
    assert table["loss"][0] == ("seed", "rate")
    np.testing.assert_array_equal(table["loss"][1], [[6.0, 3.5], [7.0, 4.5], [8.0, 5.5]])
    assert table["curve"][0] == ("seed", "rate", "step")
    np.testing.assert_array_equal(table["curve"][1][2, 1], [3.0, 0.25, 0.0])
    assert table["curve"][1].shape == (3, 2, 3)


def test_coordinates_are_spelled_in_six_digits():
    assert spelled({"dim": 40, "tau": 0.1 + 0.2, "model": "a, b"}) == "dim=40, tau=0.3, model=a, b"
    assert spelled({}) == ""


def test_batched_is_the_loop():
    x, y = jnp.arange(3.0), jnp.arange(4.0) + 1
    result = batched(lambda rho, ridge: (rho / ridge, rho - ridge), rho=x, ridge=y)
    np.testing.assert_array_equal(result[0], x[:, None] / y[None, :])
    np.testing.assert_array_equal(result[1], x[:, None] - y[None, :])
    assert batched(lambda: 3.0) == 3.0
