"""The recorded power of statistics that decide claims: counts of verdicts along planted families.

``bench/power.py`` measures them; a checkout has them in ``docs/power/``, a wheel installs them as data.
"""

import functools
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import icllab
from icllab.core.files import read_object

_FOLDERS = (
    Path(icllab.__file__).parents[2] / "docs" / "power",
    Path(sysconfig.get_path("data")) / "share" / "icl-lab" / "power",
)
_FIELDS = ("caption", "statistic", "axis", "strengths", "false", "replicates", "verdicts")


@functools.cache
def tables() -> dict[str, dict[str, Any]]:
    """Name -> record of a planted family; empty where none came with the package."""
    folder = next((path for path in _FOLDERS if path.is_dir()), None)
    if folder is None:
        return {}
    records = {path.stem: read_object(path, "install icl-lab again") for path in sorted(folder.glob("*.json"))}
    return {name: {field: record[field] for field in _FIELDS} for name, record in records.items()}


def power_of(claim: str, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Families of a claim's own check, and of the shared statistics among ``names``; ``claims_check`` tells which.

    A name may be the place from which a subpackage exports the statistic: ``icllab.diagnostics.transitions``.
    """
    module = f"icllab.claims.{claim.replace('/', '.')}."
    exports = [name.rpartition(".") for name in names]
    families = {}
    for name, record in tables().items():
        statistic = record["statistic"]
        claims_check = statistic.startswith(module)
        shared = not statistic.startswith("icllab.claims.") and any(
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
