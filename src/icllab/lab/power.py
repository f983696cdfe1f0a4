"""The recorded power of statistics that decide claims: counts of verdicts along planted families.

``bench/power.py`` measures them; a book has them in its folder ``power``.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from icllab.core.files import read_object
from icllab.lab import registry

_FIELDS = ("caption", "statistic", "axis", "strengths", "false", "replicates", "verdicts")


@functools.cache
def tables() -> dict[str, dict[str, Any]]:
    """Name -> record of a planted family; empty where no book has any."""
    paths = [path for folder in registry.beside("power") for path in sorted(folder.glob("*.json"))]
    records = {path.stem: read_object(path, "install the book again") for path in paths}
    return {name: {field: record[field] for field in _FIELDS} for name, record in records.items()}


def power_of(claim: str, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Families of a claim's own check, and of the shared statistics among ``names``; ``claims_check`` tells which.

    A name may be the place from which a subpackage exports the statistic: ``icllab.diagnostics.transitions``.
    """
    module = f"iclbook.claims.{claim.replace('/', '.')}."
    exports = [name.rpartition(".") for name in names]
    families = {}
    for name, record in tables().items():
        statistic = record["statistic"]
        claims_check = statistic.startswith(module)
        shared = not statistic.startswith("iclbook.claims.") and any(
            statistic.startswith(f"{package}.") and statistic.endswith(f".{last}") for package, _, last in exports
        )
        if claims_check or shared:
            families[name] = {"claims_check": claims_check, **record}
    return families


def false_alarms(record: Mapping[str, Any]) -> tuple[int, int]:
    """Largest number of replicates at an end of a family with a verdict that is false there, and replicates."""
    strengths, verdicts = record["strengths"], record["verdicts"]
    counts = [
        sum(verdicts[verdict][strengths.index(float(end))] for verdict in false if verdict in verdicts)
        for end, false in record["false"].items()
    ]
    return max(counts, default=0), record["replicates"]
