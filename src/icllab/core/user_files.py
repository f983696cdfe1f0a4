"""Open a user's Python file: a module under a name of its own, compiled from its text, beside its neighbours.

A file runs only because the user named it. Its folder is a package with a private name, so that two folders may each
have a ``network.py``. An import of a neighbour, ``from network import load`` or ``from .network import load``, gives
the file in the same folder.
"""

import builtins
import hashlib
import importlib
import importlib.util
import sys
import traceback
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from icllab.core.errors import InputError, expected, unknown

PREFIX = "icllab_file_"
"""Beginning of the names of the packages of users' folders."""


class TextLoader(SourceFileLoader):
    """Loader that compiles the text of a file at each import.

    Python's cache of compiled modules takes a file that is edited within a second, at equal size, for the old one.
    """

    text = b""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the text as it is now."""
        path = self.get_filename(fullname)
        self.text = self.get_data(path)
        return self.source_to_code(self.text, path)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module; its imports look for a neighbour first."""
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


class _Finder:
    """Finder that gives the modules in users' folders to :class:`TextLoader`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name.startswith(PREFIX) and path is not None else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = TextLoader(name, spec.loader.path)
        return spec


def open_file(path: Path, *, once: bool = False) -> ModuleType:
    """The module of a Python file, which is run if it, or a neighbour that it imported, was edited since the last time.

    Args:
        path: The file.
        once: Whether the process keeps the module that it has, although the file was edited.

    Raises:
        InputError: There is no such file, or it raises; the message names the file and the line.
    """
    path = Path(path).resolve()
    if path.suffix != ".py" or "." in path.stem or not path.is_file():
        raise InputError(f"{path}: expected a Python file that exists, with one dot in its name")
    package = _package(path.parent)
    if not once and any(map(_is_edited, [m for name, m in sys.modules.items() if name.startswith(f"{package}.")])):
        for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
            del sys.modules[name]
    importlib.invalidate_caches()
    try:
        return importlib.import_module(f"{package}.{path.stem}")
    except (Exception, SystemExit) as error:
        hint = "; package.module:name opens a file of a package" if "beyond top-level package" in str(error) else ""
        raise failure(path, error, "a file that imports", hint) from error


def named(text: str) -> tuple[Path, Any]:
    """The file and the value of a name: ``file.py:name``, or ``package.module:name`` of an installed package or here.

    Raises:
        InputError: The file or module does not import, or has no such name.
    """
    place, _, name = text.rpartition(":")
    if place.endswith(".py"):
        module = open_file(Path(place).expanduser())
    else:
        first = place.partition(".")[0]
        if not all(part.isidentifier() for part in place.split(".")):
            raise expected("name", "file.py:name or package.module:name", text)
        try:
            package = "" if _ordinary(first) else f"{_package(Path.cwd())}."
            module = importlib.import_module(package + place)
        except (Exception, SystemExit) as error:
            raise failure(Path(place), error, "a module that imports") from error
    if not hasattr(module, name):
        public = [
            key for key, value in vars(module).items() if not (isinstance(value, ModuleType) or key.startswith("_"))
        ]
        raise unknown(f"name in {place}:", name, public)
    return Path(getattr(module, "__file__", None) or place), getattr(module, name)


def failure(path: Path, error: BaseException, requirement: str, hint: str = "") -> InputError:
    """The error for an exception of a user's code: one line, with the last file and line of the user's."""
    frames = traceback.walk_tb(error.__traceback__)
    places = [(frame.f_code.co_filename, line) for frame, line in frames if _is_of_user(frame.f_globals, path)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno or 1))
    place = f"{places[-1][0]}, line {places[-1][1]}" if places else str(path)
    reason = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())[:400]
    return InputError(f"{place}: expected {requirement}, got {type(error).__name__}: {reason}{hint}")


def _is_of_user(names: dict[str, Any], path: Path) -> bool:
    name = str(names.get("__name__"))
    return name.startswith(PREFIX) or names.get("__file__") == str(path) or name == str(path)


def _package(folder: Path) -> str:
    """The name of the package of a folder, whose ``__init__.py`` is not run."""
    name = PREFIX + hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    if name not in sys.modules:
        if _Finder not in sys.meta_path:
            sys.meta_path.insert(0, _Finder)  # pyright: ignore[reportArgumentType]
        module = ModuleType(name)
        module.__path__ = [str(folder)]
        sys.modules[name] = module
    return name


def _is_edited(module: Any) -> bool:
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    try:
        return isinstance(loader, TextLoader) and Path(loader.path).read_bytes() != loader.text
    except OSError:
        return True


def _ordinary(name: str) -> ModuleSpec | None:
    """The module that Python finds by a name outside of users' folders."""
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # __main__
        return None


def _import(name: str, names: Any = None, local: Any = None, wanted: Any = (), level: int = 0) -> Any:
    """``__import__`` of users' modules: a neighbour comes first, unless Python finds the same file on ``sys.path``."""
    first = name.partition(".")[0]
    package = str((names or {}).get("__name__")).partition(".")[0]
    if level == 0 and package.startswith(PREFIX):
        spec, ordinary = PathFinder.find_spec(first, sys.modules[package].__path__), _ordinary(first)
        if spec is not None and (ordinary is None or (spec.origin and spec.origin != ordinary.origin)):
            if wanted:
                return builtins.__import__(f"{package}.{name}", names, local, wanted)
            importlib.import_module(f"{package}.{name}")
            return sys.modules[f"{package}.{first}"]
    return builtins.__import__(name, names, local, wanted, level)
