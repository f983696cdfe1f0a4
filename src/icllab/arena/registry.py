"""Which tables and theories there are, what is recorded, and which theories were registered, and when.

A table is a folder ``arena/NAME`` of a book, with a ``phenomenon.py``, a ``record.nc`` and a folder of theories. A
theory is a file ``NAME.py`` with ``fit`` and ``predict``, there or in a folder of the user's own; the first line of its
docstring says what it is. Beside theories lies ``registered.json``: of each theory the digests of its source, of the
helpers that it imports and of the training part, the fitted numbers, and whether it came late: when any held-out value
had been measured. A helper is a file of a folder of theories.
"""

import ast
import hashlib
import importlib.util
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from icllab.arena.phenomenon import Phenomenon
from icllab.arena.prediction import Prediction, distribution
from icllab.core.errors import CellsMissing, InputError, expected, require_known
from icllab.core.files import disk_faults, read_object, source_text, write_atomically
from icllab.lab import registry as books
from icllab.lab.records import data_digest

if TYPE_CHECKING:
    import xarray as xr

NULLS = Path(__file__).with_name("nulls")
SAME = 0.005  # of probability, of each value of the training part: how far a fit may be from the registered one
_REMEDY = "restore it, or remove it and register again"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Theory:
    """A theory as its file has it.

    Attributes:
        name: Name of the file.
        title: First line of its docstring.
        path: The file.
        null: Whether it is one that the others have to beat.
        fit: Training part -> fitted numbers by name.
        predict: Fitted numbers, conditions of cells -> :class:`Prediction`.
    """

    name: str
    title: str
    path: Path
    null: bool
    fit: Callable[["xr.Dataset"], Mapping[str, Any]]
    predict: Callable[[Mapping[str, Any], "xr.Dataset"], Prediction]

    @property
    def digest(self) -> str:
        """SHA-256 of the source."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    @property
    def helpers(self) -> list[str]:
        """SHA-256 of every file that it imports from a folder of theories, through such files too, in order."""
        path = self.path.resolve()
        folders = {path.parent, *((at / "theories").resolve() for at in tables().values())}
        files, new = {path}, [path]
        while new:
            imports = {file for file in _imported(new.pop()) if file.parent in folders} - files
            files |= imports
            new += imports
        return sorted(hashlib.sha256(file.read_bytes()).hexdigest() for file in files - {path})


def tables() -> dict[str, Path]:
    """Name -> folder of the tables of trusted books."""
    folders = books.beside("arena")
    return {path.parent.name: path.parent for at in folders for path in sorted(at.glob("*/phenomenon.py"))}


def folder(table: str | Path) -> Path:
    """The folder of a table: one that ships, by name, or any folder with a ``phenomenon.py``."""
    if (Path(table) / "phenomenon.py").is_file():
        return Path(table).resolve()
    require_known("table", str(table), tables(), "(or a folder with a phenomenon.py)")
    return tables()[str(table)]


def title(table: str | Path) -> str:
    """The first line of the docstring of a table's ``phenomenon.py``, which is not imported."""
    return _title(folder(table) / "phenomenon.py")


def phenomenon(table: str | Path) -> Phenomenon:
    """The phenomenon of a table."""
    path = folder(table) / "phenomenon.py"
    declared = getattr(_module(path), "phenomenon", None)
    if not isinstance(declared, Phenomenon):
        raise InputError(f"{path}: expected a module-level `phenomenon = Phenomenon(...)`, got {declared!r}")
    return declared


def measure(table: str | Path) -> Callable[..., list[tuple[float, bool]]]:
    """The function ``measure(cell, seeds)`` of a table: value, and whether it is censored, for each seed."""
    return _module(folder(table) / "measure.py").measure


def record(table: str | Path) -> "xr.Dataset":
    """What is recorded of a table, [cell, seed]; NaN where nothing is measured yet.

    Raises:
        InputError: The record has other cells than the phenomenon.
    """
    import xarray as xr

    declared, path = phenomenon(table), folder(table) / "record.nc"
    empty = declared.empty()
    if not path.is_file():
        return empty
    with disk_faults(f"cannot read {path}"):
        dataset = xr.load_dataset(path, engine="h5netcdf", driver_kwds={"locking": False})
    if not dataset.drop_vars(["value", "censored"]).equals(empty.drop_vars(["value", "censored"])):
        raise InputError(f"{path}: expected the cells of the phenomenon, got others; measure it again")
    return dataset


def save(table: str | Path, dataset: "xr.Dataset") -> None:
    """Write the record of a table, whole or not at all."""
    target = io.BytesIO()
    dataset.to_netcdf(target, engine="h5netcdf")
    write_atomically(folder(table) / "record.nc", target.getvalue(), "the record is what it was")


def theories(table: str | Path, own: str | Path | None = None) -> dict[str, Theory]:
    """The theories of a table, those of the user's folder ``own`` too, and at last the null theories."""
    paths = _files(folder(table) / "theories")
    if own is not None:
        if not Path(own).is_dir():
            raise expected("--theories", "a folder", str(own), "each theory in it is a file NAME.py")
        paths += _files(Path(own).resolve())
    nulls = _files(NULLS)
    names = [path.stem for path in [*paths, *nulls]]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"--theories: expected names of their own, got {', '.join(twice)} twice; rename the files")
    return {path.stem: _theory(path, null=path in nulls) for path in [*paths, *nulls]}


