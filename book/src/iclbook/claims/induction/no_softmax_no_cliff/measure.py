"""Item-label networks with softmax attention, or attention of first order in its scores, in either layer."""

from iclbook.claims.induction import _networks
from iclbook.claims.induction.no_softmax_no_cliff.claim import KINDS, SOFTMAX
from icllab.models import edited

VERSION = 2


def measure(point, *, key, prepared=""):
    """Test curves of every seed at every rate, of networks without softmax that are ``prepared`` as in :data:`WAYS`."""
    way = WAYS[prepared if point.attention != SOFTMAX else ""]
    curves = _networks.learning_curves(
        point, key=key, rates=point.rate, fields={"attention": KINDS[point.attention]}, prepare=way
    )
    return {"accuracy": curves["accuracy"]}


def _given(network):
    return _networks.clamp_patterns(_networks.first_order(network))


def _even(network):
    return edited(network, _one)


def _one(name, value):
    return 1 + 0 * value if name.startswith("scores") else value


WAYS = {"": _networks.first_order, "patterns given": _given, "zero order": _even}
