"""Running a claim: what is kept, what is computed, and what a store may not mix."""

import json

import numpy as np
import pytest
from faults.processes import CLAIM, CLAIMS, DIMS, STORE, measured

import icllab as icl
from icllab.core.errors import CellsMissing, EnvironmentFault, InputError
from icllab.experiments import digests, provenance, requests, runner
from icllab.experiments.checks import Outcome
from icllab.experiments.leases import Leases
from icllab.experiments.store import read_dataset, write_dataset
from icllab.figures import png_bytes


@pytest.fixture
def steady(tmp_path, monkeypatch):
    """``steady(...)`` runs the toy claim at smoke; ``steady.log()``: what was measured since last asked, ascending."""
    log = tmp_path / "log"
    monkeypatch.setenv("STEADY_LOG", str(log))

    def run(size="smoke", **options):
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


def test_a_cell_depends_on_its_coordinates_alone(steady, tmp_path):
    """Not on which others are computed, in which order, at which size of the grid, or by whom."""
    whole = steady(seeds=4)
    some = steady(axes={"dim": [16, 4]}, seeds=2, out=tmp_path / "some")
    for dim in (4, 16):
        expected = whole["icl_error"].sel(dim=dim, seed=[0, 1]).values
        assert some["icl_error"].sel(dim=dim).values.tobytes() == expected.tobytes()


def test_a_store_grows_without_computing_again(steady):
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
    assert [f.id for f in check(steady).findings] == [f"error[dim={dim}]" for dim in (*DIMS, 64)]


def test_attributes_say_where_a_result_comes_from(steady):
    attributes = steady().attrs
    assert attributes["claim"] == CLAIM
    assert json.loads(attributes["sources"]) == ["Lu24"]
    assert attributes["package_version"] == icl.__version__
    assert json.loads(attributes["configuration"])["fixed"] == {"rho": 0.5}
    assert attributes["device"].startswith("cpu")
    assert set(attributes) >= {"git_commit", "jax_version", "precision", "key", "created", "sources_digest"}


def test_a_control_has_a_directory_of_its_own(steady):
    steady()
    steady(control="wrong")
    assert check(steady, control="wrong").outcome is Outcome.FAILS
    assert check(steady).outcome is Outcome.HOLDS
    assert requests.sizes_present(steady.out, CLAIM) == ["smoke"]
    assert requests.sizes_present(steady.out, CLAIM, "wrong") == ["smoke"]


def test_another_configuration_is_refused(steady):
    steady()
    with pytest.raises(InputError, match=r"fixed\.rho is 0\.5 there and 0\.25 here"):
        steady(axes={"rho": [0.25]})
    assert steady(axes={"rho": [0.25]}, fresh=True)["icl_error"].mean() < 0.4


def test_a_request_has_the_fixed_numbers_of_its_size():
    claim = "asymptotics/in_context_curve"
    batches = [requests.Request(claim, size).experiment().fixed["batch"] for size in ("smoke", "small")]
    assert batches == [32, 64]
    assert requests.Request(claim, "smoke", {"batch": (8,)}).experiment().fixed["batch"] == 8


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


def test_the_largest_size_that_is_there_is_checked(steady):
    steady("smoke")
    assert len(check(steady).findings) == 5
    steady("small")
    assert len(check(steady).findings) == 2


def test_results_of_other_sources_are_stale(steady, monkeypatch):
    steady()
    assert check(steady).notes == ()
    monkeypatch.setattr(digests, "measurement", lambda file: "another")
    (note,) = check(steady).notes
    assert note.startswith("stale: the sources these results depend on have changed since")
    outcome = runner.execute(requests.requested(CLAIM, "smoke", out=steady.out, claims=CLAIMS))
    assert outcome.notes == (note,)
    assert (outcome.computed, outcome.kept) == (0, 5)


def unleased(monkeypatch):
    """Runs that do not see each other's leases, as where a lease was taken over by mistake."""
    monkeypatch.setattr(Leases, "take", lambda self, cell: True)


