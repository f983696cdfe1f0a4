"""Books: folders of claims, which wheels name or a user added. Nothing in them is imported.

A wheel names its book by an entry point of the group ``icllab.claims``, whose value is a package. ``icl claim add``
notes a folder in ``claims.json`` of the configuration directory: ``ICLLAB_CONFIG`` of the environment, else ``icl-lab``
in ``XDG_CONFIG_HOME``, else ``~/.config/icl-lab``.
"""

import functools
import importlib.util
import json
import os
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from icllab.core.errors import IclError, InputError
from icllab.core.files import DamagedFile, disk_faults, parse_json, write_atomically

GROUP = "icllab.claims"
ADDED = "added"
_PACKAGE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_KEPT = "the list of added claims is as it was"


@dataclass(frozen=True)
class Registration:
    """A folder of claims.

    Attributes:
        folder: Its path.
        origin: The wheel and its version, such as ``my-claims 0.1``; ``added`` of a folder of ``icl claim add``.
        package: The package that the wheel names, such as ``my_claims``; empty of a folder that was added.
    """

    folder: Path
    origin: str
    package: str = ""


def registered() -> tuple[list[Registration], list[str]]:
    """The folders of wheels and of the user, and a warning for each folder that cannot be used."""
    folders, warnings = list(_installed()[0]), list(_installed()[1])
    try:
        paths = added()
    except IclError as error:
        return folders, [*warnings, str(error)]
    for path in paths:
        if path.is_dir():
            folders.append(Registration(path, ADDED))
        else:
            warnings.append(
                f"{path}: added as a folder of claims, and none now; `icl claim add --remove {path}` forgets it"
            )
    return folders, warnings


@functools.cache  # what is installed is read once by a process
def _installed() -> tuple[tuple[Registration, ...], tuple[str, ...]]:
    folders, warnings = [], []
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a wheel"
        folder = _package_folder(entry.value)
        if folder is None:
            warnings.append(
                f"{origin}: expected its entry point {entry.name!r} of {GROUP} to name a package with claims, "
                f"got {entry.value!r}"
            )
        else:
            folders.append(Registration(folder, origin, entry.value))
    return tuple(folders), tuple(warnings)


def _package_folder(package: str) -> Path | None:
    """The folder of an installed package, without an import: the spec of a top-level name needs none."""
    if not _PACKAGE.fullmatch(package):
        return None
    top, *inner = package.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    places = [] if spec is None else spec.submodule_search_locations or []
    return next((folder for place in places if (folder := Path(place, *inner)).is_dir()), None)


def _file() -> Path:
    base = Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))
    return Path(os.environ.get("ICLLAB_CONFIG") or base / "icl-lab") / "claims.json"


def added() -> list[Path]:
    """The folders that the user added.

    Raises:
        DamagedFile: The list is not one of paths.
    """
    path = _file()
    if not path.is_file():
        return []
    with disk_faults(f"cannot read {path}", _KEPT):
        text = path.read_bytes()
    try:
        folders = parse_json(text)["folders"]
        if not all(isinstance(folder, str) and Path(folder).is_absolute() for folder in folders):
            raise ValueError(f"got {folders!r:.60}")
    except (ValueError, TypeError, LookupError) as error:
        raise DamagedFile(f"{path}: expected a JSON list of absolute paths ({error}); mend it, or remove it") from None
    return [Path(folder) for folder in folders]


def add(folder: Path) -> Path:
    """Add a folder to the list, once, and return its absolute path."""
    folder = folder.resolve()
    _write(list(dict.fromkeys([*added(), folder])))
    return folder


def remove(folder: Path) -> Path:
    """Remove a folder from the list, even if it no longer exists; raise InputError if it is not listed."""
    folder, folders = folder.resolve(), added()
    if folder not in folders:
        raise InputError(f"icl claim add --remove: expected a folder that was added, got {folder}; {_listed(folders)}")
    _write([path for path in folders if path != folder])
    return folder


def _listed(folders: list[Path]) -> str:
    return f"added: {', '.join(map(str, folders)) or 'none'}"


def _write(folders: list[Path]) -> None:
    path = _file()
    with disk_faults(f"cannot write {path}", _KEPT):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps({"folders": list(map(str, folders))}, indent=1) + "\n").encode(), _KEPT)
