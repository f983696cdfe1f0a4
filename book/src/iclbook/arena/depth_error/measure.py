"""Training of the networks of a claim, each at a key of its own."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import jax

from iclbook.claims.descent.depth_needs_rotation import claim
from iclbook.claims.descent.depth_needs_rotation import measure as networks


def measure(cell: Mapping[str, float], seeds: Sequence[int]) -> list[tuple[float, bool]]:
    """The error of a network for each seed; none is censored."""
    setting = claim.FIXED if not cell["rotates"] else claim.SHARED if cell["shared"] else claim.ROTATED
    sizes = {"dim": int(cell["dim"]), "layers": int(cell["layers"]), "alpha": (cell["alpha"],), "setting": (setting,)}
    point = SimpleNamespace(**claim.claim.fixed, **sizes, seed=(0,))
    errors = [networks.measure(point, key=jax.random.key(seed))["test_loss"] for seed in seeds]
    return [(float(error[1].item()), False) for error in errors]
