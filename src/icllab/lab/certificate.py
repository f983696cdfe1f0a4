"""A certificate: statement, findings, controls, data and sources of a claim, as plain values with a digest.

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
from icllab.core.errors import InputError, expected
from icllab.core.files import disk_faults, parse_json
from icllab.core.spelling import strict
from icllab.lab import checklists, conformance, power, provenance, records, registry, source_files
from icllab.lab.claim import completed
from icllab.lab.evidence import NUMBERS, Evidence, name_of, unfalsified
from icllab.lab.outcomes import Outcome, counts

SCHEMA = "icl-certificate/2"
OLDER = "icl-certificate/1"
"""The schema of version 0.3."""
SHARED = "no shared code"
LARGEST = 20_000_000
"""Bytes of a certificate that is read."""


def certificate(evidence: Evidence) -> dict[str, Any]:
    """The certificate of a claim's evidence, with its digest; findings have six digits, as in a record."""
    content = assemble(evidence)
    findings = {id: row | {n: records.rounded(row[n]) for n in NUMBERS} for id, row in content["findings"].items()}
    return sealed(content | {"findings": findings, "issued": issued()})


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content as plain values, with its digest."""
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


def assemble(evidence: Evidence) -> dict[str, Any]:
    """Compute every section from the data and the sources on this machine, without rounding."""
    claim, files = evidence.claim, source_files.source_files(evidence.name, evidence.folder)
    elsewhere = registry.book(registry.file(evidence.name, evidence.folder)) is None
    content = {
        "schema": SCHEMA,
        "claim": evidence.name,
        "size": evidence.size,
        "origin": evidence.origin,
        "statement": {
            "title": claim.title,
            "sentence": claim.sentence,
            "conditions": claim.conditions,
            "sources": {key: claim.reference(key).text for key in claim.sources},
        },
        "verdict": evidence.verdicts[None].outcome.value,
        "counts": counts(evidence.findings.values()),
        "notes": evidence.notes,
        "faults": evidence.faults(),
        "conformance": _conformance(evidence) if elsewhere else None,
        "findings": evidence.findings,
        "controls": evidence.controls,
        "power": power.power_of(evidence.name),
        "design": evidence.design(),
        "measurement": evidence.measurement(),
        "digests": {"data": evidence.digests(), "sources": source_files.digests(files)},
    }
    return {**content, "checklists": checklists.answers(content)}


def _conformance(evidence: Evidence) -> dict[str, str]:
    """Map each item of ``icl claim conform`` that runs nothing to its fault, or an empty text."""
    path = registry.file(evidence.name, evidence.folder)
    if path.name != "claim.py":  # one file for theory and measurement: it can have no items
        return {}
    folder, items = path.parent, conformance.STATIC | (conformance.RECORDED if evidence.out is None else {})
    texts = conformance.answers(items, evidence.claim, folder)
    return {n: text.replace(shlex.quote(str(folder)), "DIR").replace(str(folder), "DIR") for n, text in texts.items()}


def headline(content: Mapping[str, Any]) -> tuple[str, int]:
    """The verdict with remarks, and the exit status, 3 for a verdict without evidence."""
    verdict, status = content["verdict"], Outcome(content["verdict"]).exit_status
    outcomes = [control["verdict"] for control in content["controls"].values() if control["verdict"] is not None]
    names = {name_of(id) for id, row in content["findings"].items() if row["about"] == "claim"}
    untouched = unfalsified(content["findings"])
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
    """Date, versions and commit of the issuer: this installation."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "package": icllab.__version__,
        "commit": provenance.commit(),
        "python": platform.python_version(),
    }


def read(path: Path) -> dict[str, Any]:
    """Read the file of a certificate strictly; ``verify`` tells whether the content is true.

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
