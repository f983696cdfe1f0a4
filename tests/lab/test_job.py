"""A job becomes the bytes of a cell's file, in whichever process measures it, or an error that crosses processes."""

import pickle
import sys

import jax
import pytest
from faults.processes import CLAIM, CLAIMS

from icllab.core.errors import EnvironmentFault, InputError
from icllab.core.files import DamagedFile
from icllab.lab import job as jobs
from icllab.lab import provenance
from icllab.lab.job import CellFault, Job, UnfitWorker, measure, new_request
from icllab.lab.netcdf import from_bytes
from icllab.lab.results import Store
from icllab.lab.run import compute


@pytest.fixture
def job(tmp_path):
    request = new_request(CLAIM, "small", out=tmp_path / "nowhere", claims=CLAIMS)
    scratch = str(tmp_path / "scratch")
    return Job(request, {"dim": 4}, {"ridge": (0,), "seed": (0, 1)}, provenance.versions(), scratch=scratch)


def test_a_job_becomes_the_bytes_of_a_file(job, tmp_path):
    content = measure(pickle.loads(pickle.dumps(job)))
    assert dict(from_bytes(content, "content").sizes) == {"seed": 2, "ridge": 1}
    assert not (tmp_path / "nowhere").exists()  # the files are the run's
    store = Store.open(tmp_path / "store", {"version": 1})
    store.put(job.cell, content)
    assert store.path(job.cell).read_bytes() == content
    with pytest.raises(DamagedFile, match="expected a file with the checksum"):
        store.put(job.cell, content[:-1])


@pytest.mark.parametrize("name", ["icllab", "jax"])
def test_other_versions_are_refused_with_both_named(name, job, monkeypatch):
    here = provenance.versions()
    monkeypatch.setattr(provenance, "versions", lambda: {**here, name: "0.0.1"})
    with pytest.raises(UnfitWorker) as caught:
        measure(job)
    assert f"{name} {here[name]}" in str(caught.value).split(", got ")[0]
    assert f"{name} 0.0.1" in str(caught.value).split(", got ")[1]


def test_a_worker_that_does_not_fit_ends_the_run(tmp_path, monkeypatch):
    versions = iter([provenance.versions(), {"icllab": "0.0.1", "jax": "1"}])
    monkeypatch.setattr(provenance, "versions", lambda: next(versions))
    request = new_request(CLAIM, "small", out=tmp_path, claims=CLAIMS)
    with pytest.raises(EnvironmentFault, match=r"as the run has, got icllab 0\.0\.1 and jax 1; install the same"):
        compute(request)


@pytest.mark.parametrize("error", [EnvironmentFault("no disk"), SystemExit(3), MemoryError("no memory")])
def test_whatever_is_raised_crosses_processes_with_its_traceback(error, job, monkeypatch):
    def raises(*words):
        raise error

    monkeypatch.setattr(jobs, "_dataset", raises)
    with pytest.raises(CellFault) as caught:
        measure(job)
    fault = pickle.loads(pickle.dumps(caught.value))
    assert str(fault) == f"{type(error).__name__}: {error}"
    assert "in raises" in fault.details


def test_an_input_that_is_refused_stays_what_it_is(job, monkeypatch):
    monkeypatch.setenv("STEADY_FAULT", "refuse:0.5")
    with pytest.raises(InputError, match="rho: expected another number"):
        measure(job)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory mappings are counted on Linux")
def test_programs_are_dropped_before_they_take_all_memory_mappings(job, monkeypatch):
    double = jax.jit(lambda x: 2 * x)
    double(1.0)
    measure(job)
    assert double._cache_size() == 1  # there are few
    monkeypatch.setattr(jobs, "MAPPED", 0.0)
    measure(job)
    assert double._cache_size() == 0
