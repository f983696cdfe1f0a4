"""Item-label networks of one start, trained many times over, each time with another intervention."""

import functools

from iclbook.claims.induction import _accuracy, _networks
from iclbook.claims.induction.what_must_go_right.claim import ABLATIONS, BLIND, CLAMPS, FROZEN, NONE, TRANSPLANTS
from icllab.core.grid import tabulated
from icllab.models import ablated, copy_clamped, match_clamped, previous_token_clamped, transplanted

VERSION = 1


def _classifier(network):
    return network.classifier


CHANGED = {
    **dict(zip(CLAMPS, (previous_token_clamped, match_clamped, copy_clamped), strict=True)),
    "no layer 1": functools.partial(ablated, layer=1),
    "no layer 2": functools.partial(ablated, layer=2),
    BLIND: lambda network: ablated(ablated(network, 1), 2),
}
PARTS = dict(
    zip(
        TRANSPLANTS,
        (lambda network: network.layers[0], lambda network: network.layers[1], _classifier),
        strict=True,
    )
)


def measure(point, *, key, strength=None, unwithheld=False):
    """Test curves of every seed and intervention.

    ``strength``: that of operations that are supplied. ``unwithheld``: what is to be withheld is not, and the
    classifier that is frozen is that of the network trained without intervention.
    """

    def curves(seed):
        begin = _networks.start(seed, key=key, dim=point.dim, labels=point.label_count, pairs=point.pairs)

        def trained(network, **options):
            options |= {"loss": point.loss, "memory": 20, "steps": max(point.step), "keep": point.step}
            return _accuracy.train_until(begin.task, network, key=begin.of_prompts, **options)

        @functools.cache
        def donor():
            return trained(begin.network)

        def run(name):
            if name == NONE or (unwithheld and name in ABLATIONS):
                return donor()
            if name == FROZEN:
                network = transplanted(begin.network, donor().member(0), _classifier) if unwithheld else begin.network
                return trained(network, trainable=_layers)
            if name in PARTS:
                return trained(transplanted(begin.network, donor().member(0), PARTS[name]))
            options = {"strength": strength} if strength is not None and name in CLAMPS else {}
            return trained(CHANGED[name](begin.network, **options))

        def curve(intervention):
            result = run(intervention)
            sizes = {"prompts": point.prompts, "steps": point.step}
            accuracies = _accuracy.accuracy_curve(result, begin.task, key=begin.of_tests, **sizes)
            return {"accuracy": (("step",), accuracies)}

        return tabulated(curve, intervention=point.intervention)

    return tabulated(curves, seed=point.seed)


def _layers(network):
    return network.layers
