"""Running a claim: what is kept, what is computed, and what a store may not mix."""

import itertools
import json
import math
import re

import jax
import numpy as np
import pytest
import xarray as xr
from faults.processes import CLAIM, CLAIMS, DIMS, STORE, measured

import icllab as icl
from icllab.core.errors import CellsMissing, InputError
from icllab.core.grid import Grid
from icllab.figures import png_bytes
from icllab.lab import job, registry
from icllab.lab.checks import Outcome
from icllab.lab.executors import Inline
from icllab.lab.job import Request, new_request, sizes_present
from icllab.lab.netcdf import from_bytes, to_bytes
from icllab.lab.results import Store
from icllab.lab.run import _Sweep, compute, share


@pytest.fixture
def steady(tmp_path, monkeypatch):
    """``steady(...)`` runs the toy claim; ``steady.log()``: the dims that were measured since the last call, sorted."""
    log = tmp_path / "log"
    monkeypatch.setenv("STEADY_LOG", str(log))

    def run(size="small", **options):
        return icl.run(CLAIM, size, **{"out": tmp_path / "out", "claims": CLAIMS, **options})

    def since():
        dims = sorted(dim for dim, _ in measured(log))
        log.unlink(missing_ok=True)
        return dims

    run.out, run.log = tmp_path / "out", since
    return run


def check(steady, **options):
    return icl.check(CLAIM, out=steady.out, claims=CLAIMS, **options)


def test_each_cell_is_computed_once(steady):
    first = steady()
    assert steady.log() == list(DIMS)
    second = steady()
    assert steady.log() == []
    assert second.identical(first)
    assert check(steady).outcome is Outcome.HOLDS


def test_results_open_with_plain_xarray_and_by_name(steady):
    dataset = steady()
    xr.testing.assert_identical(xr.load_dataset(steady.out / STORE / "results.nc"), dataset)
    xr.testing.assert_identical(icl.open(CLAIM, out=steady.out, claims=CLAIMS), dataset)
    xr.testing.assert_identical(icl.open(steady.out / STORE, claims=CLAIMS), dataset)
    moved = (steady.out / STORE).rename(steady.out / "elsewhere")
    xr.testing.assert_identical(icl.open(moved, claims=CLAIMS), dataset)
    assert icl.open(moved).identical(dataset)  # of a claim that is not known here, the Dataset of its last run


def test_a_cell_depends_on_its_coordinates_alone(steady, tmp_path):
    """Not on which others are computed, in which order, at which size of the grid, or by whom."""
    whole = steady(seeds=4)
    some = steady(axes={"dim": [16, 4]}, seeds=2, out=tmp_path / "some")
    for dim in (4, 16):
        expected = whole["icl_error"].sel(dim=dim, seed=[0, 1]).values
        assert some["icl_error"].sel(dim=dim).values.tobytes() == expected.tobytes()


def test_a_store_grows_and_loses_nothing(steady):
    before = steady()
    steady.log()
    grown = steady(axes={"dim": [4, 64]})
    assert steady.log() == [64]
    np.testing.assert_array_equal(grown["icl_error"].sel(dim=4), before["icl_error"].sel(dim=4))
    seeds = steady(seeds=9)
    assert steady.log() == list(DIMS)
    np.testing.assert_array_equal(seeds["icl_error"].sel(seed=before["seed"]), before["icl_error"])
    assert len(steady(seeds=2)["seed"]) == 2
    assert steady.log() == []
    steady(axes={"ridge": [1.0]}, seeds=2)  # the cells are measured at both ridges, with all nine seeds
    assert steady.log() == list(DIMS)
    assert dict(steady(seeds=9, axes={"ridge": [0, 1]}).sizes) == {"dim": 5, "ridge": 2, "seed": 9}
    assert steady.log() == []
    assert [f.id for f in check(steady).findings] == [f"error[dim={dim}]" for dim in (*DIMS, 64)]


