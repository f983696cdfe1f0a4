"""A run that nothing happens to, and a log of what is measured."""

import pytest
from faults import processes


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The Dataset of a run that nothing happens to."""
    return processes.results(processes.finished_run(tmp_path_factory.mktemp("undisturbed")))


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Where it is noted what is measured, in this process and in those that it starts."""
    monkeypatch.setenv("STEADY_LOG", str(tmp_path / "log"))
    return tmp_path / "log"
