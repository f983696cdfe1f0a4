"""Find claims by name: a folder with a ``claim.py`` is the claim ``subject/finding`` of its path.

The laboratory has no claims. It finds books of them, which wheels and the user register
(:mod:`~icllab.lab.registrations`), each a folder of ``<subject>/<finding>/claim.py``. Claims of the books in
:data:`PACKAGES` are imported as modules of their package. A claim of any other book is *foreign*: it is never loaded by
its name, and what is shown of it stands in its record. ``icl run`` names its folder, as ``--claims`` does, and so runs
its code.

A folder of the user's own, which ``--claims`` names, may hold more, each a folder with a ``claim.py`` (and a
``measure.py``), or one file ``<finding>.py``: directly, where the folder's name is the subject, or in a folder for each
subject. A user's file is Python that the user asked to run; nothing else is ever imported from such a folder.
"""

import dataclasses
import functools
import importlib
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from icllab.core.errors import InputError, expected, unknown
from icllab.core.files import source_text
from icllab.core.user_files import open_file
from icllab.lab import provenance, registrations
from icllab.lab.claim import Claim, Measure
from icllab.lab.registrations import Registration

PACKAGES = ("iclbook",)
"""The packages of trusted books: their code is imported when it is needed. A user cannot add to them."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_VERSION = re.compile(r"^VERSION = (\d+)\b", re.MULTILINE)


@dataclass(frozen=True)
class Foreign:
    """A claim from elsewhere.

    Attributes:
        path: Its ``claim.py``.
        origin: The wheel and its version, or ``added``.
    """

    path: Path
    origin: str

    @property
    def folder(self) -> Path:
        """The claim's folder: ``--claims`` with it runs its code."""
        return self.path.parent


def claims(folder: str | Path | None = None) -> dict[str, Path]:
    """Map each claim of the trusted books and of the user's ``folder`` to its file."""
    files = dict(_trusted())
    if folder is None:
        return files
    folder = Path(folder).resolve()
    if not folder.is_dir():
        raise InputError(f"--claims: expected a folder of claims, got {str(folder)!r}, which is not a folder")
    private = _within_all(folder)
    if not private:
        raise InputError(
            f"--claims: expected at least one <finding>/claim.py or <finding>.py in {str(folder)!r}, found none"
        )
    for name, path in private.items():
        if name in files:
            raise InputError(f"--claims: expected a name of its own, got {name!r} twice; rename {path}")
    return files | private


def foreign() -> tuple[dict[str, Foreign], list[str]]:
    """The claims from elsewhere by name, without an import, and a warning for each that is left out."""
    registered, warnings = registrations.registered()
    names: dict[str, Foreign] = {}
    for registration in registered:
        if registration in books():
            continue
        try:
            files = foreign_files(registration.folder)
        except OSError as error:
            warnings.append(f"{registration.folder}: expected a folder of claims, got {error.strerror}")
            continue
        if not files:
            warnings.append(f"{registration.folder} ({registration.origin}): no <subject>/<finding>/claim.py is in it")
        for name, path in files.items():
            if holder := _holder(name, path, names):
                warnings.append(f"{path} ({registration.origin}) is left out: {name} is a claim of {holder}")
            else:
                names.setdefault(name, Foreign(path, registration.origin))
    return names, warnings


def clashes(folder: Path) -> list[str]:
    """Names of a folder's claims that other books already have, each with its book."""
    names, files = foreign()[0], foreign_files(folder)
    return [f"{name} is a claim of {holder}" for name, path in files.items() if (holder := _holder(name, path, names))]


def twice(folder: Path) -> list[str]:
    """Claims of a folder that another folder from elsewhere has already, each with that folder."""
    folder, places = folder.resolve(), {}
    for registration in registrations.registered()[0]:
        if registration.folder.resolve() != folder:
            places |= {path.resolve(): registration.folder for path in foreign_files(registration.folder).values()}
    files = foreign_files(folder)
    return [f"{name} is in {places[path.resolve()]}" for name, path in files.items() if path.resolve() in places]


def _holder(name: str, path: Path, names: dict[str, Foreign]) -> str:
    """Name the book or folder that already has a claim of this name; empty if the name is free or is of this file."""
    if (file := _trusted().get(name)) is not None and (shipped := book(file)) is not None:
        return "" if file.resolve() == path.resolve() else shipped.origin
    other = names.get(name)
    return "" if other is None or other.path.resolve() == path.resolve() else f"{other.folder} ({other.origin})"


def foreign_files(folder: Path) -> dict[str, Path]:
    """Map each claim in a folder from elsewhere to its ``claim.py``; only folders with plain names count."""
    files = _within_all(folder.resolve())
    return {
        name: path
        for name, path in files.items()
        if path.name == "claim.py" and all(map(_NAME.fullmatch, name.split("/")))
    }


def file(name: str, folder: str | Path | None = None) -> Path:
    """The file of a claim: of a trusted book, of the user's ``folder``, or from elsewhere; an unknown name raises."""
    _require_name(name)
    files = claims(folder)
    if name in files:
        return files[name]
    elsewhere, warnings = foreign()
    if name in elsewhere:
        return elsewhere[name].path
    raise _unknown(name, [*files, *elsewhere], folder, warnings)


def is_foreign(name: str, folder: str | Path | None = None) -> bool:
    """True if a claim is from elsewhere, so that a reader may not run its code."""
    return name not in claims(folder) and name in foreign()[0]


def _require_name(name: object) -> None:
    if not isinstance(name, str):
        raise expected("claim", "a name such as 'asymptotics/double_descent'", name, "`icl list` has all")


