"""Two-layer item-label networks at several numbers of labels, tested as they train."""

from iclbook.claims.induction import _networks

VERSION = 2

MANY = 16  # labels that are learned soon


def measure(point, *, key, other_way=False):
    """Test curves of every seed. ``other_way``: many labels for as many as pairs, and these for one more."""
    labels = {point.pairs: MANY, point.pairs + 1: point.pairs}[point.label_count] if other_way else point.label_count
    return _networks.at_one_rate(_networks.learning_curves(point, key=key, rates=[point.learning_rate], labels=labels))
