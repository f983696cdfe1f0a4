"""The commit under which a result was made, and the memory that it took."""

import functools
import inspect
import subprocess
import sys

import numpy as np
import pytest

from icllab.lab import provenance


def test_the_commit_of_a_checkout_says_whether_code_is_changed(tmp_path):
    """A record that is being filled in is no change: 37 measurements would have been marked by their own records."""

    def git(*arguments):
        options = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *options, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    commit = functools.partial(inspect.unwrap(provenance.commit), tmp_path)
    folder = tmp_path / "claims" / "cliff"
    folder.mkdir(parents=True)
    assert commit() == ""
    for name in ("__init__.py", "claims/cliff/measure.py", "claims/cliff/record.json"):
        (tmp_path / name).write_text("1\n")
    git("init", "--quiet")
    assert commit() == ""
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    assert commit() == git("rev-parse", "HEAD")
    (folder / "record.json").write_text("2\n")
    (folder / "record.nc").write_text("2\n")
    assert commit() == git("rev-parse", "HEAD")
    (folder / "measure.py").write_text("2\n")
    assert commit() == git("rev-parse", "HEAD") + "+changes"


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
