"""The time left is right within a factor of two after three cells, although cells differ thirtyfold."""

import itertools
import math
import time

import jax
import numpy as np
import pytest

from icllab.experiments.pace import Pace, share, spread, watched
from icllab.experiments.pace import _features as pace_features

DIMS, TAUS = (10, 20, 40), tuple(0.25 * i for i in range(1, 14))
CELLS = [{"dim": dim, "tau": tau} for dim, tau in itertools.product(DIMS, TAUS)]


def seconds(cell, rng, power=2.5):
    slow = 2.0 if abs(cell["tau"] - 1) < 0.1 else 1.0
    return 0.5 * (cell["dim"] / 10) ** power * slow * rng.lognormal(0, 0.2)


def test_the_first_cells_are_from_everywhere():
    order = spread(CELLS)
    assert sorted(order, key=str) == sorted(CELLS, key=str)
    assert {cell["dim"] for cell in order[:3]} == set(DIMS)
    assert spread([]) == []


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("workers", [1, 2])
def test_from_the_third_cell_on_it_is_right_within_two(power, workers):
    rng = np.random.default_rng(0)
    for _ in range(20):
        times = [(cell, seconds(cell, rng, power)) for cell in spread(CELLS)]
        pace = Pace(workers)
        assert pace.left(CELLS) is None
        for i, (cell, took) in enumerate(times, 1):
            pace.took(cell, took)
            rest = times[i:]
            if 3 <= i <= 0.8 * len(times):  # of the last few, one slow cell may be most of the time
                truth = sum(one for _, one in rest) / workers
                assert 0.5 < pace.left([one for one, _ in rest]) / truth < 2
        assert pace.left([]) == 0


@pytest.mark.parametrize("shards", [1, 2, 5, 13, 39, 50])
def test_shards_are_disjoint_cover_the_grid_and_cost_about_the_same(shards):
    parts = [share(CELLS, i + 1, shards) for i in range(shards)]
    assert sorted(itertools.chain(*parts), key=str) == sorted(CELLS, key=str)
    counts = [len(part) for part in parts]
    assert max(counts) - min(counts) <= 1
    if shards <= 5:
        costs = [sum(math.prod(cell.values()) for cell in part) for part in parts]
        assert max(costs) < 1.1 * min(costs)


def test_a_shard_is_the_same_whatever_else_is_asked_of_names():
    cells = [{"dim": 4, "kind": kind} for kind in ("a", "b", "c", "d")]
    assert [cell["kind"] for cell in share(cells, 1, 2)] == ["a", "d"]
    assert share([{}], 1, 2) == [{}]
    assert share([{}], 2, 2) == []


def test_the_two_ways_to_the_weights_agree():
    """With more cells than features the smaller system of equations is solved."""
    rng = np.random.default_rng(1)
    pace, few = Pace(), CELLS[:2]
    for _ in range(20):  # 40 times, of two cells that have five features
        for cell in few:
            pace.took(cell, seconds(cell, rng))
    assert len(pace.done) > 5
    known, times = [cell for cell, _ in pace.done], np.array([t for _, t in pace.done])
    x = pace_features([*known, *few])
    before, after = x[: len(known)], x[len(known) :]
    weights = before.T @ np.linalg.solve(
        before @ before.T + 0.1 * np.eye(len(times)), np.log(times) - np.log(times).mean()
    )
    expected = times.sum() / np.exp(before @ weights).sum() * np.exp(after @ weights).sum()
    assert pace.left(few) == pytest.approx(expected, rel=1e-9)


def test_a_cell_without_coordinates_has_a_time():
    pace = Pace()
    pace.took({}, 3.0)
    assert pace.left([{}, {}]) == pytest.approx(6.0)


def test_compilation_is_counted_apart():
    with watched() as watch:
        jax.jit(lambda x: x**3 + x)(np.float32(2)).block_until_ready()
        time.sleep(0.05)
    assert 0 < watch.compiling < watch.seconds
    assert watch.seconds - watch.compiling > 0.05
    with watched() as again:
        pass
    assert again.compiling == 0