def registered(table: str | Path, own: str | Path | None = None) -> dict[str, dict[str, Any]]:
    """Theory -> what is registered of it."""
    entries: dict[str, dict[str, Any]] = {}
    for path in [_register_file(folder(table) / "theories"), *([_register_file(Path(own))] if own else [])]:
        if path.is_file():
            entries |= read_object(path, _REMEDY)
    return entries


def register(table: str | Path, own: str | Path | None = None) -> list[str]:
    """Fit and register every theory whose source, or training part, is not registered; their names.

    Theories of the user's folder are registered there, others beside those of the table.

    Raises:
        CellsMissing: The training part is not measured.
        InputError: The theory of a file cannot be fitted.
    """
    contenders, before, new = theories(table, own), registered(table, own), {}
    declared = phenomenon(table)
    train, held_out = declared.parts(record(table))
    require_measured(table, train, "the training part")
    digest = data_digest(train)
    for theory in contenders.values():
        entry = before.get(theory.name, {})
        helpers = theory.helpers
        if (entry.get("source"), entry.get("train"), entry.get("helpers", [])) != (theory.digest, digest, helpers):
            new[theory] = {
                "source": theory.digest,
                "helpers": helpers,
                "train": digest,
                "late": declared.published or bool(np.isfinite(held_out["value"].values).any()),
                "numbers": fitted(theory, train),
            }
    for at in {_register_folder(table, theory, own) for theory in new}:
        path = _register_file(at)
        entries = read_object(path, _REMEDY) if path.is_file() else {}
        entries |= {theory.name: entry for theory, entry in new.items() if _register_folder(table, theory, own) == at}
        write_atomically(path, (json.dumps(dict(sorted(entries.items())), indent=1) + "\n").encode())
    return [theory.name for theory in new]


def refusal(theory: Theory, entry: Mapping[str, Any] | None, train: "xr.Dataset") -> str:
    """Why a theory gets no score; empty if it gets one."""
    if entry is None:
        return "not registered"
    if entry["source"] != theory.digest:
        return "changed since it was registered"
    if entry.get("helpers", []) != theory.helpers:
        return "what it imports changed since it was registered"
    if entry["train"] != data_digest(train):
        return "registered with another training part"
    numbers = fitted(theory, train), entry["numbers"]
    after, before = (distribution(theory.predict(fit, train), train["value"].values) for fit in numbers)
    return "" if np.abs(after - before).max() < SAME else "registered numbers are not those of the fit"


def fitted(theory: Theory, train: "xr.Dataset") -> dict[str, Any]:
    """The fitted numbers, or lists of them; raises InputError if they are not finite, or if the theory fails."""
    try:
        numbers = {str(name): np.asarray(value, float).tolist() for name, value in theory.fit(train).items()}
        theory.predict(numbers, train).arrays(train.sizes["cell"])
    except Exception as error:
        raise InputError(
            f"{theory.path}: expected numbers that predict, got {type(error).__name__}: {error}"
        ) from error
    if not all(np.isfinite(value).all() for value in numbers.values()):
        raise expected(str(theory.path), "finite numbers", numbers)
    return numbers


def require_measured(table: str | Path, part: "xr.Dataset", words: str) -> None:
    """Raise CellsMissing unless every value of a part is measured."""
    missing = int((~np.isfinite(part["value"].values).all(1)).sum())
    if missing:
        raise CellsMissing(f"{table}: expected {words}, {missing} of {part.sizes['cell']} cells are not measured yet")


def _imported(path: Path) -> list[Path]:
    """The files of the modules that a file imports, wherever in it."""
    names = []
    for node in ast.walk(ast.parse(source_text(path), str(path))):
        if isinstance(node, ast.Import):
            names += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = [node.module] if node.module else []
            names += [
                (node.level, ".".join([*module, *more])) for more in ([], *([alias.name] for alias in node.names))
            ]
    files = [_module_file(path, level, name) for level, name in names if name]
    return [file.resolve() for file in files if file is not None]


def _module_file(path: Path, level: int, name: str) -> Path | None:
    """The file of a module that ``path`` imports by name, ``level`` dots before it; None if it has no file."""
    if level:
        file = path.parents[level - 1].joinpath(*name.split(".")).with_suffix(".py")
        return file if file.is_file() else None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a name in a module, which is no module itself
        return None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def _register_file(at: Path) -> Path:
    return at / "registered.json"


def _register_folder(table: str | Path, theory: Theory, own: str | Path | None) -> Path:
    """The folder in which a theory is registered: its own, or for null theories that of the table."""
    mine = own is not None and theory.path.parent == Path(own).resolve()
    return theory.path.parent if mine else folder(table) / "theories"


def _files(at: Path) -> list[Path]:
    return [path for path in sorted(at.glob("*.py")) if _NAME.fullmatch(path.stem)]


def _theory(path: Path, *, null: bool) -> Theory:
    module = _module(path)
    functions = [getattr(module, name, None) for name in ("fit", "predict")]
    if not all(map(callable, functions)):
        raise InputError(f"{path}: expected functions `fit(train)` and `predict(numbers, conditions)`, got {functions}")
    return Theory(path.stem, _title(path), path, null, *functions)  # pyright: ignore[reportArgumentType]


def _title(path: Path) -> str:
    return (ast.get_docstring(ast.parse(source_text(path), str(path))) or path.stem).partition("\n")[0].rstrip(".")


def _module(path: Path) -> ModuleType:
    """A file as a module, whatever folder it is in."""
    spec = importlib.util.spec_from_file_location("icllab_arena_" + re.sub(r"\W", "_", str(path.with_suffix(""))), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path}: expected a file that imports, got {type(error).__name__}: {error}") from error
    return module
