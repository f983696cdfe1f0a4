"""Two-layer item-label networks, tested as they train."""

import numpy as np

from iclbook.claims.induction import _networks
from icllab.core.grid import tabulated
from icllab.models import ablated

VERSION = 2


def measure(point, *, key, given=False, without_first=False, made_up=None, network=None, task=None):
    """Test curves of every seed.

    ``given``: both attention patterns are clamped, and the readout alone is learned. ``without_first``: the first layer
    adds nothing. ``made_up``: curves of :func:`curves_of`, in the place of those of a network. ``network`` and
    ``task``: a user's networks by step, and the task of their training.
    """
    if made_up is not None:
        return tabulated(lambda seed: curves_of(made_up, point, seed), seed=point.seed)

    if network is not None:
        return _networks.of_run(network, task, point, key=key)

    def curves(seed):
        begin = _networks.start(
            seed, key=key, labels=point.label_count, pairs=point.pairs, dim=point.dim, position_dim=point.position_dim
        )
        network = _networks.clamp_patterns(begin.network) if given else begin.network
        network = ablated(network, 1) if without_first else network
        rates = [point.learning_rate]
        run = _networks.train(
            begin.task, network, key=begin.of_prompts, steps=point.step, rates=rates, batch=point.batch
        )
        tests = {"prompts": point.prompts, "progress": True}
        means = _networks.evaluate(run, begin.task.in_context(), key=begin.of_tests, **tests)
        return {name: (("step",), values[0]) for name, values in means.items()}

    return tabulated(curves, seed=point.seed)


def curves_of(kind, point, seed):
    """Made-up curves with the noise of the prompts.

    ``gradual``: they come near their ends exponentially, each in its own time. ``one of five``: they jump together, and
    before that a label of the context is right in one of five prompts.
    """
    rng, step, guess = np.random.default_rng(seed), np.asarray(point.step), 1 / point.pairs
    scale = 500 * np.exp(0.1 * rng.normal())
    gradual = kind == "gradual"
    shapes = {  # level at the start, time over that of the accuracy
        "accuracy": (guess if gradual else 0.2, 1.0),
        "item_label_attention": (0.2, 0.3),
        "target_attention": (0.1, 2.0),
        "label_attention": (0.5, 1.0),
        "context_label_accuracy": (guess if gradual else 0.99, 1.0),
    }
    curves = {}
    for name, (first, time) in shapes.items():
        left = np.exp(-step / (time * scale)) if gradual else 1 / (1 + np.exp((step - 3 * scale) / (0.1 * scale)))
        curves[name] = (("step",), rng.binomial(point.prompts, 1 + (first - 1) * left) / point.prompts)
    return curves | {"label_loss": (("step",), -np.log(curves["accuracy"][1]))}
