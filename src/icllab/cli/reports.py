"""Printed answers: strict JSON for programs, sentences and tables for people."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icllab.cli import streams
from icllab.core.spelling import number, printable, strict, with_error

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from icllab.lab.checks import Finding, Verdict

STYLES = {"holds": "bold green", "fails": "bold red", "undecided": "bold yellow"}


@dataclass(frozen=True)
class Report:
    """An answer: ``data`` for programs, ``plain`` writes it for people, ``exit_status`` for scripts.

    ``escape`` is False for the parser's own text, in which control characters have a meaning.
    """

    data: Mapping[str, Any]
    plain: "Callable[[Console], None]"
    exit_status: int = 0
    escape: bool = True

    def as_json(self, command: str | None) -> str:
        """One JSON object on one line."""
        whole = {"command": command, "exit_status": self.exit_status, **self.data}
        return json.dumps(strict(whole), allow_nan=False).replace("\x7f", "\\u007f") + "\n"

    def as_text(self) -> str:
        """The plain answer, in colour where stdout is a terminal."""
        console = streams.console(escape=self.escape)
        with console.capture() as capture:
            self.plain(console)
        return "".join(line.rstrip() + "\n" for line in capture.get().rstrip("\n").split("\n"))


def worst(statuses: Iterable[int]) -> int:
    """The exit status of several claims."""
    return min(statuses, key=(4, 1, 3, 0).index)


def typeset(*parts: str | tuple[str, str], overflow: Any = None) -> "Text":
    """One line of texts and ``(text, style)``; their control characters and line separators are escapes."""
    from rich.text import Text

    safe = [printable(part) if isinstance(part, str) else (printable(part[0]), part[1]) for part in parts]
    return Text.assemble(*safe, overflow=overflow)


def paragraph(console: "Console", text: str) -> None:
    """Write a text of several lines, none of them broken."""
    for part in text.removesuffix("\n").split("\n"):
        console.out(part, highlight=False)


def lines(console: "Console", pairs: Iterable[tuple[str, object]]) -> None:
    """``name  value`` lines, the values never broken: paths are for copying."""
    pairs = [(printable(name), str(value)) for name, value in pairs]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        console.out(f"  {name:<{width}}  {value}", highlight=False)


def write_verdict(console: "Console", sentence: str, size: str, control: str | None, verdict: "Verdict") -> None:
    """A claim's sentence, its findings as a table, and its verdict."""
    from rich.padding import Padding

    setting = f"size {size}" + (f", under the negative control {control!r}" if control else "")
    console.print(typeset((verdict.claim, "bold"), f"  ({setting})"))
    console.print(Padding(typeset(sentence), (0, 0, 1, 2)))
    if verdict.findings:
        console.print(_findings(verdict.findings))
    outcome = verdict.outcome
    console.print(typeset("  ", (outcome.upper(), STYLES[outcome]), f"  {verdict.counts}"))
    for finding in verdict.findings:
        if finding.advice:
            console.print(Padding(typeset(f"{finding.what}: {finding.advice}"), (0, 0, 0, 2)))
    for note in verdict.notes:
        console.print(Padding(typeset((f"note: {note}", "yellow")), (0, 0, 0, 2)))


def _findings(findings: "Iterable[Finding]") -> Any:
    from rich.padding import Padding
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("finding", ratio=1, overflow="fold")
    for name in ("predicted", "measured ± SE", "tolerance"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for f in findings:
        table.add_row(
            typeset(f.what),
            number(f.predicted),
            with_error(f.measured, f.standard_error),
            number(f.tolerance) if f.standard_error or f.tolerance else "exact",
            typeset((f.outcome.value, STYLES[f.outcome])),
        )
    return Padding(table, (0, 0, 1, 2))