def test_attributes_say_where_a_result_comes_from(steady):
    attributes = steady().attrs
    assert attributes["claim"] == CLAIM
    assert json.loads(attributes["sources"]) == ["Lu24"]
    assert attributes["package_version"] == icl.__version__
    assert json.loads(attributes["configuration"])["fixed"] == {"rho": 0.5}
    assert json.loads(attributes["configuration"])["version"] == 1
    assert attributes["device"].startswith("cpu")
    assert set(attributes) >= {"git_commit", "jax_version", "precision", "key", "created"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jax_threefry_partitionable", False),
        ("jax_default_prng_impl", "rbg"),
        ("jax_random_seed_offset", 17),
        ("jax_default_matmul_precision", "float32"),
    ],
)
def test_cells_of_two_settings_are_never_one_run(name, value, steady):
    """The generator is pinned, and the setting stays the user's; another precision of products is refused."""
    before = steady(axes={"dim": [2, 4]})
    assert before.attrs["generator"] == json.loads(before.attrs["configuration"])["generator"]
    assert before.attrs["generator"] == "threefry2x32, partitionable"
    steady.log()
    users = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        if name == "jax_default_matmul_precision":
            with pytest.raises(InputError, match="matmul_precision is 'default' there and 'highest' here"):
                steady()
            assert steady.log() == []
            other = steady(fresh=True)
            assert other.attrs["matmul_precision"] == "highest"
            assert "matrix products have the precision 'highest'" in check(steady).notes[0]
        else:
            steady()
            assert steady.log() == [8, 16, 32]
        assert getattr(jax.config, name) == value
    finally:
        jax.config.update(name, users)
    whole = steady(out=steady.out.with_name("other"))
    np.testing.assert_array_equal(icl.open(CLAIM, out=steady.out, claims=CLAIMS)["icl_error"], whole["icl_error"])


def test_a_store_and_a_cell_of_another_generator_are_refused(steady):
    steady()
    path = steady.out / STORE / "configuration.json"
    stored = json.loads(path.read_text()) | {"generator": "rbg"}
    path.write_text(json.dumps(stored))
    for use in (steady, lambda: check(steady)):
        with pytest.raises(InputError, match="generator is 'rbg' there and 'threefry2x32, partitionable' here"):
            use()
    assert steady.log() == list(DIMS)


def test_a_control_has_a_directory_of_its_own(steady):
    steady()
    steady(control="wrong")
    assert check(steady, control="wrong").outcome is Outcome.FAILS
    assert check(steady).outcome is Outcome.HOLDS
    assert sizes_present(steady.out, CLAIM) == ["small"]
    assert sizes_present(steady.out, CLAIM, "wrong") == ["small"]


def test_another_configuration_is_refused(steady):
    steady()
    with pytest.raises(InputError, match=r"fixed\.rho is 0\.5 there and 0\.25 here"):
        steady(axes={"rho": [0.25]})
    assert steady(axes={"rho": [0.25]}, fresh=True)["icl_error"].mean() < 0.4


def test_results_of_another_version_are_stale_and_not_added_to(steady, monkeypatch):
    before = steady()
    assert check(steady).notes == ()
    monkeypatch.setattr(registry, "version", lambda path: 2)
    (note,) = check(steady).notes
    assert note.startswith("stale: measured by version 1 of the claim's measure, which is 2 now")
    with pytest.raises(InputError, match="version is 1 there and 2 here"):
        steady()
    after = steady(fresh=True)
    assert check(steady).notes == ()
    assert json.loads(after.attrs["configuration"])["version"] == 2
    np.testing.assert_array_equal(before["icl_error"], after["icl_error"])


def test_results_of_older_versions_open(steady):
    """0.2 states no version, which is 1, and 0.3 neither generator nor products, which are those of every claim."""
    dataset = steady()
    path = steady.out / STORE / "configuration.json"
    stored = json.loads(path.read_text())
    for name in ("version", "generator", "matmul_precision"):
        del stored[name]
    path.write_text(json.dumps(stored))
    for cell in ("dim=4", "dim=8"):  # the others are measured today
        file = steady.out / STORE / "cells" / f"{cell}.nc"
        older = from_bytes(file.read_bytes(), file)
        older.attrs["configuration"] = json.dumps(stored)
        for name in ("generator", "matmul_precision"):
            del older.attrs[name]
        file.write_bytes(to_bytes(older))
    steady.log()
    assert check(steady).notes == ()
    assert steady().identical(dataset)
    assert steady.log() == []


def test_a_request_has_the_fixed_numbers_of_its_size():
    claim = "descent/best_step"
    prompts = [Request(claim, size).claim().fixed["prompts"] for size in ("smoke", "small")]
    assert prompts == [512, 16384]
    assert Request(claim, "smoke", {"prompts": (8,)}).claim().fixed["prompts"] == 8


def test_checking_computes_nothing(steady):
    with pytest.raises(CellsMissing, match=r"expected results under .* found none; `icl run claims/steady`"):
        check(steady)
    steady()
    steady.log()
    (steady.out / STORE / "cells" / "dim=8.nc").unlink()
    with pytest.raises(CellsMissing, match=r"expected 5 cells, 1 are missing \(the first: dim=8\)"):
        check(steady)
    assert steady.log() == []
    with pytest.raises(InputError, match="unknown size 'smok'; did you mean 'smoke'"):
        check(steady, size="smok")
    with pytest.raises(CellsMissing, match="at size full"):
        check(steady, size="full")


