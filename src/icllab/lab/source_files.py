"""The files on which a claim's verdict rests; nothing is imported."""

import contextlib
import hashlib
import inspect
import re
from pathlib import Path
from typing import Any, cast

from icllab.core.files import read_object, source_text
from icllab.lab import registry
from icllab.lab.claim import Claim

_REMEDY = "install the book again"


def source_files(claim: str, folder: str | Path | None = None) -> dict[str, Path]:
    """Name -> file: those of the claim's folder, and each ``_module.py`` of its subject that the text of one names.

    A name is relative to the folder of subjects: ``subject/finding/claim.py``.
    """
    path = registry.claims(folder)[claim]
    subject = path.parents[path.name == "claim.py"]
    files = [file for file in path.parent.glob("*.py") if file.stat().st_size] if subject != path.parent else [path]
    candidates = set(subject.glob("_[a-z]*.py"))
    for file in files:  # which grows
        text = source_text(file)
        named = {module for module in candidates if re.search(rf"\b{module.stem}\b(?!\()", text)}
        files += named
        candidates -= named
    return {file.relative_to(subject.parent).as_posix(): file for file in sorted(files)}


def measure_digest(claim: Claim, folder: str | Path | None = None) -> str:
    """SHA-256 of the text of a claim's ``measure.py``; of a claim in one file, of its function ``measure``."""
    path = registry.claims(folder)[claim.name]
    source = registry.measure_file(path)
    text = source_text(source)
    if source == path:
        with contextlib.suppress(TypeError, OSError):  # a callable that is no function
            text = inspect.getsource(inspect.unwrap(cast(Any, registry.load(claim.name, folder).measure)))
    return hashlib.sha256(text.encode()).hexdigest()


def moved() -> dict[str, list[str]]:
    """Name -> SHA-256 in icl-lab 0.3, and in the book when it moved there, of files that differ by imports alone."""
    paths = [entry.folder.with_name("moved.json") for entry in registry.books()]
    return {name: pair for path in paths if path.is_file() for name, pair in read_object(path, _REMEDY).items()}


def digests(files: dict[str, Path]) -> dict[str, str]:
    """Name -> SHA-256 of the text, whatever ends its lines."""
    return {name: hashlib.sha256(source_text(path).encode()).hexdigest() for name, path in files.items()}
