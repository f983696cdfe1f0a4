"""Lazy names: imported when used, once, and misspelt ones answered."""

import copy
import importlib
import sys

import pytest

SOURCE = """
from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from lazy_room.thing import make

__all__ = ["make"]
__getattr__, __dir__ = attach(__name__)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package ``lazy_room`` with a module ``lazy_room.thing`` that defines ``make``, and one that is private."""
    room = tmp_path / "lazy_room"
    room.mkdir()
    (room / "__init__.py").write_text(SOURCE)
    (room / "thing.py").write_text("def make():\n    return 'made'\n")
    (room / "_hidden.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("lazy_room")
    for name in ("lazy_room", "lazy_room.thing"):
        sys.modules.pop(name, None)


def test_nothing_is_imported_before_it_is_used(package):
    assert "lazy_room.thing" not in sys.modules
    assert package.make() == "made"
    assert package.make is package.thing.make
    assert "make" in vars(package)  # found directly from now on


def test_a_module_is_imported_by_its_name(package):
    assert package.thing is sys.modules["lazy_room.thing"]


def test_only_public_names_are_listed(package):
    assert package.thing  # a module that ``__all__`` leaves out resolves, before and after the list is asked for
    assert [name for name in dir(package) if not name.startswith("__")] == ["make"]


def test_a_misspelt_name_is_an_attribute_error_with_the_nearest(package):
    with pytest.raises(AttributeError, match="did you mean 'make'") as caught:
        package.mak  # noqa: B018
    assert caught.value.name == "mak"
    assert caught.value.obj is package


def test_probing_for_special_names_is_answered_as_usual(package):
    assert not hasattr(package, "__deepcopy__")
    assert copy.copy({"room": package})["room"] is package
    assert "lazy_room.thing" not in sys.modules
