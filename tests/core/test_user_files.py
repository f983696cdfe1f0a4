"""A user's file is a module under a name of its own, with the files beside it."""

import os
import subprocess
import sys

import pytest

from icllab.core.errors import InputError
from icllab.core.user_files import named, open_file


def folder(place, **texts):
    place.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (place / f"{name}.py").write_text(text)
    return place


def test_two_folders_with_neighbours_of_one_name_are_not_mixed_up(tmp_path):
    """The import may come when the function is called, or within a neighbour."""
    for word in ("one", "two"):
        folder(
            tmp_path / word,
            network=f"import sizes\nNAME = {word!r} + sizes.SUFFIX",
            sizes=f"SUFFIX = '{word}!'",
            adapter="def load():\n    from network import NAME\n    return NAME",
        )
    modules = [open_file(tmp_path / word / "adapter.py") for word in ("one", "two")]
    assert [module.load() for module in modules] == ["oneone!", "twotwo!"]
    assert "network" not in sys.modules
    assert not {str(tmp_path / word) for word in ("one", "two")} & set(sys.path)


def test_all_forms_of_import_give_the_neighbour(tmp_path):
    place = folder(
        tmp_path,
        parts="X = 1",
        main="""
import parts, parts as p, inner.deep, inner.deep as d
from parts import X
from . import parts as q
from .parts import X as Y
from inner.deep import Z
import json, os.path
SAME = parts is p is q and inner.deep is d and X == Y == 1 and Z == 3 and json.loads("1") and os.path.sep
""",
    )
    folder(place / "inner", __init__="", deep="from inner.other import Z", other="from parts import X\nZ = X + 2")
    assert open_file(place / "main.py").SAME


def test_a_neighbour_comes_before_an_installed_module_and_only_in_its_folder(tmp_path):
    place = folder(tmp_path, tokenize="WORD = 'mine'", main="import tokenize\nWORD = tokenize.WORD")
    assert open_file(place / "main.py").WORD == "mine"
    assert not hasattr(sys.modules.get("tokenize", object), "WORD")
    alone = folder(tmp_path / "alone", main="import tokenize\nWORD = tokenize.generate_tokens")
    assert callable(open_file(alone / "main.py").WORD)


def test_a_neighbour_on_the_path_of_python_is_not_loaded_twice(tmp_path, monkeypatch):
    place = folder(tmp_path, on_the_path="class Kind: pass", main="from on_the_path import Kind")
    monkeypatch.syspath_prepend(str(place))
    import on_the_path  # pyright: ignore[reportMissingImports]

    assert open_file(place / "main.py").Kind is on_the_path.Kind


def test_a_dataclass_with_postponed_annotations_works(tmp_path):
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    text += "@dataclass\nclass Sizes:\n    dim: int = 8"
    assert open_file(folder(tmp_path, network=text) / "network.py").Sizes().dim == 8


def test_an_edited_file_or_neighbour_is_run_anew_and_an_unedited_one_is_not(tmp_path):
    """The edits are of equal size and within one tick of the clock of the disk; no file is written beside."""
    place = folder(tmp_path, network="X = 1", adapter="from network import X")
    first = open_file(place / "adapter.py")
    assert open_file(place / "adapter.py") is first
    for content in (2, 3):
        times = (place / "network.py").stat()
        (place / "network.py").write_text(f"X = {content}")
        os.utime(place / "network.py", ns=(times.st_atime_ns, times.st_mtime_ns))
        kept = open_file(place / "adapter.py", once=True)
        anew = open_file(place / "adapter.py")
        assert [module.X for module in (kept, anew)] == [content - 1, content]
    assert not (place / "__pycache__").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = x.z\n", "main.py, line 2: expected a file that imports, got AttributeError: 'int' object has no"),
        ("\n\ndef (", "main.py, line 3: expected a file that imports, got SyntaxError: "),
        ("import broken", "broken.py, line 2: expected a file that imports, got ZeroDivisionError: division by zero"),
        ("import nowhere", "main.py, line 1: expected a file that imports, got ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", "main.py, line 1: expected a file that imports, got SystemExit: 3"),
        ("from ..other import f", "; package.module:name opens a file of a package"),
        ("raise ValueError('a\\nb')", "got ValueError: a b"),
    ],
)
def test_an_error_is_one_line_that_names_the_file_and_the_line(text, message, tmp_path):
    folder(tmp_path, main=text, broken="\n1 / 0")
    for _ in range(2):  # a file that failed leaves nothing behind
        with pytest.raises(InputError) as caught:
            open_file(tmp_path / "main.py")
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_names_of_values(tmp_path, monkeypatch):
    folder(
        tmp_path / "mine", __init__="", net="from mine.sizes import DIM\ndef build():\n    return DIM", sizes="DIM = 8"
    )
    monkeypatch.chdir(tmp_path)
    path, build = named("mine.net:build")
    assert (path.name, build()) == ("net.py", 8)
    assert named("icllab.core.errors:InputError")[1] is InputError
    for text, message in {
        "mine.net:built": "unknown name in mine.net: 'built'; did you mean 'build'?",
        "mine.nothing:built": "mine.nothing: expected a module that imports, got ModuleNotFoundError",
        "nothing.py:built": "nothing.py: expected a Python file that exists",
        "two words:x": "name: expected file.py:name or package.module:name, got 'two words:x'",
        ":x": "name: expected file.py:name or package.module:name, got ':x'",
    }.items():
        with pytest.raises(InputError) as caught:
            named(text)
        assert message in str(caught.value)


def test_opening_files_needs_no_jax():
    code = "import sys, icllab.core.user_files; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"jax", "numpy"} & set(loaded)
