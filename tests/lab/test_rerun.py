"""Cells measured again: a changed number is found, and the rounding of another machine is not accused."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from faults.processes import CLAIM, CLAIMS, STORE, finished_run

from icllab.core.errors import InputError
from icllab.lab import certificate, netcdf, rerun, verification
from icllab.lab.evidence import Evidence, evidence_of


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Results of the toy claim."""
    return finished_run(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def evidence(finished, tmp_path):
    """A copy of them, for a test to change."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return evidence_of(CLAIM, out=tmp_path, folder=CLAIMS)


def change_number(evidence, factor):
    """Change the second seed's number at dim 8, with the checksum made right."""
    path = Path(evidence.out) / STORE / "cells" / "dim=8.nc"
    dataset = netcdf.from_bytes(path.read_bytes(), path)
    dataset["icl_error"][{"seed": 1}] *= factor
    path.write_bytes(netcdf.to_bytes(dataset))


def test_the_sample_is_the_verifiers(evidence):
    cells = evidence.cells()
    assert [cell["dim"] for cell in cells] == [2, 4, 8, 16, 32]
    assert [len(rerun.drawn(cells, part, key=0)) for part in (1e-9, 0.2, 0.21, 1.0)] == [1, 1, 2, 5]
    assert rerun.drawn(cells, 0.4, key=5) == rerun.drawn(cells, 0.4, key=5)
    samples = [rerun.drawn(cells, 0.01, key)[0]["dim"] for key in range(40)]
    assert set(samples) == {2, 4, 8, 16, 32}
    for fraction in (0.0, 1.5):
        with pytest.raises(InputError, match="at most 100%"):
            rerun.drawn(cells, fraction, key=0)


@pytest.mark.parametrize(("factor", "status"), [(1.1, 1), (1.00001, 1), (1 + 1e-8, 0)])
def test_a_changed_number_is_found_where_its_cell_is_sampled(factor, status, evidence, tmp_path):
    """The digests of the data and of the certificate are right again: only the measurement tells."""
    change_number(evidence, factor)
    file = tmp_path / "c.json"
    file.write_bytes(certificate.as_bytes(certificate.certificate(evidence)))
    options = {"out": evidence.out, "folder": CLAIMS}
    assert verification.verify(file, **options).exit_status == 0
    cells = evidence.cells()
    with_it, elsewhere = (
        next(key for key in range(40) if ({"dim": 8} in rerun.drawn(cells, 0.2, key)) == wanted)
        for wanted in (True, False)
    )
    result = verification.verify(file, **options, fraction=0.2, key=with_it)
    assert (result.rerun.cells, result.rerun.total, result.rerun.numbers) == (("dim=8",), 5, 6)
    assert result.exit_status == status
    assert len(result.rerun.differs) == status
    assert all(line.startswith("icl_error at dim=8: 1 of 6 numbers, the worst") for line in result.rerun.differs)
    assert verification.verify(file, **options, fraction=0.2, key=elsewhere).exit_status == 0


def test_a_machine_is_that_of_the_data_if_all_that_rounds_numbers_is_equal(evidence):
    attributes = evidence.datasets[None].attrs
    assert rerun.on_this_machine(attributes)
    for name in ("jax_version", "jaxlib_version", "numpy_version", "device", "processor"):
        assert not rerun.on_this_machine({**attributes, name: '["one", "another"]'})
        assert not rerun.on_this_machine({key: value for key, value in attributes.items() if key != name})


def measurements(monkeypatch, stored, now, again, same=False):
    """Three measurements of one cell: the data, and what two compilations measure."""
    answers = iter([(stored, now), (stored, again)])
    monkeypatch.setattr(rerun, "_parts", lambda *arguments: next(answers))
    monkeypatch.setattr(rerun, "on_this_machine", lambda attributes: same)
    return rerun._compared(Evidence("a/b", "small"), None, {"dim": 4})


def dataset(values, **more):
    return xr.Dataset({"loss": (("seed", "step"), values), **more})


def test_what_rounding_moves_is_not_accused(monkeypatch):
    rng = np.random.default_rng(0)
    stored = rng.normal(1, 0.1, (8, 5))
    now, again = stored.copy(), stored.copy()
    now[3], again[5] = now[3] + 0.05, again[5] + 0.03  # of chaotic training each machine has its own seeds
    comparison = measurements(monkeypatch, dataset(stored), dataset(now), dataset(again))
    assert (comparison.differs, len(comparison.moved)) == ((), 1)
    assert "5 of 40 numbers" in comparison.moved[0]
    # A time that is reached on one machine and not on the other.
    now[2, 1], again[4, 2] = np.nan, np.nan
    assert measurements(monkeypatch, dataset(stored), dataset(now), dataset(again)).differs == ()
    # Without other seeds that move, the same gaps are no rounding.
    accused = measurements(monkeypatch, dataset(stored), dataset(now), dataset(now))
    assert (len(accused.differs), accused.moved) == (1, ())


def test_rounding_excuses_no_mean_that_is_another(monkeypatch):
    rng = np.random.default_rng(0)
    stored = rng.normal(1, 0.1, (8, 5))
    again = stored.copy()
    again[5] += 0.03
    shifted = measurements(monkeypatch, dataset(stored), dataset(stored + 0.3), dataset(again + 0.3))
    assert len(shifted.differs) == 1
    # A quantity that does not move is judged by itself, whatever moves beside it.
    still, changed = (("seed",), np.arange(8.0)), (("seed",), np.where(np.arange(8) == 2, 2.2, np.arange(8)))
    parts = (dataset(stored, rate=still), dataset(stored, rate=changed), dataset(again, rate=changed))
    beside = measurements(monkeypatch, *parts)
    assert len(beside.differs) == 1
    assert beside.differs[0].startswith("rate at dim=4: 1 of 8 numbers, the worst 2 in the data and 2.2 now")


@pytest.mark.parametrize("same", [True, False])
def test_one_sign_or_factor_is_another_measurement(same, monkeypatch):
    rng = np.random.default_rng(0)
    stored = rng.normal(size=(8, 5))
    again = stored * (1 + 1e-7 * rng.normal(size=stored.shape))
    for change in (stored * 1.001, stored + 0.001, stored * np.where(np.arange(5) < 4, 1.001, 1.0)):
        comparison = measurements(monkeypatch, dataset(change), dataset(stored), dataset(again), same)
        assert (len(comparison.differs), comparison.moved) == (1, ())
    # What has both signs, and is not far from what the optimisations do, is not accused elsewhere.
    change = stored * (1 + 0.001 * rng.choice([-1, 1], size=stored.shape))
    comparison = measurements(monkeypatch, dataset(change), dataset(stored), dataset(again), same)
    assert (len(comparison.differs), len(comparison.moved)) == ((1, 0) if same else (0, 1))
    # Small changes: on the machine of the data ten units in the last place are told if all have one sign.
    again = stored * (1 + 1e-5 * rng.normal(size=stored.shape))
    change = stored * (1 + 1e-6)
    comparison = measurements(monkeypatch, dataset(change), dataset(stored), dataset(again), same)
    assert len(comparison.differs) == same
    assert bool(comparison.worst) != same


def test_one_number_in_a_hundred_may_turn_on_the_machine_of_the_data(monkeypatch):
    stored = np.random.default_rng(0).normal(1, 0.1, (20, 10))
    for count, kind in ((2, "moved"), (3, "differs")):
        change = stored.copy()
        change.flat[:count] += [0.01, -0.01, 0.01][:count]
        comparison = measurements(monkeypatch, dataset(change), dataset(stored), dataset(stored), same=True)
        assert len(getattr(comparison, kind)) == 1
        assert len(comparison.differs) + len(comparison.moved) == 1


def test_one_number_that_rounding_moves_is_compared_with_a_wide_reach(monkeypatch):
    """The gap of a chain of another machine may be five times that of other optimisations, one of three is."""
    parts = [xr.Dataset({"slope": ((), value), "slope_error": ((), 0.01)}) for value in (1.05, 1.0, 1.01)]
    comparison = measurements(monkeypatch, *parts)
    assert (comparison.differs, len(comparison.moved)) == ((), 1)


def test_other_axes_are_a_difference(monkeypatch):
    stored = np.ones((8, 5))
    now = xr.Dataset({"loss": (("seed", "time"), stored)})
    assert measurements(monkeypatch, dataset(stored), now, now).differs == (
        "loss at dim=4: in the data, and not measured so now",
    )


def test_other_optimisations_end_with_the_comparison():
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    with rerun._other_compilation():
        assert jax.config.read("jax_disable_most_optimizations") is not before
    assert jax.config.read("jax_disable_most_optimizations") is before