def test_the_largest_size_that_is_there_is_checked_and_smoke_has_no_verdict(steady):
    steady("smoke")
    verdict = check(steady)
    assert (verdict.outcome, verdict.findings) == (Outcome.UNDECIDED, ())
    assert verdict.notes[0].startswith("smoke is a regression test without a verdict")
    steady("small")
    assert len(check(steady).findings) == 5


def test_a_run_that_is_overtaken_passes_by(steady, monkeypatch):
    """What another process has measured meanwhile is not measured again."""
    from icllab.lab.executors import Inline

    submit = Inline.submit

    def overtaken(self, function, job):
        if len(list((steady.out / STORE / "cells").glob("*.nc"))) == 1:
            monkeypatch.setattr(Inline, "submit", submit)
            steady()
        return submit(self, function, job)

    monkeypatch.setattr(Inline, "submit", overtaken)
    counts = compute(new_request(CLAIM, "small", out=steady.out, claims=CLAIMS))
    assert (counts.computed, counts.kept, counts.missing) == (2, 3, 0)  # the second is measured by both
    assert sorted(set(steady.log())) == list(DIMS)


def test_progress_counts_cells_and_the_time_left_falls_to_nothing(steady):
    steady(axes={"dim": [2, 8]})
    calls = []
    compute(new_request(CLAIM, "small", out=steady.out, claims=CLAIMS), progress=lambda *words: calls.append(words))
    assert [call[:2] for call in calls] == [(i, 5) for i in range(2, 6)]  # two are there already
    assert {call[2] for call in calls[1:]} == {f"dim={dim}" for dim in DIMS if dim not in (2, 8)}
    assert calls[0][2:] == ("there already", None)
    assert calls[-1][3] == 0


def test_cells_of_one_shape_are_measured_one_after_the_other(tmp_path):
    """Then their programs may be dropped; the shapes themselves come in random order."""
    cells, orders = [], set()
    for i in range(4):
        request = new_request(CLAIM, "small", out=tmp_path / str(i), claims=CLAIMS, seeds=1)
        grid = Grid({"dim": (2, 3, 4, 5), "tau": (0.25, 0.5, 0.75)}, {"seed": (0,)})
        store = Store(request.root)
        sweep = _Sweep(request, grid, store, list(grid.cells()), Inline(), 1, None, lambda *_: None)
        cells = [cell["dim"] for cell in sweep._waiting]
        assert len(list(itertools.groupby(cells))) == 4
        orders.add(tuple(cells))
    assert len(cells) == 12
    assert len(orders) > 1


def test_programs_are_dropped_when_a_process_has_grown(monkeypatch):
    """Not before, and again only after it has grown by as much once more."""
    sizes, dropped = iter([100, 100, 200, 100 + job.GROWTH, 101 + job.GROWTH, 150, 151 + job.GROWTH, 90]), []
    monkeypatch.setattr(job, "_resident", None)
    monkeypatch.setattr(job, "resident", lambda: next(sizes))
    monkeypatch.setattr("jax.clear_caches", lambda: dropped.append(len(dropped)))
    counts = []
    for _ in range(5):
        job.drop_programs()
        counts.append(len(dropped))
    assert counts == [0, 0, 0, 1, 2]
    assert job._resident == 90


@pytest.mark.parametrize("seeds", [0, 10**6 + 1, 99999999999999999999, 10**400])
def test_a_count_of_seeds_is_within_bounds(seeds):
    with pytest.raises(InputError, match="seeds: expected an integer from 1 to 1000000"):
        new_request(CLAIM, "small", claims=CLAIMS, seeds=seeds)


