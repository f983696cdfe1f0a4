"""Item-label networks of one and two layers, trained alike."""

from iclbook.claims.induction import _networks

VERSION = 1

NAMES = ("accuracy", "label_loss", "context_label_accuracy")


def measure(point, *, key, layers=None):
    """Test curves of every seed at every rate. ``layers``: the depth whatever the cell's is."""
    fields = {"layers": layers or point.layers}
    curves = _networks.learning_curves(point, key=key, rates=point.rate, fields=fields)
    return {name: curves[name] for name in NAMES}
