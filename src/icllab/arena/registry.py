"""Tables and theories of the arena: their files, their records, and the registrations of theories.

A table is a folder ``arena/NAME`` of a book, with a ``phenomenon.py``, a ``record.nc`` and a folder of theories. A
theory is a file ``NAME.py`` with ``fit`` and ``predict``, there or in a folder of the user's own; the first line of its
docstring says what it is. Beside theories lies ``registered.json``: of each theory the digest of the training part, the
fitted numbers, and the distributions that it predicts at all cells. The record keeps the SHA-256 that this file had
when the first held-out value was measured. Theories that are registered later stand in ``late.json``.
"""

import ast
import contextlib
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from icllab.arena.phenomenon import Phenomenon
from icllab.arena.prediction import Prediction, distances
from icllab.core.errors import CellsMissing, InputError, expected, require_known
from icllab.core.files import DamagedFile, disk_faults, read_object, source_text, write_atomically
from icllab.core.user_files import open_file
from icllab.lab import registry as books
from icllab.lab.records import data_digest

if TYPE_CHECKING:
    import xarray as xr

NULLS = Path(__file__).with_name("nulls")
SAME = 0.005  # of probability, at any value in any cell: how far a prediction may be from the registered one
REGISTERED, LATE = "registered.json", "late.json"
_FIELDS = ("train", "numbers", *Prediction._fields)
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


@dataclass(frozen=True)
class Registration:
    """A theory as it was registered.

    Attributes:
        train: Digest of the training part.
        numbers: Fitted numbers by name.
        prediction: Distributions at all cells of the phenomenon.
        late: Whether held-out values could be known before.
        altered: Whether its file is not the one whose digest the record keeps.
    """

    train: str
    numbers: Mapping[str, Any]
    prediction: Prediction
    late: bool = False
    altered: bool = False


def tables() -> dict[str, Path]:
    """Name -> folder of the tables of trusted books."""
    folders = books.beside("arena")
    return {path.parent.name: path.parent for at in folders for path in sorted(at.glob("*/phenomenon.py"))}


def folder(table: str | Path) -> Path:
    """The folder of a table: one of a trusted book, by name, or any folder with a ``phenomenon.py``."""
    if (Path(table) / "phenomenon.py").is_file():
        return Path(table).resolve()
    hints = ["or a folder with a phenomenon.py", *books.absent()]
    require_known("table", str(table), tables(), " ".join(f"({hint})" for hint in hints))
    return tables()[str(table)]


def title(table: str | Path) -> str:
    """The first line of the docstring of a table's ``phenomenon.py``, which is not imported."""
    return _title(folder(table) / "phenomenon.py")


def phenomenon(table: str | Path) -> Phenomenon:
    """The phenomenon of a table."""
    path = folder(table) / "phenomenon.py"
    declared = getattr(open_file(path), "phenomenon", None)
    if not isinstance(declared, Phenomenon):
        raise InputError(f"{path}: expected a module-level `phenomenon = Phenomenon(...)`, got {declared!r}")
    return declared


def measure(table: str | Path) -> Callable[..., list[tuple[float, bool]]]:
    """The function ``measure(cell, seeds)`` of a table: value, and whether it is censored, for each seed."""
    return open_file(folder(table) / "measure.py").measure


