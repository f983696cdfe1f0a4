"""The file ``verdict.json`` beside results: the verdict that was given on them, and whether it still is one."""

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
    return {**verdict.as_dict(), "sentence": request.claim().sentence, **about, "results": request.root}


def note_verdict(request: Request, verdict: Verdict) -> None:
    """Keep a verdict beside the results that it is about."""
    entry = {**judgement(request, verdict), "measure": request.claim().version}
    write_atomically(request.root / "verdict.json", (json.dumps(strict(entry), indent=1) + "\n").encode())


def noted_verdict(root: Path) -> dict[str, Any] | None:
    """The verdict that is kept beside results, as :func:`kept_verdict` reads it; None where there is none."""
    path = root / "verdict.json"
    if not path.is_file():
        return None
    entry = read_object(path, "`icl run` writes it again")
    try:
        return entry | {"verdict": kept_verdict(entry)}
    except (LookupError, TypeError, ValueError, AttributeError):
        raise DamagedFile(f"{path}: expected a verdict with its findings; `icl run` writes it again") from None


def kept_verdict(entry: Mapping[str, Any]) -> str | None:
    """The verdict of a ``verdict.json``, by its findings and not by the word of the version that wrote it.

    None at ``smoke``, which earlier versions judged, and where the file has no verdict.
    """
    if entry.get("size") == SIZES[0] or entry.get("verdict") not in list(Outcome):
        return None
    return worst(Outcome(row["outcome"]) for row in entry.get("findings", ())).value