def test_a_run_that_is_overtaken_leaves_the_file_that_is_there(steady, monkeypatch):
    """Two processes measure one cell: the file of the first to finish stays, bit for bit."""
    steady(axes={"dim": [4]})
    path = steady.out / STORE / "cells" / "dim=4.nc"
    stored = read_dataset(path)
    path.unlink()
    original = provenance.machine

    def overtaken():
        write_dataset(path, stored.assign_attrs(created="earlier"))
        return original()

    unleased(monkeypatch)
    monkeypatch.setattr(provenance, "machine", overtaken)
    request = requests.requested(CLAIM, "smoke", axes={"dim": [4]}, out=steady.out, claims=CLAIMS)
    done = runner.compute(request)
    assert (done.computed, done.kept, done.missing) == (0, 1, 0)
    assert read_dataset(path).attrs["created"] == "earlier"


def test_values_that_another_process_added_meanwhile_are_kept(steady, monkeypatch):
    """Two processes grow one cell along different axes: both find theirs in it."""
    steady(axes={"dim": [4]})
    original, calls = provenance.machine, []

    def overtaken():
        calls.append(True)
        if len(calls) == 1:
            steady(axes={"dim": [4], "ridge": [0, 1]})
        return original()

    unleased(monkeypatch)
    monkeypatch.setattr(provenance, "machine", overtaken)
    steady(axes={"dim": [4]}, seeds=8)
    cell = read_dataset(steady.out / STORE / "cells" / "dim=4.nc")
    assert dict(cell.sizes) == {"ridge": 2, "seed": 8}
    assert cell["icl_error"].notnull().all()


def test_progress_counts_what_is_kept(steady):
    steady(axes={"dim": [2, 8]})
    said = []
    request = requests.requested(CLAIM, "smoke", out=steady.out, claims=CLAIMS)
    runner.execute(request, progress=lambda *words: said.append(words))
    assert [words[:3] for words in said] == [(2, 5, "kept"), (3, 5, "dim=4"), (4, 5, "dim=32"), (5, 5, "dim=16")]
    assert said[0][3] is None
    assert said[1][3] > said[2][3] > said[3][3] == 0


def test_a_failure_is_counted_and_the_rest_computed(steady, monkeypatch):
    monkeypatch.setenv("STEADY_FAULT", "raise:8")
    with pytest.raises(
        EnvironmentFault, match=r"1 of 5 cells failed, 4 are kept; the first, dim=8: RuntimeError: no such"
    ):
        steady()
    assert steady.log() == sorted([*DIMS, 8, 8])  # tried again twice
    failure = steady.out / STORE / "failures" / "dim=8.txt"
    assert 'raise RuntimeError("no such luck' in failure.read_text()
    monkeypatch.delenv("STEADY_FAULT")
    steady()
    assert steady.log() == [8]
    assert not failure.parent.exists()


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
    named, given = icl.draw(CLAIM, out=steady.out, claims=CLAIMS), icl.draw(dataset, claims=CLAIMS)
    assert png_bytes(named) == png_bytes(given)
    with pytest.raises(InputError, match="unknown claim 'claims/stedy'; did you mean 'claims/steady'"):
        icl.draw("claims/stedy", out=steady.out, claims=CLAIMS)
    with pytest.raises(InputError, match=r"results: expected a Dataset of icl\.run, or a claim's name, got 'int'"):
        icl.draw(3)


def test_one_value_of_an_axis_is_no_sequence(steady):
    with pytest.raises(
        InputError, match=r"axes\['dim'\]: expected a sequence of values, got '4'; for one value: {'dim'"
    ):
        steady(axes={"dim": "4"})
    with pytest.raises(InputError, match=r"axes\['tau'\]: expected a sequence of values, got 0.5"):
        requests._values("tau", 0.5)
    assert steady.log() == []


def test_cite_is_bibtex(steady):
    assert icl.cite(CLAIM, claims=CLAIMS).startswith("@article{Lu24,")
