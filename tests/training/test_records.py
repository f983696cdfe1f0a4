"""Which steps are recorded, and that a checkpoint returns what was written down."""

import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.training.records import Records, Schedule


def test_steps_are_log_spaced_and_the_same_in_a_longer_run():
    short, long = Schedule(16).upto(500), Schedule(16).upto(100_000)
    assert short == [step for step in long if step < 500]
    ratios = np.diff(np.log10([step for step in long if step > 100]))
    np.testing.assert_allclose(ratios, 1 / 16, atol=0.005)
    assert long[:4] == [0, 1, 2, 3]
    assert len([step for step in long if 1000 <= step < 10_000]) == 16


def test_every_step_or_those_given():
    assert Schedule("every").upto(4) == [0, 1, 2, 3]
    assert Schedule([7, 2, 2, 30]).upto(10) == [2, 7]
    with pytest.raises(InputError, match=r"record: expected steps >= 0, got \[-1, 2\]"):
        Schedule([2, -1])
    with pytest.raises(InputError, match="got 'often'"):
        Schedule("often")


def test_records_come_back_from_their_arrays(getkey):
    records = Records((2, 3))
    records.losses[4], records.losses[1] = np.ones((2, 3)), np.full((2, 3), np.nan)
    records.final[1] = 5
    back = Records.of(records.arrays())
    np.testing.assert_array_equal(back.final, records.final)
    assert sorted(back.losses) == [1, 4]
    assert not back.held_out
    table = back.table(back.losses, [1, 2, 4])
    assert table.shape == (2, 3, 3)
    np.testing.assert_array_equal(np.isnan(table).all(axis=(0, 2)), [True, True, False])
