"""The cost of a run before it: how it scales, how far it was off, and what is there already."""

import math
import shutil

import pytest
from faults.processes import CLAIM, CLAIMS, DIMS, STORE

import icllab as icl
from icllab.core.errors import CellsMissing, InputError
from icllab.lab import cost, recording, records, registry
from icllab.lab.cost import Basis, Estimate, Measurement
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


def test_an_interval_is_a_factor_up_and_down():
    low, high = Estimate(10.0, 0.5).interval
    assert (low * high, high / low) == pytest.approx((100, math.exp(2 * 1.645 * 0.5)))
    assert Estimate(10.0, 0.3).times(2.0, 0.4) == Estimate(20.0, 0.5)  # independent errors
    assert Estimate(3.0).interval == (3.0, 3.0)


def test_the_recorded_size_is_taken_as_it_is(recorded):
    basis = cost.basis(request())
    assert (basis.size, basis.recorded, basis.scale, basis.smoke) == ("small", 30.0, 1.0, 2.0)
    assert basis.seconds == Estimate(30.0, 0.0)
    assert basis.peak_bytes == 10**9


def test_compilation_is_what_makes_two_records_agree():
    """Programs of 1.5 s and 0.05 s a unit of work; then what the two records cannot tell."""
    work, programs = (30.0, 2000.0), (3, 5)
    seconds = [1.5 * p + 0.05 * w for p, w in zip(programs, work, strict=True)]
    sizes = list(zip(work, programs, strict=True))
    assert cost._compilation(*seconds, *sizes) == pytest.approx(1.5)
    assert cost._compilation(3.0, 400.0, *sizes) == pytest.approx(cost.COMPILED * 1.0)  # larger cells
    assert cost._compilation(3.0, 1.0, *sizes) == pytest.approx(1.0 / 5)  # never more than either record has
    assert cost._compilation(3.0, 40.0, (30.0, 3), (30.0, 3)) == pytest.approx(cost.COMPILED * 1.0)


def test_many_shapes_take_longer_than_as_many_numbers(recorded):
    shapes = cost.basis(request(axes={"dim": tuple(range(2, 42))}, seeds=1))
    seeds = cost.basis(request(axes={"dim": (2,)}, seeds=40))
    assert shapes.scale == pytest.approx(seeds.scale)
    assert shapes.compilation == pytest.approx(40 * seeds.compilation)
    assert shapes.seconds.value > seeds.seconds.value


@pytest.mark.parametrize(
    ("values", "scale"),
    [({"seeds": 12}, 2.0), ({"axes": {"dim": (2, 4)}}, 0.4), ({"axes": {"ridge": (0.0, 1.0)}, "seeds": 3}, 1.0)],
)
def test_work_is_cells_times_points_inside(values, scale, recorded):
    basis = cost.basis(request(**values))
    assert basis.scale == pytest.approx(scale)
    programs = 2 if "axes" in values and "dim" in values["axes"] else 5
    each = basis.compilation / programs
    assert 0 < each <= 30 / 5
    assert basis.seconds.value == pytest.approx(programs * each + (30 - 5 * each) * scale)
    assert basis.seconds.spread == (cost.EXTRAPOLATED if scale != 1 else 0)


@pytest.mark.parametrize("factor", [0.5, 3])
def test_another_fixed_number_of_steps_scales_the_cost(factor, recorded):
    name = "descent/best_step"
    steps = registry.load(name).at("small").fixed["steps"]
    basis = cost.basis(Request(name, "small", axes={"steps": (int(factor * steps),)}))
    assert basis.scale == pytest.approx(factor)
    assert 0 < basis.compilation < 30
    assert basis.seconds.value == pytest.approx(basis.compilation + (30 - basis.compilation) * factor)


def test_cpu_time_is_taken_where_both_entries_have_it(recorded, monkeypatch):
    entries = {"smoke": ENTRIES["smoke"], "small": ENTRIES["small"] | {"cpu_seconds": 20.0}}
    monkeypatch.setattr(records, "read", lambda claim, folder=None: entries)
    assert (cost.basis(request()).recorded, cost.basis(request()).smoke) == (30.0, 2.0)
    entries["smoke"] = entries["smoke"] | {"cpu_seconds": 1.5}
    assert (cost.basis(request()).recorded, cost.basis(request()).smoke) == (20.0, 1.5)


def test_without_a_record_it_says_what_makes_one(monkeypatch):
    monkeypatch.setattr(records, "read", lambda claim, folder=None: {"smoke": ENTRIES["smoke"]})
    assert cost.basis(request("smoke")).recorded == 2.0
    with pytest.raises(CellsMissing, match=r"expected a record .* `icl check claims/steady --record` make it"):
        cost.basis(request())


def test_a_machine_is_measured_by_its_smoke():
    basis = Basis(Estimate(100.0, 0.3), "small", 50.0, 2.0, 4.0, "a machine", None)
    here = cost.seconds_here(basis, Measurement(1.0, 0, 0, ()))  # four times as fast
    assert here == Estimate(25.0, math.hypot(0.3, cost.TRANSFERRED))
    assert cost.seconds_here(basis, None) == Estimate(100.0, math.hypot(0.3, cost.UNMEASURED))


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    out = tmp_path_factory.mktemp("smoke")
    return cost._smoke(Request(CLAIM, "smoke", out=str(out), claims=str(CLAIMS)))


def test_disk_is_that_of_the_shapes(smoke, tmp_path):
    """Arrays grow with their axes; the rest of a file does not, but for a few names."""
    assert smoke.seconds > 0
    assert smoke.peak_bytes > 10**8
    icl.run(CLAIM, "small", seeds=4000, out=tmp_path, claims=CLAIMS)
    written = sum(path.stat().st_size for path in (tmp_path / STORE / "cells").glob("*.nc"))
    grid = request().claim().grid("small", seeds=4000)
    assert smoke.bytes_of(grid) == pytest.approx(written, rel=0.1)
    assert written > 5 * 4000 * 8


@pytest.mark.slow
def test_a_measurement_in_a_process_of_its_own(monkeypatch):
    """One that fails, takes too much CPU time, or waits for an hour is none."""
    measured = cost.measure_smoke(request())
    assert measured is not None
    assert measured.seconds < 5
    assert cost.measure_smoke(request(), 0.01) is None
    monkeypatch.setenv("STEADY_FAULT", "raise:4")
    assert cost.measure_smoke(request()) is None
    monkeypatch.setenv("STEADY_PAUSE", "3600")
    monkeypatch.setattr(cost, "LONGEST", 0.2)
    assert cost.measure_smoke(request()) is None


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
