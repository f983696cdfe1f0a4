"""Item-label networks from one start, the queries and keys of their layers scaled before training."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from iclbook.claims.induction import _networks
from iclbook.claims.induction.initial_weights.claim import SCALES
from icllab.core.grid import tabulated

VERSION = 1


def measure(point, *, key, scaled=True, least=0.0, reverse=False):
    """Accuracies of every seed along training, and how strong attention is before it.

    ``scaled``: without it nothing is scaled. ``least``: no scale is below it. ``reverse``: the second layer has the
    largest scale where the smallest is asked for.
    """
    second = SCALES[0] * SCALES[-1] / point.second_scale if reverse else point.second_scale
    scales = (max(point.first_scale, least), max(second, least)) if scaled else (1.0, 1.0)

    def start(network):
        return with_attention_scaled(network, scales)

    curves = _networks.learning_curves(point, key=key, rates=[point.learning_rate], prepare=start)

    def strengths(seed):
        network = _networks.start(seed, key=key, labels=point.label_count, pairs=point.pairs, dim=point.dim).network
        ratios = attention_strengths(start(network)) / attention_strengths(network)
        return dict(zip(("first_strength", "second_strength"), ratios, strict=True))

    accuracy = {"accuracy": _networks.at_one_rate(curves)["accuracy"]}
    return accuracy | tabulated(strengths, seed=point.seed)  # pyright: ignore[reportArgumentType]


def with_attention_scaled(network, scales):
    """The network with queries and keys of each layer multiplied by a number."""
    for layer, scale in enumerate(scales):
        parts = lambda whole, layer=layer: (whole.layers[layer].query, whole.layers[layer].key)  # noqa: E731
        network = eqx.tree_at(parts, network, tuple(scale * part for part in parts(network)))
    return network


def attention_strengths(network):
    """The Frobenius norm of queries times keys, of each layer."""
    return np.array([float(jnp.linalg.norm(layer.query @ layer.key.T)) for layer in network.layers])
