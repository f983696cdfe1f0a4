"""``icl certify`` and ``icl verify``: a claim's evidence as one file, and whether such a file is true."""

import dataclasses
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from icllab.cli.reports import STYLES, Report, lines, typeset
from icllab.core.errors import InputError, expected
from icllab.core.files import disk_faults, write_atomically
from icllab.lab import certificate, verification
from icllab.lab.evidence import Evidence, evidence_of
from icllab.lab.outcomes import Outcome, worded

if TYPE_CHECKING:
    from rich.console import Console

UNWRITTEN = "no certificate was written"


def certify(claim: str, *, to: Path, size: str | None, out: Path | None, claims: Path | None) -> Report:
    """Write a certificate; return the exit status of its headline."""
    from icllab.page import certificate as pages

    suffix = to.suffix.lower()
    if suffix not in (".html", ".htm", ".json"):
        raise InputError(f"-o: expected a file that ends in .html or .json, got {str(to)!r}")
    evidence = evidence_of(claim, size, out=out, folder=claims)
    content = certificate.certificate(evidence)
    with disk_faults(f"cannot write {to}", UNWRITTEN):
        to.parent.mkdir(parents=True, exist_ok=True)
    files, faults = [to.with_suffix(".json")], []
    if suffix != ".json":
        png, faults = _figure(evidence)
        issued = {**content["issued"], "figure": pages.figure_digest(png)}
        content = certificate.sealed({**content, "issued": issued})
        files.insert(0, to)
        write_atomically(to, pages.html(content, png).encode(), UNWRITTEN)
    write_atomically(files[-1], certificate.as_bytes(content), UNWRITTEN)
    (words, status), notes = certificate.headline(content), [*content["notes"], *faults]
    style = STYLES[content["verdict"] if status != 3 else Outcome.UNDECIDED]

    def plain(console: "Console") -> None:
        texts = (f"{claim}  ", (words, style), f"  {worded(content['counts'])}")
        console.print(typeset(*texts), soft_wrap=True)
        lines(console, [*[("certificate", file) for file in files], *[("note", note) for note in notes]])

    data = {name: content[name] for name in ("claim", "size", "origin", "verdict", "counts", "digest")}
    return Report({**data, "headline": words, "files": files, "notes": notes}, plain, status)


def _figure(evidence: Evidence) -> tuple[bytes | None, list[str]]:
    """The figure of the data; a certificate needs none, but a note says why there is none."""
    from icllab.figures import png_bytes
    from icllab.lab.drawing import picture

    try:
        return png_bytes(picture(evidence.claim, evidence.predicted())), []
    except Exception as error:  # whatever a claim's figure raises
        return None, [f"no figure: it raised {type(error).__name__}: {error}"]


def verify(file: Path, *, rerun: str | None, key: int | None, out: Path, claims: Path | None) -> Report:
    """Verify a certificate: one line names the parts that agree, differ, and could not be checked."""
    fraction = None if rerun is None else _fraction(rerun)
    if key is not None and fraction is None:
        raise InputError("--key: expected with --rerun, whose sample of cells it draws; got it alone")
    if fraction is not None and key is None:
        key = secrets.randbits(32)
    result = verification.verify(file, out=out, folder=claims, fraction=fraction, key=key)
    result = _with_page(result, file)
    cells = result.rerun

    def plain(console: "Console") -> None:
        console.out(f"{result.claim}  {result.line}", highlight=False)
        rows = [("differs", text) for text in result.differs[1:]]
        if cells is not None:
            rows += [("key", cells.key), *[("cell", cell) for cell in cells.cells]]
            rows += [("moved", text) for text in cells.moved]
        lines(console, rows)

    data = {name: getattr(result, name) for name in ("claim", "headline", "verdict", "agrees", "differs", "unchecked")}
    sample = (
        None if cells is None else {"key": cells.key, "cells": cells.cells, "of": cells.total, "moved": cells.moved}
    )
    return Report({**data, "rerun": sample, "line": result.line}, plain, result.exit_status)


def _fraction(text: str) -> float:
    """``5%`` or ``0.05`` as a number."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise expected("--rerun", "a part of the cells above 0 and at most 100%", text, "such as 5%")
    return value


def _with_page(result: verification.Verification, file: Path) -> verification.Verification:
    """The same with what the page beside the file shows; one of another version of the library is set otherwise."""
    from icllab.page import certificate as pages

    page = file.with_suffix(".html")
    if not page.is_file():
        return result
    content = certificate.read(file)
    if verification.foreign(content):
        return dataclasses.replace(result, unchecked=(*result.unchecked, f"{page.name} (of another version)"))
    with disk_faults(f"cannot read {page}", "nothing was changed"):
        text = page.read_bytes().decode("utf-8", "replace")
    if pages.is_of(text, content):
        return dataclasses.replace(result, agrees=(*result.agrees, page.name))
    return dataclasses.replace(result, differs=(*result.differs, f"{page.name} shows other content than {file.name}"))
