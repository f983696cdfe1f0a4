"""The time left is right within a factor of two after three cells, although cells differ thirtyfold."""

import itertools
import time

import jax
import numpy as np
import pytest

from icllab.experiments.pace import Pace, spread, watched

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
