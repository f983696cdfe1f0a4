r"""The nine interactions of content, position and buffer that a score of attention is made of.

A token of the network of items and labels is its place p, its content c, and what the first layer has added, its buffer
b, empty before. With :math:`M = W_Q^{}W_K^\top` the score of token j for token i is a sum of nine terms,

.. math:: s_{ij} = \sum_{u, v \in \{c, p, b\}} u_i M v_j^\top .

In the first layer the five with a buffer are zero. Softmax does not see what is common to all keys, so that a term
is known by its *contrast*: its value at the keys a head is to attend to above its mean over others. Contrasts
of the terms add up to that of the score.
"""

from collections.abc import Collection
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from icllab.core.prompt import ItemLabelPrompt
from icllab.diagnostics.behaviour import heads
from icllab.models import ItemLabelNetwork

PARTS = ("content", "position", "buffer")
INTERACTIONS = tuple(f"{query}-{key}" for query in PARTS for key in PARTS)
CONTRASTS = ("previous", "match", "label")
TOGETHER = 128  # prompts side by side


def parts(prompt: ItemLabelPrompt, buffer: Float[Array, "token width"] | None = None) -> Float[Array, "3 token width"]:
    """Content, position and buffer of every token, each as a vector of the stream."""
    tokens = prompt.tokens()
    place = jnp.zeros_like(tokens).at[:, : prompt.places].set(tokens[:, : prompt.places])
    return jnp.stack([tokens - place, place, jnp.zeros_like(tokens) if buffer is None else buffer])


def terms(head: Any, own: Float[Array, "3 token width"]) -> Float[Array, "9 token token"]:
    """The nine terms of the scores of all tokens, in the order of :data:`INTERACTIONS`."""
    queries, keys = own @ head.query, own @ head.key
    return jnp.einsum("uid,vjd->uvij", queries, keys).reshape(9, *own.shape[1:2] * 2)


def contrast(
    values: Float[Array, "*term token"], wanted: Bool[Array, " token"], others: Bool[Array, " token"]
) -> Float[Array, "*term"]:
    """Mean over the keys that are wanted above that over the others."""
    on, off = (mask / jnp.sum(mask) for mask in (wanted.astype(values.dtype), others.astype(values.dtype)))
    return values @ (on - off)


def contrasts(network: ItemLabelNetwork, prompt: ItemLabelPrompt) -> Float[Array, "3 9"]:
    """Contrasts of the nine terms, in the order of :data:`CONTRASTS`.

    ``previous``, first layer: a label's score for its item above that for all else it sees, the mean over labels.
    ``match``, second: the query's score for the right label above that for other labels; ``label``: for labels above
    that for all other tokens.
    """
    first = terms(network.layers[0], parts(prompt))
    buffer = network.trace(prompt).activations["update1"]
    second = terms(network.layers[1], parts(prompt, buffer))[:, -1]
    place = np.arange(first.shape[-1])
    rows = [
        contrast(first[:, i], jnp.asarray(place == i - 1), jnp.asarray((place <= i) & (place != i - 1)))
        for i in place[1::2]
    ]
    is_label = jnp.asarray(place % 2 == 1)
    right = jnp.zeros(len(place), bool).at[1::2].set(prompt.matches)
    return jnp.stack(
        [
            jnp.mean(jnp.stack(rows), axis=0),
            contrast(second, right, is_label & ~right),
            contrast(second, is_label, ~is_label),
        ]
    )


def restricted(network: ItemLabelNetwork, prompt: ItemLabelPrompt, kept: tuple[Any, Any]) -> Any:
    """The trace of a network whose scores in each layer have some of the nine terms only.

    Args:
        network: Two layers.
        prompt: One prompt.
        kept: Of each layer, which terms, as nine weights.
    """
    seen: dict[str, Array] = {}

    def edit(name: str, value: Array) -> Array:
        if name == "scores1":
            return jnp.tensordot(kept[0], terms(network.layers[0], parts(prompt)), 1)
        if name == "scores2":
            own = terms(network.layers[1], parts(prompt, seen["update1"]))[:, -1]
            return jnp.tensordot(kept[1], own, 1)
        seen[name] = value
        return value

    return network.trace(prompt, edit)


