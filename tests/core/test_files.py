"""Atomic writes, and what differs between two configurations."""

import pytest

from icllab.core.errors import EnvironmentFault
from icllab.core.files import difference, disk_faults, write_atomically


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"before")

    def refuse(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(EnvironmentFault) as caught:
        write_atomically(path, b"after", "the last one is kept")
    reason = "No space left on device; the last one is kept, mend the directory and run again to go on"
    assert str(caught.value) == f"cannot write {path}: {reason}"
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_other_errors_pass():
    with pytest.raises(KeyError), disk_faults("reading"):
        raise KeyError("not of the disk")


def test_the_difference_names_what_differs_and_where():
    there, here = {"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 4, "d": 3}, "e": 5}
    assert difference(there, here) == "b.c is 2 there and 4 here, e is None there and 5 here"
    assert difference(there, there) == ""
