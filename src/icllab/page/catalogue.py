"""Every claim with its card and its texts; claims of trusted books are read from their records, without an import."""

import ast
from dataclasses import dataclass
from pathlib import Path

from icllab.core.axes import Quantity
from icllab.core.files import source_text
from icllab.lab import records, registry
from icllab.lab.records import Card


@dataclass(frozen=True)
class Entry:
    """A claim as the page shows it.

    Attributes:
        card: The statement of the claim and its record.
        subject: Description of its subject.
        version: The ``VERSION`` of its measurement; results of another one are stale.
        fault: Why the claim's file cannot be used; the card is then empty but for its name.
    """

    card: Card
    subject: str = ""
    version: int = 1
    fault: str = ""


def catalogue(folder: Path | None = None) -> dict[str, Entry]:
    """Map each claim to its entry: claims of trusted books, of the user's ``folder``, and from elsewhere.

    The files in ``folder`` are imported. Claims from elsewhere are shown by their records alone.
    """
    trusted, files = registry.claims(), registry.claims(folder)
    files |= {name: claim.path for name, claim in registry.foreign()[0].items() if name not in files}
    return {name: _entry(name, path, None if name in trusted else folder) for name, path in files.items()}


def texts(claim: str, folder: Path | None = None) -> dict[str, str]:
    """File name -> text: the claim, and how it is measured."""
    path = registry.file(claim, folder)
    files = dict.fromkeys([path, registry.measure_file(path)])
    return {file.name: source_text(file) for file in files}


def background(claim: str, folder: Path | None = None) -> str:
    """The docstring of the claim's file; empty where that is no Python."""
    try:
        return ast.get_docstring(ast.parse(registry.file(claim, folder).read_bytes())) or ""
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""


def symbols(claim: str, folder: Path | None = None) -> list[Quantity]:
    """The axes of a claim, then its quantities; its file is imported, which imports no JAX.

    None of a claim from elsewhere: its file is not imported.
    """
    if registry.is_foreign(claim, folder):
        return []
    content = registry.load(claim, folder)
    names = dict.fromkeys(name for axes in content.sizes.values() for name in axes if name not in content.fixed)
    return [*(content.vocabulary.axis(name) for name in names), *content.vocabulary.quantities.values()]


def _entry(claim: str, path: Path, folder: Path | None) -> Entry:
    try:
        card = records.card(claim, folder)
        package = path.parent.parent if path.name == "claim.py" else path.parent
        subject = package / "__init__.py"
        description = ast.get_docstring(ast.parse(subject.read_text("utf-8"))) if subject.is_file() else ""
        return Entry(card, " ".join((description or "").split()), registry.version(path))
    except Exception as error:  # whatever the user's file raises when it is imported
        return Entry(Card(claim, "", "", (), (), {}, {}), fault=f"{path.name}: {error}")
