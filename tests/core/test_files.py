"""Atomic writes, JSON with unique keys, and what differs between two configurations."""

import json

import numpy as np
import pytest

from icllab.core.errors import EnvironmentFault, InputError
from icllab.core.files import difference, disk_faults, parse_json, source_text, write_atomically


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"before")

    def refuse(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(EnvironmentFault) as caught:
        write_atomically(path, b"after", "the last one is kept")
    reason = "No space left on device; the last one is kept, repair the directory and run again to continue"
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


def test_json_with_a_repeated_key_is_refused_at_every_depth():
    """The key is random, so that no list of known names can stand for the rule."""
    rng = np.random.default_rng(0)
    for depth in (0, 1, 3):
        name = "".join(rng.choice(list("abcdefghij"), 8))
        nested = f'{{"first": [{{"{name}": 1, "{name}": 1}}]}}'
        for _ in range(depth):
            nested = f'{{"level": {nested}}}'
        with pytest.raises(ValueError, match=f"the key '{name}' twice in one object"):
            parse_json(nested)
    sound = {"a": [1, {"b": None}], "c": {"a": 2.5}}
    assert parse_json(json.dumps(sound)) == sound
    assert parse_json(json.dumps(sound).encode()) == sound
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 200_000)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "koi8-r"])
def test_source_is_read_as_python_reads_it(encoding, tmp_path):
    """By its byte-order mark or declared encoding, with line ends of any system."""
    path, word = tmp_path / "claim.py", {"koi8-r": "мера"}.get(encoding, "café")
    declared = "" if encoding.startswith("utf-8") else f"# -*- coding: {encoding} -*-\n"
    path.write_bytes(f"{declared}VERSION = 2  # {word}\r\n".encode(encoding))
    assert source_text(path) == f"{declared}VERSION = 2  # {word}\n"


@pytest.mark.parametrize("content", [b"x = '\xe9'\n", b"# coding: none-such\n"])
def test_source_of_no_encoding_is_refused_by_name(content, tmp_path):
    (tmp_path / "claim.py").write_bytes(content)
    with pytest.raises(InputError, match=r"claim\.py: expected a file that can be read, got"):
        source_text(tmp_path / "claim.py")
