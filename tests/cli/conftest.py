"""``icl`` inside the test's process, and a finished run."""

import shutil

import pytest
from faults import processes


@pytest.fixture
def icl(capfd):
    """``icl words...``: its status, stdout and stderr."""
    return lambda *words: processes.inside(capfd, [*processes.ICL, *map(str, words)])


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """Where a finished run of the toy claim is, which no test changes."""
    return processes.finished_run(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def ran(finished_run, tmp_path):
    """A copy of the finished run, for one test to change."""
    shutil.copytree(finished_run, tmp_path, dirs_exist_ok=True)
    return tmp_path
