"""A worker answers in plain values whatever happens, and ends itself when a cell takes too long."""

import subprocess
import sys
import threading

import jax
import pytest
from faults.processes import CLAIM, CLAIMS

from icllab.core.errors import EnvironmentFault
from icllab.core.files import DamagedFile
from icllab.experiments import cells, provenance, requests, runner
from icllab.experiments.cells import Order, limited, measured
from icllab.experiments.store import Store, unpacked


@pytest.fixture
def order(tmp_path):
    request = requests.requested(CLAIM, "smoke", out=tmp_path / "nowhere", claims=CLAIMS)
    return Order(request, {"dim": 4}, {"ridge": (0,), "seed": (0, 1)}, provenance.versions())


def test_an_answer_is_the_bytes_of_a_file(order, tmp_path):
    answer = measured(order)
    assert (answer.ending, answer.message) == ("measured", "")
    assert dict(unpacked(answer.content, "answer").sizes) == {"seed": 2, "ridge": 1}
    assert not (tmp_path / "nowhere").exists()  # the files are the run's
    store = Store.open(tmp_path / "store", {})
    store.put(order.cell, answer.content)
    assert store.path(order.cell).read_bytes() == answer.content
    with pytest.raises(DamagedFile, match="expected a file with the checksum"):
        store.put(order.cell, answer.content[:-1])


@pytest.mark.parametrize("name", ["icllab", "jax"])
def test_other_versions_are_refused_with_both_named(name, order, monkeypatch):
    here = provenance.versions()
    monkeypatch.setattr(provenance, "versions", lambda: {**here, name: "0.0.1"})
    answer = measured(order)
    assert answer.ending == "unfit"
    assert f"{name} {here[name]}" in answer.message.split(", got ")[0]
    assert f"{name} 0.0.1" in answer.message.split(", got ")[1]


def test_a_worker_that_does_not_fit_ends_the_run(tmp_path, monkeypatch):
    versions = iter([provenance.versions(), {"icllab": "0.0.1", "jax": "1"}])
    monkeypatch.setattr(provenance, "versions", lambda: next(versions))
    request = requests.requested(CLAIM, "smoke", out=tmp_path, claims=CLAIMS)
    with pytest.raises(EnvironmentFault, match=r"as the run has, got icllab 0\.0\.1 and jax 1; install the same"):
        runner.compute(request)


@pytest.mark.parametrize(
    ("error", "ending"), [(EnvironmentFault("no disk"), "raised"), (SystemExit(3), "raised"), (MemoryError(), "raised")]
)
def test_whatever_is_raised_is_an_answer(error, ending, order, monkeypatch):
    def raises(*words):
        raise error

    monkeypatch.setattr(cells, "_measured", raises)
    answer = measured(order)
    assert answer.ending == ending
    assert answer.message.startswith(type(error).__name__)
    assert "in raises" in answer.details


def test_a_limit_that_is_kept_has_no_effect():
    with limited(60):
        assert list(cells._deadlines) == [threading.get_ident()]
    assert cells._deadlines == {}
    with limited(None):
        assert cells._deadlines == {}


def test_the_first_of_several_threads_that_is_due_ends_the_process():
    """The later one's end, or its beginning, does not put off the earlier one's."""
    code = """
import threading, time
from icllab.experiments.cells import limited

def hang():
    with limited(1.0):
        time.sleep(60)

threading.Thread(target=hang).start()
time.sleep(0.3)
for _ in range(3):
    with limited(50.0):
        time.sleep(0.1)
time.sleep(30)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=25)
    assert done.returncode == 1
    assert "in hang" in done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory mappings are counted on Linux")
def test_programs_are_forgotten_before_they_take_all_memory_mappings(order, monkeypatch):
    double = jax.jit(lambda x: 2 * x)
    double(1.0)
    measured(order)
    assert double._cache_size() == 1  # there are few
    monkeypatch.setattr(cells, "MAPPED", 0.0)
    assert measured(order).ending == "measured"
    assert double._cache_size() == 0
