"""The files on which a claim's verdict rests, and the names that they use; nothing is imported."""

import ast
import contextlib
import hashlib
import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from icllab.core.files import source_text
from icllab.lab import registry
from icllab.lab.claim import Claim


def source_files(claim: str, folder: str | Path | None = None) -> dict[str, Path]:
    """Name -> file: those of the claim, and the modules of its book that they import.

    Of a user's claim in a folder they are all Python files of that folder.
    """
    path = registry.claims(folder)[claim]
    inner = path.name == "claim.py"
    waiting = [file for file in sorted(path.parent.glob("*.py")) if file.stat().st_size] if inner else [path]
    files: dict[str, Path] = {}
    while waiting:
        file = waiting.pop(0)
        name = _name(file, path.parents[2] if inner else path.parents[1])
        if name not in files:
            files[name] = file
            waiting += filter(None, map(_module, _imports(_tree(file)).values()))
    return dict(sorted(files.items()))


def _name(file: Path, root: Path) -> str:
    """``subject/finding/claim.py``; a module of a trusted book is named from its claims on."""
    trusted = registry.book(file)
    base = root if trusted is None else trusted.folder
    return file.relative_to(base).as_posix() if file.is_relative_to(base) else file.name


def _module(used: str) -> Path | None:
    """The file of a module among a trusted book's claims, or of the one that a name was imported from."""
    for entry in registry.books():
        if used.startswith(f"{entry.package}."):
            parts = used.removeprefix(f"{entry.package}.").split(".")
            paths = (entry.folder.joinpath(*parts[:end]).with_suffix(".py") for end in range(len(parts), 0, -1))
            return next((path for path in paths if path.is_file()), None)
    return None


def measure_digest(claim: Claim, folder: str | Path | None = None) -> str:
    """SHA-256 of the text of a claim's ``measure.py``; of a claim in one file, of its function ``measure``."""
    path = registry.claims(folder)[claim.name]
    source = registry.measure_file(path)
    text = source_text(source)
    if source == path:
        with contextlib.suppress(TypeError, OSError):  # a callable that is no function
            text = inspect.getsource(inspect.unwrap(cast(Any, registry.load(claim.name, folder).measure)))
    return hashlib.sha256(text.encode()).hexdigest()


def digests(files: dict[str, Path]) -> dict[str, str]:
    """Name -> SHA-256 of the text, whatever ends its lines."""
    return {name: hashlib.sha256(source_text(path).encode()).hexdigest() for name, path in files.items()}


def names_used(files: Iterable[Path]) -> set[str]:
    """Dotted names that the files import or read from what they import, such as ``icllab.lab.checks.agrees``."""
    names: set[str] = set()
    for file in files:
        tree = _tree(file)
        aliases = _imports(tree)
        names |= set(aliases.values())
        for node in ast.walk(tree):
            attributes: list[str] = []
            while isinstance(node, ast.Attribute):
                attributes.insert(0, node.attr)
                node = node.value
            if attributes and isinstance(node, ast.Name) and node.id in aliases:
                names.add(".".join([aliases[node.id], *attributes]))
    return names


def _imports(tree: ast.Module) -> dict[str, str]:
    """Name in a file -> dotted name of what was imported under it."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return aliases


def _tree(file: Path) -> ast.Module:
    return ast.parse(source_text(file), str(file))
