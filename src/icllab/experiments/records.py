"""What the last recorded runs of a claim found: a ``record.json`` beside the claim, one entry a size.

An entry has the verdict and its findings, the command, the commit, the versions and the machine of the run, the digest
of what was measured, and the verdict under every negative control that was run at that size.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icllab.core.errors import expected
from icllab.core.files import disk_faults, write_atomically
from icllab.experiments import registry
from icllab.experiments.requests import Request

if TYPE_CHECKING:
    import xarray as xr

    from icllab.experiments.checks import Finding, Verdict

_DIGITS = 6
_ORIGIN = {"commit": "git_commit", "created": "created", "version": "package_version", "jax": "jax_version"}


def path_of(claim: Path) -> Path:
    """Where the record of a claim's file is."""
    return claim.with_name("record.json" if claim.name == "claim.py" else f"{claim.stem}.record.json")


def read(claim: str, folder: str | Path | None = None) -> dict[str, Any]:
    """Size -> entry; empty where nothing was recorded."""
    path = path_of(registry.claims(folder)[claim])
    if not path.is_file():
        return {}
    with disk_faults(f"cannot read {path}"):
        return json.loads(path.read_text("utf-8"))


def is_stale(claim: str, entry: Mapping[str, Any], folder: str | Path | None = None) -> bool:
    """Whether what the entry's results depend on has changed since."""
    return entry["digest"] != registry.digest(claim, folder)


def write(request: Request, dataset: "xr.Dataset", verdict: "Verdict") -> Path:
    """Note a verdict on complete results; that under a control goes to the entry of its size."""
    path = path_of(registry.claims(request.claims)[request.claim])
    own = registry.load(request.claim, request.claims).precision
    if dataset.attrs.get("precision", own) != own:
        raise expected("record", f"results in {own}, the claim's own precision", dataset.attrs["precision"])
    record = read(request.claim, request.claims)
    if request.control is None:
        kept = record.get(request.size, {}).get("controls", {})
        record[request.size] = {
            "verdict": verdict.outcome.value,
            "command": f"icl run {request.claim} --size {request.size}",
            **{name: dataset.attrs[attribute] for name, attribute in _ORIGIN.items()},
            "machine": f"{dataset.attrs['device']}, {dataset.attrs['machine']}",
            "seconds": round(float(dataset.attrs["seconds"]), 1),
            "digest": dataset.attrs["sources_digest"],
            "findings": [_plain(finding) for finding in verdict.findings],
            "controls": kept,
        }
    else:
        if request.size not in record:
            raise expected("record", f"the claim at size {request.size} before its controls", request.control)
        failing = [finding.id for finding in verdict.findings if finding.outcome == "fails"]
        found = {"verdict": verdict.outcome.value, "commit": dataset.attrs["git_commit"], "fails": failing}
        record[request.size]["controls"][request.control] = found
    write_atomically(path, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    return path


def _plain(finding: "Finding") -> dict[str, Any]:
    numbers = ("predicted", "measured", "standard_error", "tolerance")
    rounded = {name: _rounded(getattr(finding, name)) for name in numbers}
    return {"id": finding.id, "what": finding.what, **rounded, "outcome": finding.outcome.value, "about": finding.about}


def _rounded(value: float) -> float | str:
    return float(f"{value:.{_DIGITS}g}") if abs(value) < float("inf") else str(value)
