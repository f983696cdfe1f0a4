"""Lazy names that import their module when first used, so that ``import icllab`` is fast."""

import ast
import importlib
import pkgutil
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from icllab.core.calls import checked
from icllab.core.errors import unknown
from icllab.core.signatures import write_signature

_public: dict[str, set[str]] = {}  # module -> public names; the empty set stands for all names


class _Package(types.ModuleType):
    """A package whose public functions have checked calls; each module is wrapped after its import."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType) and value.__name__ == f"{self.__name__}.{name}":
            if hasattr(value, "__path__"):
                value.__class__ = _Package
            _check_calls(value)
        super().__setattr__(name, value)


def _check_calls(module: types.ModuleType) -> None:
    if module.__name__ not in _public:
        return
    for name, value in list(vars(module).items()):
        if getattr(value, "__module__", None) != module.__name__ or name.startswith("_"):
            continue
        if name in (_public[module.__name__] or (name,)):
            setattr(module, name, checked(value))


def attach(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for the package of this ``__name__``; ``__all__`` lists its public names.

    Calls of public functions and classes are checked: see :mod:`icllab.core.calls`.

    A name resolves to what ``__init__.py`` imports under ``if TYPE_CHECKING:``, or to a module of the package. Type
    checkers run these imports; at run time each is made when its name is first used. What ``__all__`` leaves out can
    be imported by specialists, is not listed, and may change with any version.
    """
    module = sys.modules[package]
    statements = ast.parse(pkgutil.get_data(package, "__init__.py") or b"").body
    branches = [node for branch in statements if isinstance(branch, ast.If) for node in branch.body]
    imports = [node for node in branches if isinstance(node, ast.ImportFrom)]
    sources = {alias.name: str(node.module) for node in imports for alias in node.names}
    submodules = {entry.name for entry in pkgutil.iter_modules(module.__path__) if not entry.name.startswith("_")}
    for name, source in sources.items():
        _public.setdefault(source, set()).add(name)
    _public.update({f"{package}.{name}": set() for name in submodules.intersection(module.__all__)})
    module.__class__ = _Package

    def __getattr__(name: str) -> object:
        if name in sources:
            value = getattr(importlib.import_module(sources[name]), name)
            if name in module.__all__:
                write_signature(value)
        elif name in submodules:
            value = importlib.import_module(f"{package}.{name}")
        else:
            # hasattr, copy and pickle probe for dunder names: for them a plain AttributeError.
            message = str(unknown(f"name in {package}:", name, sorted({*sources, *submodules})))
            raise AttributeError(message, name=name, obj=module)
        setattr(module, name, value)
        return value

    def __dir__() -> list[str]:
        return sorted({*(name for name in vars(module) if name.startswith("__")), *module.__all__})

    return __getattr__, __dir__


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """``__getattr__`` of a module that raises ImportError with the new name for each of its former names."""

    def __getattr__(name: str) -> object:
        if name in names:
            raise ImportError(f"{module}.{name} is {names[name]} since version 0.4", name=module)
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)

    return __getattr__
