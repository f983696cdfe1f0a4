"""A certificate: what a claim says, what was measured, and on what that rests, as plain data with a digest.

``assemble`` computes every number from data that are there; :mod:`icllab.lab.verification` does so again and compares.
Sections, in order: the claim and its verdict (``statement``, ``verdict``), what contradicts it (``faults``, and of a
claim from elsewhere ``conformance``), every finding, every control and the
findings that it falsifies, power, the grid with key and seeds, origin and cost of the measurement, digests of data and
sources, the answers to checklists, and who issued it.
"""

import datetime
import hashlib
import json
import platform
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import icllab
from icllab.core.errors import IclError, InputError, expected
from icllab.core.files import disk_faults, parse_json
from icllab.core.spelling import strict
from icllab.lab import checklists, conformance, evidence, power, provenance, records, registry, source_files
from icllab.lab.basis import Basis
from icllab.lab.claim import completed
from icllab.lab.evidence import NUMBERS, name_of
from icllab.lab.outcomes import Outcome, counts

SCHEMA = "icl-certificate/2"
OLDER = "icl-certificate/1"
"""The schema of version 0.3."""
SHARED = "no shared code"
LARGEST = 20_000_000
"""Bytes of a certificate that is read."""


def certificate(basis: Basis) -> dict[str, Any]:
    """The certificate of data, with its digest; numbers of findings have six digits, as in a record."""
    content = assemble(basis)
    findings = {id: row | {n: records.rounded(row[n]) for n in NUMBERS} for id, row in content["findings"].items()}
    return sealed(content | {"findings": findings, "issued": issued()})


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Plain content with the digest of all that it says."""
    plain = {name: value for name, value in strict(content).items() if name != "digest"}
    return {**plain, "digest": content_digest(plain)}


def content_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content but its ``digest``: names sorted, numbers in their shortest spelling, no spaces."""
    plain = {name: value for name, value in content.items() if name != "digest"}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def as_bytes(content: Mapping[str, Any]) -> bytes:
    """The JSON file of a certificate."""
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def assemble(basis: Basis) -> dict[str, Any]:
    """All that can be computed from the data and the sources that are here; numbers unrounded."""
    claim, files = basis.claim, source_files.source_files(basis.name, basis.folder)
    grounds = evidence.from_entry(basis) if basis.origin == "entry" else evidence.from_data(basis)
    content = {
        "schema": SCHEMA,
        "claim": basis.name,
        "size": basis.size,
        "origin": basis.origin,
        "statement": {
            "title": claim.title,
            "sentence": claim.sentence,
            "conditions": claim.conditions,
            "sources": {key: claim.reference(key).text for key in claim.sources},
        },
        "verdict": grounds.verdict,
        "counts": counts(grounds.findings.values()),
        "notes": grounds.notes,
        "faults": grounds.faults,
        "conformance": _conformance(basis) if basis.elsewhere else None,
        "findings": grounds.findings,
        "controls": grounds.controls,
        "power": power.power_of(basis.name),
        "design": grounds.design,
        "measurement": grounds.measurement,
        "digests": {"data": grounds.data, "sources": source_files.digests(files)},
    }
    return {**content, "checklists": checklists.answers(content)}


def _conformance(basis: Basis) -> dict[str, str]:
    """Map each item of ``icl claim conform`` that runs nothing to its fault, or an empty text."""
    path, answers = registry.file(basis.name, basis.folder), {}
    if path.name != "claim.py":  # one file for theory and measurement: it can have no items
        return {}
    folder = path.parent
    for item, faults in (conformance.STATIC | (conformance.RECORDED if basis.origin == "record" else {})).items():
        try:
            text = "; ".join(faults(basis.claim, folder))
        except IclError as error:
            text = str(error)
        answers[item] = text.replace(shlex.quote(str(folder)), "DIR").replace(str(folder), "DIR")
    return answers


