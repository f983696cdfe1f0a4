"""What is shown of a claim wherever it is shown: what it says, and what its records found."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icllab.core.sources import Reference
from icllab.experiments import records, registry
from icllab.experiments.experiment import SIZES


@dataclass(frozen=True)
class Card:
    """A claim and its records.

    Attributes:
        claim: ``subject/finding``; ``sentence``, ``conditions``, ``sources`` and ``sizes`` are the experiment's.
        controls: Name of a negative control -> what is otherwise in it.
        record: Size -> entry of the claim's record, from the smallest size on. Its ``"stale"`` says whether what the
            entry depends on has changed since.
    """

    claim: str
    sentence: str
    conditions: str
    sources: tuple[Reference, ...]
    sizes: tuple[str, ...]
    controls: Mapping[str, str]
    record: Mapping[str, Mapping[str, Any]]

    @property
    def subject(self) -> str:
        """The first part of the name."""
        return self.claim.split("/")[0]

    @property
    def ordinary(self) -> str:
        """The size that is run where none is named: ``small``, or the first above ``smoke`` of a claim without it."""
        return next((size for size in self.sizes if size != SIZES[0]), self.sizes[0])

    @property
    def recorded(self) -> str | None:
        """The largest size with a record."""
        return list(self.record)[-1] if self.record else None

    @property
    def verdict(self) -> str | None:
        """The verdict at that size."""
        return self.record[self.recorded]["verdict"] if self.recorded else None

    @property
    def stale(self) -> bool:
        """Whether the record at that size is stale."""
        return bool(self.recorded and self.record[self.recorded]["stale"])


def card(claim: str, folder: str | Path | None = None) -> Card:
    """The card of a built-in claim, or of one in the user's ``folder``."""
    experiment = registry.load(claim, folder)
    record = records.read(claim, folder)
    return Card(
        claim,
        experiment.claim,
        experiment.conditions,
        tuple(map(experiment.reference, experiment.sources)),
        tuple(experiment.sizes),
        {name: control.meaning for name, control in experiment.controls.items()},
        {s: record[s] | {"stale": records.is_stale(claim, record[s], folder)} for s in SIZES if s in record},
    )