def _unknown(name: str, names: list[str], folder: str | Path | None, warnings: list[str]) -> InputError:
    hints = [] if folder else ["claims of your own: --claims DIR"]
    return unknown("claim", name, names, " ".join(f"({hint})" for hint in [*hints, *absent(), *warnings]))


@functools.cache  # what is installed is read once by a process
def books() -> tuple[Registration, ...]:
    """The trusted books that are installed."""
    registered = registrations.registered()[0]
    return tuple(entry for entry in registered if entry.package.partition(".")[0] in PACKAGES)


def absent() -> list[str]:
    """A line that says how to install the book; empty if a book is installed."""
    return [] if books() else ["no book is installed; in a clone of icl-lab `pip install -e book` brings its claims"]


def book(path: Path) -> Registration | None:
    """The trusted book that holds a file, or None."""
    return next((entry for entry in books() if path.is_relative_to(entry.folder)), None)


def origin(name: str, folder: str | Path | None = None) -> dict[str, str]:
    """Book, version and commit of a claim; for a user's claim the commit of its folder."""
    path = file(name, folder)
    entry = next((entry for entry in registrations.registered()[0] if path.is_relative_to(entry.folder)), None)
    place = path.parent if entry is None else entry.folder
    return {"book": "" if entry is None else entry.origin, "book_commit": provenance.commit(place)}


def beside(name: str) -> list[Path]:
    """The folders of a name, such as ``figures``, that stand beside the claims of trusted books."""
    return [path for entry in books() if (path := entry.folder.with_name(name)).is_dir()]


@functools.cache
def _trusted() -> dict[str, Path]:
    """The claims of trusted books."""
    paths = [path for entry in books() for path in sorted(entry.folder.glob("*/*/claim.py"))]
    return {f"{path.parents[1].name}/{path.parent.name}": path for path in paths}


def _within_all(folder: Path) -> dict[str, Path]:
    """The claims in a user's folder, and the claims in its subfolders, which are subjects."""
    files = _within(folder)
    for subject in sorted(folder.iterdir()):
        if subject.is_dir() and not (subject / "claim.py").is_file():
            files |= _within(subject)
    return files


def _within(subject: Path) -> dict[str, Path]:
    """The claims in a user's folder: folders with a ``claim.py``, files, or the folder itself."""
    if (subject / "claim.py").is_file():
        return {f"{subject.parent.name}/{subject.name}": subject / "claim.py"}
    files = [path for path in sorted(subject.glob("*.py")) if _NAME.fullmatch(path.stem)]
    folders = [path for path in sorted(subject.glob("*/claim.py")) if _NAME.fullmatch(path.parent.name)]
    return {f"{subject.name}/{path.stem}": path for path in files} | {
        f"{subject.name}/{path.parent.name}": path for path in folders
    }


def load(name: str, folder: str | Path | None = None) -> Claim:
    """The claim of a name, with the functions of its file and the ``measure`` of the file beside it.

    Raises:
        InputError: There is no such claim; or its file does not import, lacks a function or a control.
    """
    _require_name(name)
    files = claims(folder)
    if name not in files:
        elsewhere, warnings = foreign()
        if name in elsewhere:
            raise InputError(
                f"{name} is a claim from elsewhere, whose code runs on `icl run` alone; "
                f"with --claims {elsewhere[name].folder} you ask for it here too"
            )
        raise _unknown(name, [*files, *elsewhere], folder, warnings)
    path = files[name]
    module = _module(path)
    claim = getattr(module, "claim", None)
    if not isinstance(claim, Claim):
        hint = "; since version 0.3 `experiment = Experiment(claim=...)` is `claim = Claim(sentence=...)`"
        raise InputError(
            f"{path}: expected a module-level `claim = Claim(...)`, got {claim!r}"
            f"{hint if hasattr(module, 'experiment') else ''}"
        )
    # A subpackage that the file imports may have the name of one of its functions.
    functions = {name: value for name, value in vars(module).items() if callable(value)}
    parts = {part: getattr(claim, part) or functions.get(part) for part in ("theory", "check", "figure", "reduce")}
    for part in ("check", "figure"):
        if parts[part] is None:
            raise InputError(f"{path}: expected a function `{part}(dataset)`, got none")
    measure = claim.measure or _measure(path)
    return dataclasses.replace(claim, name=name, version=version(path), measure=measure, **parts)


def measure_file(path: Path) -> Path:
    """The file that measures a claim: ``measure.py`` beside it, or its own file."""
    beside = path.with_name("measure.py")
    return beside if path.name == "claim.py" and beside.is_file() else path


def version(path: Path) -> int:
    """The ``VERSION`` in the measuring file of a claim, or 1, without an import."""
    match = _VERSION.search(source_text(measure_file(path)))
    return int(match[1]) if match else 1


def _measure(path: Path) -> Measure:
    """The function ``measure`` of ``measure.py``, which is imported when it is first called."""
    source = measure_file(path)
    if source == path:
        raise InputError(f"{path}: expected a measure.py beside it, or Claim(measure=...), got neither")

    def measure(point: Any, *, key: Any, **arguments: Any) -> Any:
        return _module(source).measure(point, key=key, **arguments)

    return measure


def parameters(claim: Claim, folder: str | Path | None = None) -> set[str]:
    """The names of the parameters of a claim's ``measure``; imports the measuring file."""
    path = claims(folder)[claim.name]
    source = measure_file(path)
    function = claim.measure if source == path else _module(source).measure
    return set() if function is None else set(inspect.signature(function).parameters)


def _module(path: Path) -> ModuleType:
    if (trusted := book(path)) is not None:
        inner = path.relative_to(trusted.folder).with_suffix("").parts
        return importlib.import_module(".".join([trusted.package, *inner]))
    return open_file(path, once=path.name in ("claim.py", "measure.py"))  # a run measures with one text
