"""The source files of a claim's verdict, and their digests; no file is imported."""

import contextlib
import hashlib
import inspect
import io
import re
import textwrap
import tokenize
from pathlib import Path
from typing import Any, cast

from icllab.core.files import read_object, source_text
from icllab.lab import registry
from icllab.lab.claim import Claim

_REMEDY = "install the book again"


def source_files(claim: str, folder: str | Path | None = None) -> dict[str, Path]:
    """Map names to files of the claim's folder, and to each ``_module.py`` of its subject that they name.

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
    """SHA-256 of the :func:`code` of a claim's ``measure.py``; of a claim in one file, of its function ``measure``."""
    return _digest(code(_measuring_text(claim, folder)))


def is_measured_by(digest: str, claim: Claim, folder: str | Path | None = None) -> bool:
    """True if data state a digest of the ``measure.py`` that is here, by its code or by its whole text.

    Data of version 0.3 state an empty text; the first data of version 0.4 state the digest of the text.
    """
    return digest in ("", measure_digest(claim, folder), _digest(_measuring_text(claim, folder)))


def code(text: str) -> str:
    """A text of Python without its comments, its docstrings and its blank lines; other text as it is."""
    text = textwrap.dedent(text)
    try:
        tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type != tokenize.NL]
    except (tokenize.TokenError, SyntaxError):  # a part of an expression, such as a lambda
        return text
    cuts = [(token.start, token.end) for token in tokens if token.type == tokenize.COMMENT]
    tokens = [token for token in tokens if token.type != tokenize.COMMENT]
    borders = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for i, token in enumerate(tokens):  # a string between two borders is a statement of its own
        alone = (i == 0 or tokens[i - 1].type in borders) and tokens[min(i + 1, len(tokens) - 1)].type in borders
        cuts += [(token.start, token.end)] if token.type == tokenize.STRING and alone else []
    lines = text.splitlines()
    for (row, column), (end_row, end_column) in sorted(cuts, reverse=True):
        lines[row - 1 : end_row] = [lines[row - 1][:column] + lines[end_row - 1][end_column:]]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _measuring_text(claim: Claim, folder: str | Path | None) -> str:
    path = registry.claims(folder)[claim.name]
    source = registry.measure_file(path)
    text = source_text(source)
    if source == path:
        with contextlib.suppress(TypeError, OSError):  # a callable that is no function
            function = inspect.unwrap(cast(Any, registry.load(claim.name, folder).measure))
            text = inspect.getsource(function)
    return text


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def moved() -> dict[str, list[str]]:
    """Map each moved file to its SHA-256 in icl-lab 0.3 and in the book.

    The two differ by imports, docstrings, the spelling of calls of the library, and the network of a user that a claim
    may be asked of; they differ in nothing that is measured of the claim's own network.
    """
    paths = [entry.folder.with_name("moved.json") for entry in registry.books()]
    return {name: pair for path in paths if path.is_file() for name, pair in read_object(path, _REMEDY).items()}


def digests(files: dict[str, Path]) -> dict[str, str]:
    """Map each name to the SHA-256 of its text, with line endings normalised."""
    return {name: _digest(source_text(path)) for name, path in files.items()}
