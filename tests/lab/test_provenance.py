"""The commit under which a result was made, and the memory that it took."""

import sys

import numpy as np
import pytest

from icllab.lab import provenance


def test_the_commit_is_a_hash_or_nothing():
    commit = provenance.commit()
    assert commit == "" or len(commit.removesuffix("+changes")) == 40


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells it")
def test_memory_is_the_most_since_it_was_reset():
    """Not that of another claim, which the same process has measured before."""
    provenance.reset_memory()
    before = provenance.memory()["peak_bytes"]
    np.ones(12_500_000).sum()  # 100 MB
    peak = provenance.memory()["peak_bytes"]
    assert peak > before + 9e7
    provenance.reset_memory()
    assert provenance.memory()["peak_bytes"] < peak - 5e7
