"""Errors that the record of a claim has; nothing is trained."""

from collections.abc import Mapping, Sequence

from iclbook.claims.descent.depth_needs_rotation.claim import FIXED, ROTATED, SHARED
from icllab.lab import records

CLAIM = "descent/depth_needs_rotation"


def measure(cell: Mapping[str, float], seeds: Sequence[int]) -> list[tuple[float, bool]]:
    """Errors of the first networks of the record, as many as there are seeds; none is censored."""
    setting = FIXED if not cell["rotates"] else SHARED if cell["shared"] else ROTATED
    at = {"dim": cell["dim"], "layers": cell["layers"], "alpha": cell["alpha"], "setting": setting}
    errors = records.data(CLAIM, "small")["test_loss"].sel(at).isel(seed=slice(len(seeds)))
    return [(float(error), False) for error in errors.values]
