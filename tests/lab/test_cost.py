"""The cost of a run before it: how it scales, and which cells are there already."""

import shutil

import pytest
from faults.processes import CLAIM, CLAIMS, DIMS, STORE

import icllab as icl
from icllab.core.errors import CellsMissing, InputError
from icllab.lab import cost, recording, records, registry
from icllab.lab.job import Request

ENTRIES = {
    "smoke": {"seconds": 2.0, "machine": "a machine"},
    "small": {"seconds": 30.0, "machine": "a machine", "peak_bytes": 10**9},
}


@pytest.fixture
def recorded(monkeypatch):
    """A record of the toy claim: five cells of six seeds at ``small``."""
    monkeypatch.setattr(records, "read", lambda claim, folder=None: ENTRIES)


def request(size="small", **values):
    return Request(CLAIM, size, claims=str(CLAIMS), **values)


def test_the_recorded_size_is_taken_as_it_is(recorded):
    assert cost.estimate(request()) == cost.Cost(30.0, "small", 30.0, 1.0, "a machine", 10**9)


@pytest.mark.parametrize(
    ("values", "scale"),
    [({"seeds": 12}, 2.0), ({"axes": {"dim": (2, 4)}}, 0.4), ({"axes": {"ridge": (0.0, 1.0)}, "seeds": 3}, 1.0)],
)
def test_work_is_cells_times_points_inside(values, scale, recorded):
    estimate = cost.estimate(request(**values))
    assert estimate.scale == pytest.approx(scale)
    assert estimate.seconds == pytest.approx(30 * scale)
    assert estimate.recorded == 30.0


@pytest.mark.parametrize("factor", [0.5, 3])
def test_another_fixed_number_of_steps_scales_the_cost(factor, recorded):
    name = "descent/best_step"
    steps = registry.load(name).at("small").fixed["steps"]
    estimate = cost.estimate(Request(name, "small", axes={"steps": (int(factor * steps),)}))
    assert estimate.seconds == pytest.approx(30 * factor)


def test_another_size_is_from_the_nearest_that_is_judged(monkeypatch):
    """The memory of another size says nothing; smoke predicts no other size."""
    monkeypatch.setattr(records, "read", lambda claim, folder=None: {"small": ENTRIES["small"]})
    estimate = cost.estimate(request("smoke"))
    assert (estimate.size, estimate.recorded, estimate.peak_bytes) == ("small", 30.0, None)
    monkeypatch.setattr(records, "read", lambda claim, folder=None: {"smoke": ENTRIES["smoke"]})
    assert cost.estimate(request("smoke")).seconds == 2.0
    with pytest.raises(CellsMissing, match=r"expected a record .* `icl check claims/steady --record` make it"):
        cost.estimate(request())


def test_cpu_time_is_taken_if_it_is_recorded(recorded, monkeypatch):
    entries = {"small": ENTRIES["small"] | {"cpu_seconds": 20.0}}
    monkeypatch.setattr(records, "read", lambda claim, folder=None: entries)
    assert (cost.estimate(request()).recorded, cost.estimate(request()).seconds) == (20.0, 20.0)


@pytest.fixture
def ran(tmp_path):
    icl.run(CLAIM, "small", axes={"dim": [2, 8]}, out=tmp_path, claims=CLAIMS)
    return tmp_path


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in sorted(folder.rglob("*"))}


def test_a_plan_knows_what_is_there_and_changes_nothing(ran):
    damaged = ran / STORE / "cells" / "dim=8.nc"
    before = contents(ran)
    kept, missing = cost.plan(request(out=str(ran)))
    assert (kept, [cell["dim"] for cell in missing]) == ([{"dim": 2}, {"dim": 8}], [4, 16, 32])
    assert contents(ran) == before
    assert cost.plan(request(out=str(ran)), fresh=True)[0] == []
    assert cost.plan(request(out=str(ran), seeds=7))[0] == []  # one seed more than the cells have
    assert len(cost.plan(request(out=str(ran), seeds=3))[0]) == 2
    shards = [cost.plan(request(out=str(ran)), shard=(i, 2)) for i in (1, 2)]
    assert sorted(cell["dim"] for pair in shards for part in pair for cell in part) == list(DIMS)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    before = contents(ran)
    assert cost.plan(request(out=str(ran)))[0] == [{"dim": 2}]
    assert contents(ran) == before


def test_a_plan_of_nothing_makes_no_directory(tmp_path):
    kept, missing = cost.plan(request(out=str(tmp_path / "out")))
    assert (kept, len(missing)) == ([], 5)
    assert not (tmp_path / "out").exists()


def test_a_plan_refuses_another_configuration(ran):
    with pytest.raises(InputError, match="another configuration"):
        cost.plan(request(out=str(ran), axes={"rho": (0.25,)}))


def test_a_run_notes_its_cpu_time_and_memory(ran, tmp_path):
    """Of cells of an older version, which note none, the whole notes none."""
    from icllab.lab.results import shared_attributes

    cells = [
        {"seconds": 1.0, "cpu_seconds": 2.0, "peak_bytes": 5},
        {"seconds": 2.0, "cpu_seconds": 3.0, "peak_bytes": 4},
    ]
    assert shared_attributes(cells) == {"seconds": 3.0, "cpu_seconds": 5.0, "peak_bytes": 5.0}
    assert shared_attributes([*cells, {"seconds": 1.0}]) == {"seconds": 4.0}
    folder = tmp_path / "recorded" / "claims"
    folder.mkdir(parents=True)
    shutil.copy(CLAIMS / "steady.py", folder)
    dataset = icl.run(CLAIM, "small", out=ran, claims=folder)
    recording.write(registry.load(CLAIM, folder), "small", None, dataset, folder)
    entry = records.read(CLAIM, folder)["small"]
    assert entry["cpu_seconds"] == round(dataset.attrs["cpu_seconds"], 1)
    assert entry["peak_bytes"] > 10**8
