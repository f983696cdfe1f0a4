"""``icl page`` and ``icl report``: claims to look at, in a browser or in one file."""

import os
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from icllab.cli.reports import STYLES, Report, lines, typeset, worst
from icllab.core.errors import EnvironmentFault, InputError, install_command
from icllab.core.files import disk_faults, write_atomically
from icllab.lab import records, registry

if TYPE_CHECKING:
    from rich.console import Console


def page(
    out: Path, *, claims: Path | None, port: int | None, host: str, token: bool, browser: bool, proxy: str = ""
) -> Report:
    """Serve until Ctrl-C; the address is said on stderr as soon as it answers."""
    if port is not None and not 0 <= port < 2**16:
        raise InputError(f"--port: expected a number from 0 to 65535, got {port}")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: expected a directory of results, got {str(out)!r}, which is none")
    registry.claims(claims)
    try:
        from icllab.page import server
    except ModuleNotFoundError as error:
        raise EnvironmentFault(
            f"icl page: expected the extra [page], {error.name} is not installed; {install_command('page')}"
        ) from None

    def opened(address: str) -> None:
        print(f"icl: the page is at {address} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        if browser and sys.stderr.isatty() and _has_display():
            webbrowser.open(address)

    address = server.serve(out, claims=claims, host=host, port=port, require_token=token, proxy=proxy, on_ready=opened)
    return Report({"address": address}, lambda console: lines(console, [("page", f"{address} has ended")]))


def _has_display() -> bool:
    """True if a browser opens its own window; a browser in the terminal would take it over."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def report(names: Sequence[str], *, to: Path, out: Path, claims: Path | None) -> Report:
    """Write the report; its exit status is the worst of the verdicts in it, 3 for a claim without one."""
    from icllab.lab.outcomes import Outcome, counts, worded
    from icllab.page import report as reports

    if not names:
        raise InputError("icl report: expected at least one claim, got none; `icl list` names them")
    for name in names:
        if not registry.is_foreign(name, claims):
            registry.load(name, claims)
    if to.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"-o: expected a file that ends in .html, got {str(to)!r}")
    sections = [reports.section(name, out, claims) for name in dict.fromkeys(names)]
    stems = [f"{to.stem}-{part.card.claim.replace('/', '-')}.pdf" if part.pdf else None for part in sections]
    text = reports.html(sections, stems).encode()
    with disk_faults(f"cannot write {to}", "the results are kept"):
        to.parent.mkdir(parents=True, exist_ok=True)
    for part, stem in zip(sections, stems, strict=True):
        if part.pdf is not None and stem is not None:
            write_atomically(to.with_name(stem), part.pdf, "the results are kept")
    write_atomically(to, text, "the results are kept")
    verdicts = {part.card.claim: part.standing.verdict if part.standing else None for part in sections}
    absent = {p.card.claim: records.NOT_RECORDED if p.card.record else "not yet run" for p in sections}
    tallies = {part.card.claim: counts(part.standing.findings if part.standing else ()) for part in sections}
    faults = [evidence.fault for part in sections for evidence in part.runs if evidence.fault]
    statuses = [Outcome(verdict or "undecided").exit_status for verdict in verdicts.values()] + [4] * bool(faults)
    figures = [to.with_name(stem) for stem in stems if stem]

    def plain(console: "Console") -> None:
        for claim, verdict in verdicts.items():
            verdict_text = (verdict or absent[claim], STYLES.get(verdict or "", "dim"))
            numbers = f"  {worded(tallies[claim])}" if verdict else ""
            console.print(typeset(f"{claim}  ", verdict_text, numbers), soft_wrap=True)
        lines(console, [("report", to), *[("figure", figure) for figure in figures]])
        lines(console, [("fault", fault) for fault in faults])

    data = {"report": to, "figures": figures, "verdicts": verdicts, "counts": tallies, "faults": faults}
    return Report(data, plain, worst(statuses))
