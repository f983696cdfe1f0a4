"""``icl cite``: the sources of a claim, or those that fit words."""

from collections.abc import Sequence
from pathlib import Path

from icllab.cli.reports import Report, paragraph
from icllab.core.errors import InputError
from icllab.core.sources import bibliography, references
from icllab.lab import records, registry, search


def cite(words: Sequence[str], text: bool, folder: Path | None) -> Report:
    """The sources of a claim, or those that fit words: BibTeX, or a line each."""
    if not words:
        raise InputError("icl cite: expected a claim or words of a source, got none; `icl list` names the claims")
    name, sources = " ".join(words), []
    if name not in registry.claims(folder) and name not in registry.foreign()[0]:
        sources, whole = search.sources(name, references().values())
        if not whole:
            cards = [records.card(claim, folder, judged=False) for claim in registry.claims(folder)]
            near = search.nearest(name, cards, references().values())
            raise InputError("; ".join([f"unknown claim or source {name!r}", f"near are {near}", *registry.absent()]))
    sources = sources or records.card(name, folder, judged=False).sources
    answer = "\n".join(source.text for source in sources) if text else bibliography(sources)
    data = {"claim": name, "sources": [source.key for source in sources], "text" if text else "bibtex": answer}
    return Report(data, lambda console: paragraph(console, answer))
