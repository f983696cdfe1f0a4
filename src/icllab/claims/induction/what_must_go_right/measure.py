"""Item-label networks of one start, trained many times over, each time with another intervention."""

import functools

from icllab.claims.induction import _accuracy, _networks
from icllab.claims.induction.what_must_go_right.claim import BLIND, CLAMPS, FROZEN, NONE, TRANSPLANTS
from icllab.core.grid import tabulated
from icllab.models import ablated, copy_clamped, match_clamped, previous_token_clamped, transplanted

VERSION = 1

CHANGED = {
    **dict(zip(CLAMPS, (previous_token_clamped, match_clamped, copy_clamped), strict=True)),
    "no layer 1": functools.partial(ablated, layer=1),
    "no layer 2": functools.partial(ablated, layer=2),
    BLIND: lambda network: ablated(ablated(network, 1), 2),
}
PARTS = dict(
    zip(
        TRANSPLANTS,
        (lambda network: network.layers[0], lambda network: network.layers[1], lambda network: network.classifier),
        strict=True,
    )
)


def measure(point, *, key, instead=None):
    """Test curves of every seed and intervention. ``instead``: what is done in an intervention's place."""

    def curves(seed):
        begin = _networks.start(seed, key=key, dim=point.dim, labels=point.label_count, pairs=point.pairs)

        def trained(network, **options):
            options |= {"loss": point.loss, "memory": 20, "steps": max(point.step), "keep": point.step}
            return _accuracy.train_until(begin.task, network, key=begin.of_prompts, **options)

        @functools.cache
        def donor():
            return trained(begin.network)

        def run(name):
            if name == NONE:
                return donor()
            if name == FROZEN:
                return trained(begin.network, trainable=_layers)
            if name in PARTS:
                return trained(transplanted(begin.network, donor().member(0), PARTS[name]))
            return trained(CHANGED[name](begin.network))

        def curve(intervention):
            result = run((instead or {}).get(intervention, intervention))
            sizes = {"prompts": point.prompts, "steps": point.step}
            accuracies = _accuracy.accuracy_curve(result, begin.task, key=begin.of_tests, **sizes)
            return {"accuracy": (("step",), accuracies)}

        return tabulated(curve, intervention=point.intervention)

    return tabulated(curves, seed=point.seed)


def _layers(network):
    return network.layers
