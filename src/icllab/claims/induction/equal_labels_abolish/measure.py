"""Two-layer item-label networks at several numbers of labels, tested as they train."""

from icllab.claims.induction import _networks

VERSION = 2


def measure(point, *, key, exchanged=False, labels=None):
    """Test curves of every seed.

    ``exchanged``: as many labels as pairs where one more is asked for, and conversely. ``labels``: so many instead.
    """
    labels = labels or (2 * point.pairs + 1 - point.label_count if exchanged else point.label_count)
    return _networks.at_one_rate(_networks.learning_curves(point, key=key, rates=[point.learning_rate], labels=labels))
