"""What a run says is of the whole sweep: of other shards' cells and other runs' workers too."""

import pytest

from icllab.experiments import heartbeat, tally
from icllab.experiments.cells import Answer
from icllab.experiments.heartbeat import Heart
from icllab.experiments.pools import Processes
from icllab.experiments.store import Store
from icllab.experiments.tally import Tally

CELLS = [{"dim": dim} for dim in (2, 4, 8, 16)]


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path, {"claim": "a"})


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(tally.time, "monotonic", lambda: now[0])
    return now


def test_cells_of_other_shards_and_workers_of_other_runs_count(store, clock):
    heart, said = Heart(store.root), []
    (todo, others) = CELLS[::2], CELLS[1::2]
    counted = Tally(
        4, todo, others, store=store, pool=Processes(2), heart=heart, progress=lambda *words: said.append(words)
    )
    assert said == [(0, 4, "kept", None)]
    counted.ended(CELLS[0], Answer("measured"), 3.0)
    assert said[-1] == (1, 4, "dim=2", pytest.approx(3 * 3.0 / 2, rel=0.5))  # as far as one time tells

    far = heartbeat.replace(heart.beat, pid=1, born="far 1", workers=4)
    other = Heart(store.root)
    other.beat, other.path = far, heart.path.with_name("far-1.json")
    other.tell(0, 4, "", None, workers=4)
    store.path(CELLS[1]).write_bytes(b"what another shard computed")
    clock[0] += 10
    alone = said[-1][3]
    counted.tell("again")
    done, total, _, left = said[-1]
    assert (done, total) == (2, 4)
    assert left < alone / 3 * 1.5  # three times the workers, and a cell less
    assert heart.beat.workers == 2


def test_the_time_left_is_of_costs_and_not_of_cells(store, clock):
    """Of cells that cost the cube of their size the largest is done, and small ones are left."""
    said, cells = [], [{"dim": dim} for dim in (2, 40, 3, 4, 5)]
    pool, heart = Processes(1), Heart(store.root)
    counted = Tally(5, cells, [], store=store, pool=pool, heart=heart, progress=lambda *words: said.append(words))
    for cell in cells[:2]:
        counted.ended(cell, Answer("measured"), cell["dim"] ** 3)
    assert said[-1][3] < 0.1 * 3 * (2**3 + 40**3) / 2


def test_failed_cells_are_not_done_and_not_left(store, clock):
    said = []
    counted = Tally(
        2, CELLS[:2], [], store=store, pool=Processes(1), heart=Heart(store.root), progress=lambda *w: said.append(w)
    )
    counted.ended(CELLS[0], Answer("raised", message="no"), 0.0)
    counted.ended(CELLS[1], None, 0.0)
    assert [words[:2] for words in said] == [(0, 2), (0, 2), (1, 2)]
    assert counted.failed[0][1].message == "no"
    assert counted.computed == 0
