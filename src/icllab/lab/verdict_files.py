"""The file ``verdict.json`` beside results: write a verdict, and read it back."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from icllab.core.files import DamagedFile, read_object, write_atomically
from icllab.core.spelling import strict
from icllab.lab.checks import Verdict
from icllab.lab.claim import SIZES
from icllab.lab.job import Request
from icllab.lab.outcomes import Outcome, worst


def judgement(request: Request, verdict: Verdict) -> dict[str, Any]:
    """A verdict as data, with the sentence, the size and the directory of the results."""
    about = {name: getattr(request, name) for name in ("size", "control")}
    about |= {} if request.network is None else {"network": request.network.name}
    return {**verdict.as_dict(), "sentence": request.claim().sentence, **about, "results": request.root}


def note_verdict(request: Request, verdict: Verdict) -> None:
    """Write a verdict beside its results."""
    entry = {**judgement(request, verdict), "measure": request.claim().version}
    write_atomically(request.root / "verdict.json", (json.dumps(strict(entry), indent=1) + "\n").encode())


def noted_verdict(root: Path) -> dict[str, Any] | None:
    """The verdict beside results, by :func:`kept_verdict`; None without a file."""
    path = root / "verdict.json"
    if not path.is_file():
        return None
    entry = read_object(path, "`icl run` writes it again")
    try:
        return entry | {"verdict": kept_verdict(entry)}
    except (LookupError, TypeError, ValueError, AttributeError):
        raise DamagedFile(f"{path}: expected a verdict with its findings; `icl run` writes it again") from None


def kept_verdict(entry: Mapping[str, Any]) -> str | None:
    """The verdict of a ``verdict.json``, computed from its findings: older versions chose other words.

    None at ``smoke``, which earlier versions judged, and where the file has no verdict.
    """
    if entry.get("size") == SIZES[0] or entry.get("verdict") not in list(Outcome):
        return None
    return worst(Outcome(row["outcome"]) for row in entry.get("findings", ())).value