def test_fewer_seeds_than_are_stored_are_told(steady):
    def notes(**options):
        return compute(new_request(CLAIM, "small", out=steady.out, claims=CLAIMS, **options), progress=lambda *_: None)

    assert notes(seeds=3).notes == ()
    assert notes(seeds=4).notes == ()
    (note,) = notes(seeds=2).notes
    assert "2 of 4 seeds" in note
    assert "--fresh" in note
    (note,) = notes(seeds=4, axes={"dim": (2, 64)}).notes
    assert "2 of 6 values of dim" in note
    assert not any(
        " seeds that" in note
        for note in compute(
            new_request(CLAIM, "small", out=steady.out, claims=CLAIMS, seeds=2), fresh=True, progress=lambda *_: None
        ).notes
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"workers": 2, "scheduler": "tcp://127.0.0.1:1"},
            "expected one of workers, scheduler and executor, got sever",
        ),
        ({"workers": 0}, "workers"),
        ({"limit": math.nan}, "limit: expected a positive number of seconds"),
        ({"limit": 3, "scheduler": "slurm"}, "limit: expected workers of this machine"),
        ({"shard": (1, 2), "fresh": True}, "expected shard or fresh, got both"),
        ({"scheduler": "slurm:timeout_min"}, "scheduler: expected the address of a dask scheduler"),
    ],
)
def test_options_that_do_not_go_together_are_refused_before_anything_is_measured(options, message, steady):
    with pytest.raises(InputError, match=message):
        compute(new_request(CLAIM, "small", out=steady.out, claims=CLAIMS), **options)
    assert steady.log() == []


def test_drawing_needs_results_of_a_claim(steady):
    dataset = steady()
    before = dataset.copy(deep=True)
    assert icl.draw(dataset, claims=CLAIMS).axes
    assert dataset.identical(before)
    with pytest.raises(InputError, match="expected results of a claim"):
        icl.draw(dataset.drop_attrs(), claims=CLAIMS)


def test_a_claims_name_is_drawn_from_what_is_there(steady):
    with pytest.raises(CellsMissing, match="expected results under"):
        icl.draw(CLAIM, out=steady.out, claims=CLAIMS)
    dataset = steady()
    by_name, by_dataset = icl.draw(CLAIM, out=steady.out, claims=CLAIMS), icl.draw(dataset, claims=CLAIMS)
    assert png_bytes(by_name) == png_bytes(by_dataset)
    with pytest.raises(InputError, match="unknown claim 'claims/stedy'; did you mean 'claims/steady'"):
        icl.draw("claims/stedy", out=steady.out, claims=CLAIMS)
    with pytest.raises(InputError, match=r"results: expected a Dataset of icl\.run, or a claim's name, got 'int'"):
        icl.draw(3)


def test_one_value_of_an_axis_is_no_sequence(steady):
    for value in ("4",):
        message = re.escape(f"axes['dim']: expected a sequence of values, got {value!r}; for one value: {{'dim'")
        with pytest.raises(InputError, match=message):
            steady(axes={"dim": value})
    assert steady.log() == []


def test_cite_is_bibtex(steady):
    assert icl.cite(CLAIM, claims=CLAIMS).startswith("@article{Lu24,")


CELLS = [{"dim": dim, "tau": tau} for dim, tau in itertools.product((10, 20, 40), (0.25 * i for i in range(1, 14)))]


@pytest.mark.parametrize("shards", [1, 2, 5, 13, 39, 50])
def test_shards_are_disjoint_cover_the_grid_and_cost_about_the_same(shards):
    parts = [share(CELLS, i + 1, shards) for i in range(shards)]
    assert sorted(itertools.chain(*parts), key=str) == sorted(CELLS, key=str)
    counts = [len(part) for part in parts]
    assert max(counts) - min(counts) <= 1
    if shards <= 5:
        costs = [sum(math.prod(cell.values()) for cell in part) for part in parts]
        assert max(costs) < 1.1 * min(costs)


def test_a_shard_is_the_same_whatever_the_names_are():
    cells = [{"dim": 4, "kind": kind} for kind in ("a", "b", "c", "d")]
    assert [cell["kind"] for cell in share(cells, 1, 2)] == ["a", "d"]
    assert share([{}], 1, 2) == [{}]
    assert share([{}], 2, 2) == []


def test_what_a_cell_leaves_as_checkpoints_stays_beside_the_results(tmp_path):
    source = (CLAIMS / "steady.py").read_text()
    source = source.replace(
        "key, scratch, raised=0.0):", 'key, scratch, checkpoints, raised=0.0):\n    (checkpoints / "w").touch()'
    )
    source = source.replace("    import jax\n", '    import jax\n\n    (scratch / "w").touch()\n', 1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "steady.py").write_text(source)
    icl.run("mine/steady", "small", out=tmp_path / "out", claims=tmp_path)
    root = tmp_path / "out" / "mine" / "steady" / "small"
    kept = {path.parent.name for path in root.glob("checkpoints/*/w")}
    assert kept == {path.stem for path in root.glob("cells/*.nc")}
    assert len(kept) == len(DIMS)
    assert not (root / "scratch").exists()