def headline(content: Mapping[str, Any]) -> tuple[str, int]:
    """The verdict with remarks, and the exit status, 3 for a verdict without evidence."""
    verdict, status = content["verdict"], Outcome(content["verdict"]).exit_status
    outcomes = [control["verdict"] for control in content["controls"].values() if control["verdict"] is not None]
    falsified = {id: row["falsified_by"] for id, row in content["findings"].items() if row["about"] == "claim"}
    names = {name_of(id) for id in falsified}
    untouched = names - {name_of(id) for id, controls in falsified.items() if controls}
    shared = (content["conformance"] or {}).get(SHARED)
    remarks = [note for note in content["notes"] if note.startswith("stale")]
    if content["verdict"] == Outcome.HOLDS:
        if "holds" in outcomes and "fails" not in outcomes:
            controls = "does its control" if len(outcomes) == 1 else "do its controls"
            verdict, status = f"{verdict}, and so {controls}: no evidence", 3
        if shared:
            verdict, status = f"{verdict}, but {shared}: no evidence", 3
    if untouched:
        remarks.append(f"no control falsifies {'it' if untouched == names else ', '.join(sorted(untouched))}")
    return "; ".join([verdict, *remarks, *content["faults"]]), 1 if content["faults"] else status


def as_stated(content: Mapping[str, Any], computed: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fit the computed content to the schema of a certificate.

    In one of version 0.3 a control falsifies every finding whose name fails under it, and a claim from elsewhere has
    the power of the shared statistics that its files imported.
    """
    settings = {name: value for name, value in completed({}).items() if name in ("generator", "matmul_precision")}
    if isinstance(design := content.get("design"), Mapping):
        content = {**content, "design": {**settings, **design}}
    if content["schema"] == SCHEMA:
        return dict(content), computed
    falsified = {name: set(map(name_of, control["falsifies"])) for name, control in computed["controls"].items()}
    findings = {
        id: row | {"falsified_by": [name for name, names in falsified.items() if name_of(id) in names]}
        for id, row in computed["findings"].items()
    }
    older = {name: value for name, value in computed.items() if name not in ("faults", "conformance")}
    if computed["conformance"] is not None and isinstance(families := content.get("power"), Mapping):
        older["power"] = power.power_of(computed["claim"], families)
    return dict(content), older | {"schema": OLDER, "findings": findings}


def issued() -> dict[str, Any]:
    """Who issues a certificate: this installation, now."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "package": icllab.__version__,
        "commit": provenance.commit(),
        "python": platform.python_version(),
    }


def read(path: Path) -> dict[str, Any]:
    """A certificate from its file, read strictly; whether its content is true is for ``verify``.

    Raises:
        InputError: The file is no certificate of this schema.
    """
    with disk_faults(f"cannot read {path}", "nothing was changed"):
        if not path.is_file():
            raise InputError(f"{path}: expected a certificate, got {'a folder' if path.is_dir() else 'no file'}")
        size = path.stat().st_size
        if size > LARGEST:
            raise InputError(f"{path}: expected a certificate of at most {LARGEST} bytes, got {size}")
        text = path.read_bytes()
    try:
        content = parse_json(text)
        if isinstance(content, dict):
            content_digest(content)  # which NaN has not, nor a number such as 1e999
    except ValueError as error:
        raise InputError(f"{path}: expected strict JSON, got other text ({error})") from None
    if not isinstance(content, dict) or content.get("schema") not in (SCHEMA, OLDER):
        schema = content.get("schema") if isinstance(content, dict) else type(content).__name__
        raise expected(str(path), f"a certificate of schema {SCHEMA!r}", schema, "`icl certify CLAIM` writes one")
    for name, kind in (("claim", str), ("size", str), ("origin", str), ("digest", str)):
        if not isinstance(content.get(name), kind):
            raise expected(f"{path}: {name}", "text", content.get(name))
    return content
