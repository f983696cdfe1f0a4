"""Two-layer item-label networks at several numbers of labels, tested as they train."""

from icllab.claims.induction import _networks

VERSION = 1


def measure(point, *, key, more=0):
    """Test curves of every seed. ``more``: so many labels are added to those that the cell has."""
    how = {"rates": [point.learning_rate], "labels": point.label_count + more}
    return _networks.at_one_rate(_networks.learning_curves(point, key=key, **how))
