"""The recorded power of statistics that decide claims: counts of verdicts along planted families.

``bench/power.py`` measures them; a book has them in its folder ``power``.
"""

import functools
from collections.abc import Container, Mapping
from typing import Any

from icllab.core.files import read_object
from icllab.lab import registry

_FIELDS = ("caption", "claims", "statistic", "axis", "strengths", "false", "replicates", "verdicts")


@functools.cache
def tables() -> dict[str, dict[str, Any]]:
    """Map each planted family to its record; empty if no book has families."""
    paths = [path for folder in registry.beside("power") for path in sorted(folder.glob("*.json"))]
    records = {path.stem: read_object(path, "install the book again") for path in paths}
    return {name: {field: record[field] for field in _FIELDS} for name, record in records.items()}


def power_of(claim: str, stated: Container[str] = ()) -> dict[str, dict[str, Any]]:
    """Families whose record names a claim; ``claims_check`` marks families planted into the claim's own check.

    Args:
        claim: ``subject/finding``.
        stated: Names of families of shared statistics that a certificate of version 0.3 has besides.
    """
    module = f".claims.{claim.replace('/', '.')}."
    families = {}
    for name, record in tables().items():
        shared = ".claims." not in record["statistic"]
        if claim in record["claims"] or (shared and name in stated):
            fields = {field: value for field, value in record.items() if field != "claims"}
            families[name] = {"claims_check": module in record["statistic"], **fields}
    return families


def false_alarms(record: Mapping[str, Any]) -> tuple[int, int]:
    """Largest number of replicates with a false verdict at an end of a family, and the number of replicates."""
    strengths, verdicts = record["strengths"], record["verdicts"]
    counts = [
        sum(verdicts[verdict][strengths.index(float(end))] for verdict in false if verdict in verdicts)
        for end, false in record["false"].items()
    ]
    return max(counts, default=0), record["replicates"]
