"""Two-layer item-label networks, tested as they train."""

from icllab.claims.induction import _networks


def measure(point, *, key, given=False):
    """Test curves of every seed. ``given``: both attention patterns are clamped, and the readout alone is learned."""
    how = {"rates": [point.learning_rate], "prepared": _networks.patterns_given if given else None}
    return _networks.at_one_rate(_networks.learning_curves(point, key=key, **how))
