"""Verify a certificate: compute it again from the data that it names, and compare.

An edit of the file shows in its digest. An edit under a new digest shows where the content is computed again. What
nobody can compute again, such as the date, is compared with what the record or the results state, and is listed as not
checked: who can edit both can state what they like.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import icllab
from icllab.core.errors import CellsMissing, IclError, InputError, expected
from icllab.core.files import DamagedFile
from icllab.lab import certificate, provenance, source_files
from icllab.lab.evidence import Evidence, Place, differences, evidence_of, worded
from icllab.lab.job import OUT
from icllab.lab.rerun import Rerun, rerun

_WORDS = {
    ("statement",): "sentence and conditions",
    ("verdict",): "verdict",
    ("findings",): "{} findings",
    ("controls",): "{} controls",
    ("power",): "power",
    ("design",): "key, seeds and settings",
    ("digests", "data"): "digests of data ({})",
    ("digests", "sources"): "digests of sources ({})",
    ("checklists",): "checklists",
}
"""Names of the parts of a certificate that are computed again, with the number of their entries."""


@dataclass(frozen=True)
class Verification:
    """Comparison of a certificate with the data that it names.

    Attributes:
        claim: The claim that the certificate names.
        verdict: The verdict that was computed again; None where it could not be.
        agrees: What agrees, in a few words each.
        differs: What differs, each with what is stated and what was computed.
        unchecked: What could not be checked.
        rerun: The cells that were measured again; None where none were.
        fault: 4 or 3 where cells could not be measured again, 3 where they cannot be told from the data; else 0.
        headline: The verdict with what a reader must know beside it, where there is anything; else empty.
        status: The exit status of the verdict, 3 where it has no evidence.
    """

    claim: str
    verdict: str | None
    agrees: tuple[str, ...]
    differs: tuple[str, ...]
    unchecked: tuple[str, ...]
    rerun: Rerun | None = None
    fault: int = 0
    headline: str = ""
    status: int = 0

    @property
    def exit_status(self) -> int:
        """1 if anything differs; 4 or 3 if a step failed; else the exit status of the verdict."""
        if self.differs:
            return 1
        return self.fault or (3 if self.verdict is None else self.status)

    @property
    def line(self) -> str:
        """The result in one line, which begins with the reason of the exit status."""
        differs = f"{self.differs[0]}{_more(len(self.differs) - 1)}" if self.differs else "nothing"
        parts = ["agrees: " + (", ".join(self.agrees) or "nothing"), f"differs: {differs}"]
        parts.append("not checked: " + (", ".join(self.unchecked) or "nothing"))
        first = 2 if self.verdict is None or (self.fault and not self.differs) else 1 if self.differs else 0
        return "; ".join(filter(None, [self.headline, parts.pop(first), *parts]))


def _more(count: int) -> str:
    return f" and {count} more" if count else ""


def verify(
    path: Path,
    *,
    out: str | Path = OUT,
    folder: str | Path | None = None,
    fraction: float | None = None,
    key: int | None = None,
) -> Verification:
    """Compute a certificate again and compare.

    Args:
        path: Its JSON file.
        out: Where results are kept, for a certificate of results.
        folder: A folder with the user's claims.
        fraction: Part of the cells that are measured again; None: none.
        key: Key of the sample of these cells.

    Raises:
        InputError: The file is no certificate; or it is whole, and its claim or size is not known here.
    """
    stated = certificate.read(path)
    sound = stated["digest"] == certificate.content_digest(stated)
    agrees = ["its digest"] if sound else []
    differs = [] if sound else ["the digest of the file is not that of its content: it was edited"]
    try:
        evidence = _evidence(stated, out, folder)
        content = certificate.assemble(evidence)
    except DamagedFile as error:
        return Verification(stated["claim"], None, tuple(agrees), (*differs, f"data: {error}"), ("all else",))
    except (InputError, CellsMissing) as error:
        if isinstance(error, InputError) and sound:
            raise
        return Verification(stated["claim"], None, tuple(agrees), tuple(differs), (f"all else ({error})",))
    headline, status = certificate.headline(content)
    stated, computed = certificate.as_stated(stated, content)
    every, pairs = list(differences(stated, computed)), source_files.moved()
    changes = [c for c in every if c[0][:2] != ("digests", "sources") or [*c[1:]] != pairs.get(c[0][-1])]
    if moved := len(every) - len(changes):
        agrees.append(f"{moved} sources that moved into a book, but for imports, docstrings and spelling")
    stale = [value for at, value, _ in changes if at == ("design", "measure") and value != evidence.claim.version]
    if stale and "stale" not in headline:
        headline += f"; stale: of version {stale[0]} of the claim's measure, which is {evidence.claim.version} now"
    other_version = foreign(stated)
    checked = [change for change in changes if not (other_version and change[0][0] == "checklists")]
    differs += [*content["faults"], *(worded(*change) for change in checked)]
    agrees += _agreeing(changes, computed)
    unchecked, fault, cells = _unchecked(changes, evidence.origin, other_version), 0, None
    if fraction is not None:
        try:
            cells = rerun(evidence, fraction, key or 0)
        except IclError as error:
            unchecked.append(f"cells measured again ({error})")
            fault = 4 if error.exit_status == 4 else 3
        else:
            differs += cells.differs
            unchecked += [f"cannot be told from rounding: {text}" for text in cells.moved]
            fault = 3 if cells.moved else 0
            if not cells.differs:
                (unchecked if cells.worst or cells.moved else agrees).append(_cells(cells))
    headline = headline if headline != content["verdict"] else ""
    ends = (tuple(agrees), tuple(differs), tuple(unchecked))
    return Verification(evidence.name, computed["verdict"], *ends, cells, fault, headline, status)


def _evidence(stated: Mapping[str, Any], out: str | Path, folder: str | Path | None) -> Evidence:
    """The data that a certificate names; version 0.3 called a record without data ``entry``."""
    if stated["origin"] not in ("record", "entry", "results"):
        raise expected("origin", "record or results", stated["origin"])
    place = out if stated["origin"] == "results" else None
    return evidence_of(stated["claim"], stated["size"], out=place, folder=folder)


def _agreeing(changes: list[tuple[Place, Any, Any]], computed: Mapping[str, Any]) -> list[str]:
    """Names of the parts in which nothing differs."""
    words = []
    for part, text in _WORDS.items():
        value: Any = computed
        for name in part:
            value = value[name]
        if value and not any(at[: len(part)] == part for at, _, _ in changes):
            words.append(text.format(len(value)))
    return words


def _unchecked(changes: list[tuple[Place, Any, Any]], origin: str, other_version: str) -> list[str]:
    """List the parts that cannot be computed again, and say whether the data state the same."""
    words = [f"machine, hours, date, commit and versions of the measurement (the {origin} states the same)"]
    if any(at[0] == "measurement" for at, _, _ in changes):
        words = ["machine, hours, date, commit and versions of the measurement"]
    words.append("who issued it and when")
    if other_version:
        words.append(other_version)
    return words


def foreign(stated: Mapping[str, Any]) -> str:
    """A remark if another version of the library issued the certificate; else empty."""
    issuer = stated.get("issued")
    issuer = issuer if isinstance(issuer, Mapping) else {}
    installed = {"package": icllab.__version__, "commit": provenance.commit()}
    if all(issuer.get(name) == value for name, value in installed.items()):
        return ""
    texts = [f"icl-lab {by.get('package')} {by.get('commit')}".strip() for by in (issuer, installed)]
    return f"words of its checklists (of {texts[0]}; this is {texts[1]})"


def _cells(cells: Rerun) -> str:
    """Describe the rerun, with the largest gap if rounding elsewhere may explain it."""
    text = f"{len(cells.cells)} of {cells.total} cells measured again ({cells.numbers} numbers"
    if cells.worst or cells.moved:
        where = f", that of {cells.worst}, on another machine" if cells.worst else ""
        return f"gaps of up to {cells.largest:.1g} of the scale{where}: {text})"
    return f"{text}, all within {cells.largest:.1g} of their scale)"
