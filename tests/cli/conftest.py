"""``icl`` inside the test's process."""

import pytest
from faults.processes import ICL, inside


@pytest.fixture
def icl(capfd):
    """``icl words...``: its status, stdout and stderr."""
    return lambda *words: inside(capfd, [*ICL, *map(str, words)])