def record(table: str | Path) -> "xr.Dataset":
    """Read the record of a table, [cell, seed]; a cell that is not measured yet is NaN.

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


def save(table: str | Path, dataset: "xr.Dataset", own: str | Path | None = None) -> None:
    """Write the record of a table, whole or not at all.

    The record keeps the SHA-256 of ``registered.json``, and of the one in the user's folder ``own``, as they are when
    the first held-out value is written.
    """
    before = record(table)
    if _is_held_out_measured(phenomenon(table), before):
        kept = before.attrs.get(REGISTERED, "")
    else:
        kept = " ".join(_digest(at / REGISTERED) for at in _folders(table, own) if (at / REGISTERED).is_file())
    target = io.BytesIO()
    dataset.assign_attrs({REGISTERED: kept}).to_netcdf(target, engine="h5netcdf")
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


def registered(table: str | Path, own: str | Path | None = None) -> dict[str, list[Registration]]:
    """Theory -> its registrations, the late one last."""
    dataset, declared = record(table), phenomenon(table)
    kept = dataset.attrs.get(REGISTERED, "").split()
    entries: dict[str, list[Registration]] = {}
    for path in [at / name for name in (REGISTERED, LATE) for at in _folders(table, own)]:
        if path.is_file():
            late = declared.published or path.name == LATE
            altered = not late and _is_held_out_measured(declared, dataset) and _digest(path) not in kept
            for name, entry in read_object(path, _REMEDY).items():
                entries.setdefault(name, []).append(_registration(path, name, entry, late, altered))
    return entries


def register(table: str | Path, own: str | Path | None = None) -> list[str]:
    """Fit and register every theory that agrees with no registration; their names.

    Theories of the user's folder are registered there, others beside those of the table.

    Raises:
        CellsMissing: The training part is not measured.
        InputError: The theory of a file cannot be fitted.
    """
    declared, dataset, before = phenomenon(table), record(table), registered(table, own)
    require_measured(table, declared.parts(dataset)[0], "the training part")
    new = {
        theory: _computed(theory, declared, dataset)
        for name, theory in theories(table, own).items()
        if isinstance(agreement(theory, before.get(name, []), declared, dataset), str)
    }
    late = _is_held_out_measured(declared, dataset) and not declared.published
    for at in {_register_folder(table, theory, own) for theory in new}:
        path = at / (LATE if late else REGISTERED)
        entries = read_object(path, _REMEDY) if path.is_file() else {}
        entries |= {
            theory.name: _entry(new[theory], len(declared.cells))
            for theory in new
            if _register_folder(table, theory, own) == at
        }
        lines = [f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(entries.items())]
        write_atomically(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    return [theory.name for theory in new]


def agreement(
    theory: Theory, registrations: Sequence[Registration], declared: Phenomenon, dataset: "xr.Dataset"
) -> Registration | str:
    """The first registration with which a theory agrees, fitted as it is now; or why it gets no score."""
    if not registrations:
        return "not registered"
    try:
        present = _computed(theory, declared, dataset)
        reasons = [_disagreement(theory, registration, present, dataset) for registration in registrations]
    except InputError as error:
        return str(error)
    return registrations[reasons.index("")] if "" in reasons else reasons[-1]


def fitted(theory: Theory, train: "xr.Dataset") -> dict[str, Any]:
    """The fitted numbers, or lists of them; raises InputError if they are not finite, or if the theory fails."""
    with _failures(theory):
        numbers = {str(name): np.asarray(value, float).tolist() for name, value in theory.fit(train).items()}
    if not all(np.isfinite(value).all() for value in numbers.values()):
        raise expected(str(theory.path), "finite numbers", numbers)
    return numbers


def require_measured(table: str | Path, part: "xr.Dataset", words: str) -> None:
    """Raise CellsMissing unless every value of a part is measured."""
    missing = int((~np.isfinite(part["value"].values).all(1)).sum())
    if missing:
        raise CellsMissing(f"{table}: expected {words}, {missing} of {part.sizes['cell']} cells are not measured yet")


def _computed(theory: Theory, declared: Phenomenon, dataset: "xr.Dataset") -> Registration:
    """The registration of a theory as it is now, whose numbers are fitted to the training part."""
    train, _ = declared.parts(dataset)
    numbers = fitted(theory, train)
    return Registration(data_digest(train), numbers, predicted(theory, numbers, dataset))


def _disagreement(theory: Theory, old: Registration, new: Registration, dataset: "xr.Dataset") -> str:
    """Why a theory whose registration would be ``new`` gets no score by ``old``; empty if it gets one."""
    cells = dataset.sizes["cell"]
    if old.train != new.train:
        return "registered with another training part"
    if distances(old.prediction, new.prediction, cells).max() >= SAME:
        return "predicts otherwise than it was registered"
    same_names = set(old.numbers) == set(new.numbers)  # a theory may have renamed its numbers
    if same_names and distances(old.prediction, predicted(theory, old.numbers, dataset), cells).max() >= SAME:
        return "registered numbers are not those of the fit"
    return f"{REGISTERED} is another than when held-out values were measured: {_REMEDY}" if old.altered else ""


def predicted(theory: Theory, numbers: Mapping[str, Any], dataset: "xr.Dataset") -> Prediction:
    """Distributions at all cells; a theory does not get their values, but could read the record (docs/arena.md)."""
    with _failures(theory):
        prediction = Prediction(*theory.predict(numbers, dataset.drop_vars(["value", "censored"], errors="ignore")))
        prediction.arrays(dataset.sizes["cell"])
    return prediction


@contextlib.contextmanager
def _failures(theory: Theory) -> Iterator[None]:
    """Turn any exception of a theory into one line that names its file."""
    try:
        yield
    except Exception as error:
        raise InputError(
            f"{theory.path}: expected numbers that predict, got {type(error).__name__}: {error}"
        ) from error


def _registration(path: Path, name: str, entry: Any, late: bool, altered: bool) -> Registration:
    """An entry of a file of registrations."""
    if not isinstance(entry, dict) or set(entry) != set(_FIELDS) or not isinstance(entry["numbers"], dict):
        raise DamagedFile(f"{path}: {name}: expected {', '.join(_FIELDS)}, got {str(entry)[:80]!r}; {_REMEDY}")
    train, numbers, *prediction = (entry[field] for field in _FIELDS)
    return Registration(train, numbers, Prediction(*prediction), late, altered)


def _entry(registration: Registration, cells: int) -> dict[str, Any]:
    """A registration as JSON: a distribution that is equal in all cells is one number for each of its parts."""
    columns = (part[:, 0].tolist() for part in registration.prediction.arrays(cells))
    parts = [column[0] if len(set(column)) == 1 else column for column in columns]
    return dict(zip(_FIELDS, (registration.train, registration.numbers, *parts), strict=True))


def _is_held_out_measured(declared: Phenomenon, dataset: "xr.Dataset") -> bool:
    """True if any held-out value is measured."""
    return bool(np.isfinite(declared.parts(dataset)[1]["value"].values).any())


def _digest(path: Path) -> str:
    """SHA-256 of a text file, whatever ends its lines."""
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def _folders(table: str | Path, own: str | Path | None) -> list[Path]:
    return [folder(table) / "theories", *([Path(own)] if own is not None else [])]


def _register_folder(table: str | Path, theory: Theory, own: str | Path | None) -> Path:
    """The folder in which a theory is registered: its own, or for null theories that of the table."""
    mine = own is not None and theory.path.parent == Path(own).resolve()
    return theory.path.parent if mine else folder(table) / "theories"


def _files(at: Path) -> list[Path]:
    return [path for path in sorted(at.glob("*.py")) if _NAME.fullmatch(path.stem)]


def _theory(path: Path, *, null: bool) -> Theory:
    module = open_file(path)
    functions = [getattr(module, name, None) for name in ("fit", "predict")]
    if not all(map(callable, functions)):
        raise InputError(f"{path}: expected functions `fit(train)` and `predict(numbers, conditions)`, got {functions}")
    return Theory(path.stem, _title(path), path, null, *functions)  # pyright: ignore[reportArgumentType]


def _title(path: Path) -> str:
    return (ast.get_docstring(ast.parse(source_text(path), str(path))) or path.stem).partition("\n")[0].rstrip(".")
