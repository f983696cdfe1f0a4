"""Weights that the record of a claim has; nothing is trained."""

from collections.abc import Mapping, Sequence

from iclbook.claims.asymptotics.odds_of_memorising.claim import memorising_weight
from icllab.lab import records

CLAIM = "asymptotics/odds_of_memorising"


def measure(cell: Mapping[str, float], seeds: Sequence[int]) -> list[tuple[float, bool]]:
    """Weights of the first networks of the record, as many as there are seeds; none is censored."""
    weight = memorising_weight(records.data(CLAIM, "small")).sel(setting="urns", test_set="pool")
    chosen = weight.sel(tasks=cell["tasks"], step=cell["steps"]).isel(seed=slice(len(seeds)))
    return [(float(value), False) for value in chosen.values]
