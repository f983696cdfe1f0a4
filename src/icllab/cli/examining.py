"""``icl examine``: sections in a process of their own, and the report of one network or of two side by side."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icllab.cli.parameters import ExamineOptions, NetworkOptions
from icllab.cli.reports import Report, lines, typeset
from icllab.core.errors import InputError, expected
from icllab.core.files import write_atomically

if TYPE_CHECKING:
    from rich.console import Console


def listed() -> Report:
    """The tasks of the grammar with their defaults."""
    from icllab.tasks.parsing import grammar

    rows = grammar()
    return Report({"tasks": rows}, lambda console: lines(console, rows.items()))


def examine(networks: Sequence[str], options: ExamineOptions, named: NetworkOptions, *, out: Path) -> Report:
    """Examine one or two networks, and write the report; the exit status is 4 if a section raised or was ended."""
    from icllab.examination.child import sections_in_child
    from icllab.examination.claims import applicable, asked_by_name
    from icllab.examination.examining import Examination, corrected, section_names
    from icllab.examination.report import html
    from icllab.examination.sentences import first_sentences

    if not 1 <= len(networks) <= 2:
        raise expected("NETWORK", "one network, or two to compare", len(networks))
    if not options.task:
        raise InputError("icl examine: expected --task TASK, got none; `icl examine --tasks` lists them")
    names = section_names(_split(options.only) or None, _split(options.skip) or ())
    found = []
    for index, network in enumerate(networks):
        folder = out.with_suffix("") if len(networks) == 1 else out.with_suffix("") / "AB"[index]
        request = _request(network, options, named, names, folder)
        header, sections = sections_in_child(request, _say)
        rows = applicable(header["kind"], bool(named.checkpoints))
        rows = asked_by_name(rows, request, _say) if options.claims else rows
        found.append(corrected(Examination(header, tuple(sections), rows)))
    write_atomically(out, html(found).encode(), "no report was written; the measurements are kept")
    raised = [s.name for one in found for s in one.sections if s.status in ("failed", "ended")]
    data = {"report": str(out), "examinations": [one.as_dict() for one in found]}

    def plain(console: "Console") -> None:
        for one in found:
            console.print(typeset((f"{one.header['name']}  size {one.header['size']}", "bold")))
            for number, sentence in enumerate(first_sentences(one), 1):
                console.print(typeset(f"  {number}. {sentence}"))
            for row in one.claims if options.claims else ():
                console.print(typeset(f"  {row['claim']}: {row['verdict'] or row['reason']}"))
        console.out(f"report: {out}", highlight=False)

    return Report(data, plain, 4 if raised else 0)


def _request(
    network: str, options: ExamineOptions, named: NetworkOptions, names: Sequence[str], folder: Path
) -> dict[str, Any]:
    """The request of a child process, as plain values."""
    return {
        "network": network,
        "name": network,
        "task": options.task,
        "key": options.key,
        "size": options.size,
        "minutes": options.minutes,
        "trained_on": options.trained_on,
        "checkpoints": named.checkpoints,
        "load": named.load,
        "store": None if named.store is None else str(named.store),
        "family": named.family,
        "heads": named.heads,
        "all": list(names),
        "folder": str(folder),
    }


def _split(names: Sequence[str] | None) -> list[str]:
    """Names that stand between commas or in several options."""
    return [part for name in names or () for part in name.split(",") if part]


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
