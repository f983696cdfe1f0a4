"""Lazy names: imported when used, once, and misspelt ones answered."""

import copy
import sys
import types

import pytest

from icllab.core.lazy import attach


@pytest.fixture
def package(monkeypatch):
    """A package ``lazy_room`` with a module ``lazy_room.thing`` that counts its imports."""
    room, imports = types.ModuleType("lazy_room"), []
    room.__path__ = []
    room.__getattr__, room.__dir__, room.__all__ = attach("lazy_room", {"make": "thing"}, modules=["thing"])

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name != "lazy_room.thing":
                return None
            import importlib.machinery

            return importlib.machinery.ModuleSpec(name, self)

        def create_module(self, spec):
            return None

        def exec_module(self, module):
            imports.append(module.__name__)
            module.make = lambda: "made"

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    monkeypatch.setitem(sys.modules, "lazy_room", room)
    monkeypatch.delitem(sys.modules, "lazy_room.thing", raising=False)
    room.imports = imports
    yield room
    sys.modules.pop("lazy_room.thing", None)


def test_nothing_is_imported_before_it_is_used(package):
    assert package.imports == []
    assert package.make() == "made"
    assert package.make is package.thing.make
    assert package.imports == ["lazy_room.thing"]
    assert "make" in vars(package)  # found directly from now on


def test_public_names_are_listed(package):
    assert package.__all__ == ["make", "thing"]
    assert {"make", "thing"} <= set(dir(package))


def test_a_misspelt_name_is_an_attribute_error_with_the_nearest(package):
    with pytest.raises(AttributeError, match="did you mean 'make'") as caught:
        package.mak  # noqa: B018
    assert caught.value.name == "mak"
    assert caught.value.obj is package


def test_probing_for_special_names_is_answered_as_usual(package):
    assert not hasattr(package, "__deepcopy__")
    assert copy.copy({"room": package})["room"] is package
    assert package.imports == []
