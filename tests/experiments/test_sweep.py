"""How often a cell is given out again, by what became of it; and that each is kept once."""

import contextlib
import signal

import pytest
from faults.processes import CLAIM, CLAIMS, DIMS, STORE, leftovers

from icllab.core.errors import EnvironmentFault, InputError
from icllab.experiments import requests, runner
from icllab.experiments.cells import Answer, measured
from icllab.experiments.pools import Pool


class Scripted(Pool):
    """Two workers, the later order answered first; what becomes of a cell's tries is told in advance."""

    def __init__(self, *endings, dim=4):
        self.endings, self.dim = list(endings), dim
        self.given, self.most = [], 0
        self._orders = []

    room = 2
    busy = False

    def give(self, order):
        self.given.append(order.cell["dim"])
        self._orders.append(order)
        self.most = max(self.most, len(self._orders))

    def answers(self, seconds):
        order = self._orders.pop()
        if order.cell["dim"] == self.dim and self.endings:
            ending = self.endings.pop(0)
            return [(order, Answer(ending, message=f"it {ending}", details="where"))]
        return [(order, measured(order))]

    def close(self):
        raise AssertionError("the context closes it")


@pytest.fixture
def run(tmp_path, monkeypatch):
    def with_pool(scripted):
        monkeypatch.setattr(runner, "pool", lambda *how: contextlib.nullcontext(scripted))
        return runner.compute(requests.requested(CLAIM, "smoke", out=tmp_path, claims=CLAIMS))

    return with_pool


@pytest.mark.parametrize(
    ("endings", "tries"),
    [((), 1), (("raised",) * 2, 3), (("died",) * 3, 4), (("died", "raised", "died", "raised", "died"), 6)],
)
def test_a_cell_is_given_out_again(endings, tries, run, tmp_path):
    pool = Scripted(*endings)
    assert run(pool).computed == len(DIMS)
    assert pool.given.count(4) == tries
    assert len(pool.given) == len(DIMS) - 1 + tries
    assert pool.most == 2
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("endings", "error"),
    [
        (("raised",) * 3, EnvironmentFault),
        (("died",) * 4, EnvironmentFault),
        (("abandoned",), EnvironmentFault),
        (("refused",), InputError),
    ],
)
def test_and_has_failed_in_the_end_while_the_others_are_kept(endings, error, run, tmp_path):
    pool = Scripted(*endings)
    with pytest.raises(error, match=f"1 of 5 cells failed, 4 are kept; the first, dim=4: it {endings[0]}"):
        run(pool)
    assert pool.given.count(4) == len(endings)
    failures = list((tmp_path / STORE / "failures").glob("*"))
    assert [path.name for path in failures] == ([] if endings == ("refused",) else ["dim=4.txt"])
    assert all("where" in path.read_text() for path in failures)
    assert run(Scripted()).computed == 1
    assert leftovers(tmp_path) == []


def test_a_worker_that_is_not_fit_ends_the_run_at_once(run, tmp_path):
    pool = Scripted("unfit")
    with pytest.raises(EnvironmentFault, match="it unfit"):
        run(pool)
    assert len(pool.given) <= len(DIMS)
    assert leftovers(tmp_path) == []


class Interrupted(Scripted):
    """Workers that answer nothing once there was Ctrl-C, as those of a scheduler that has none."""

    def __init__(self, *, deserted):
        super().__init__()
        self.gone, self.asked, self.told = deserted, 0, []

    @property
    def deserted(self):
        return self.gone and self.asked > 0

    def answers(self, seconds):
        self.asked += 1
        assert self.asked < 10, "nothing ends the wait"
        self.told.append(self.interrupted())
        if self.asked == 1:
            signal.raise_signal(signal.SIGINT)
            self.told.append(self.interrupted())
        return [] if self.gone or self.asked < 3 else super().answers(seconds)


@pytest.mark.parametrize(("deserted", "kept"), [(True, 0), (False, 2)])
def test_ctrl_c_waits_for_cells_under_way_unless_nobody_is_at_them(deserted, kept, run, tmp_path):
    pool = Interrupted(deserted=deserted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # also where tests run in the background
    try:
        with pytest.raises(runner.RunInterrupted, match=f"{kept} of 5 cells are kept"):
            run(pool)
    finally:
        signal.signal(signal.SIGINT, before)
    assert pool.asked == (1 if deserted else 4)
    assert pool.told[:2] == [False, True]
    assert leftovers(tmp_path) == []