@eqx.filter_jit
def mean_contrasts(network: Any, asked: Any) -> Float[Array, "3 9"]:
    """Means over prompts."""
    return jnp.mean(_mapped(lambda prompt: contrasts(network, prompt), asked), axis=0)


@eqx.filter_jit
def mean_patterns(network: Any, asked: Any) -> tuple[Float[Array, "token token"], Float[Array, "pair token"]]:
    """Attention of the first layer, and that of the query in the second by which pair is right: means over prompts."""

    def one(prompt: Any) -> tuple[Array, Array, Array]:
        traced = network.trace(prompt).activations
        return traced["attention1"], traced["attention2"], prompt.matches.astype(traced["attention2"].dtype)

    first, second, right = _mapped(one, asked)
    return jnp.mean(first, axis=0), (right.T @ second) / jnp.sum(right, axis=0)[:, None]


@eqx.filter_jit
def with_terms(network: Any, law: Any, asked: Any, kept: tuple[Any, Any]) -> Float[Array, "3"]:
    """Accuracy, attention from labels to items and from the query to the right label, with some terms only."""

    def one(prompt: Any) -> Float[Array, "3"]:
        trace = restricted(network, prompt, kept)
        attention = heads.item_label_measures(trace, prompt)[:2]
        return jnp.append(law.accuracy(trace.prediction, prompt)[-1], attention)

    return jnp.mean(_mapped(one, asked), axis=0)


@eqx.filter_jit
def logits_of(network: Any, asked: Any) -> Float[Array, "prompt label"]:
    """Logits of every prompt."""
    return _mapped(lambda prompt: network(prompt)[-1], asked)


def overlaps(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
    r"""Mean and spread of the overlaps of readers and labels.

    .. math:: \zeta_{ij} = E[f_i \mid i \text{ is right}] - E[f_i \mid j \text{ is right}, i \text{ not in context}]

    for the logit f of label i: proportional to :math:`\gamma_i^\top\ell_i-\gamma_i^\top\ell_j` where the classifier is
    linear. The spread is the standard deviation over i and j without the noise of the means.

    Args:
        logits: [prompt, label].
        labels: Of the items, the last that of the query, [prompt, position].

    Returns:
        The mean, the spread, and the standard error of the mean of a single one.
    """
    count = logits.shape[1]
    right = labels[:, -1]
    outside = np.ones(logits.shape, bool)
    np.put_along_axis(outside, labels, False, axis=1)
    means, noise = np.full((count, count), np.nan), np.full((count, count), np.nan)
    for j in range(count):
        for i in range(count):
            some = logits[(right == j) & (outside[:, i] | (i == j)), i]
            if len(some) > 1:
                means[j, i], noise[j, i] = some.mean(), some.var(ddof=1) / len(some)
    gaps, errors = np.diagonal(means)[None] - means, np.diagonal(noise)[None] + noise
    apart = ~np.eye(count, dtype=bool)
    found, mean_noise = gaps[apart], float(np.nanmean(errors[apart]))
    spread = np.sqrt(max(float(np.nanvar(found, ddof=1)) - mean_noise, 0.0))
    return float(np.nanmean(found)), float(spread), float(np.sqrt(mean_noise))


def _mapped(function: Any, asked: Any) -> Any:
    count = asked.labels.shape[0]
    return jax.lax.map(function, asked, batch_size=min(TOGETHER, count))


def weights(names: Collection[str]) -> np.ndarray:
    """Nine weights, one for each term that is kept."""
    return np.asarray([float(name in names) for name in INTERACTIONS])
