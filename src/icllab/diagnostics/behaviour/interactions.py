r"""The nine query-key interactions of content, position and buffer that an attention score is the sum of.

A token of the network of items and labels has a content c, a position p, and a buffer b: what the first layer has added
to it. With :math:`M = W_Q^{}W_K^\top` the score of token j for token i is

.. math:: s_{ij} = \sum_{u, v \in \{c, p, b\}} u_i M v_j^\top .

In the first layer the five terms with a buffer are zero. Softmax ignores what all keys have in common, so a term counts
by its *contrast*: its mean over the keys that a head should attend to, minus its mean over the others. The contrasts of
the terms add up to that of the score.
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
    """Content, position and buffer of every token, each as a vector of the residual stream."""
    tokens = prompt.tokens()
    position = jnp.zeros_like(tokens).at[:, : prompt.position_dim].set(tokens[:, : prompt.position_dim])
    return jnp.stack([tokens - position, position, jnp.zeros_like(tokens) if buffer is None else buffer])


def terms(head: Any, own: Float[Array, "3 token width"]) -> Float[Array, "9 token token"]:
    """The nine terms of all scores of a head, in the order of :data:`INTERACTIONS`."""
    queries, keys = own @ head.query, own @ head.key
    return jnp.einsum("uid,vjd->uvij", queries, keys).reshape(9, *own.shape[1:2] * 2)


def contrast(
    values: Float[Array, "*term token"], wanted: Bool[Array, " token"], others: Bool[Array, " token"]
) -> Float[Array, "*term"]:
    """The mean over the keys that are wanted minus that over the others."""
    on, off = (mask / jnp.sum(mask) for mask in (wanted.astype(values.dtype), others.astype(values.dtype)))
    return values @ (on - off)


def contrasts(network: ItemLabelNetwork, prompt: ItemLabelPrompt) -> Float[Array, "3 9"]:
    """Contrasts of the nine terms, in the order of :data:`CONTRASTS`.

    ``previous``, in the first layer: a label's item against all else that the label sees, the mean over labels. In the
    second layer, from the query: ``match``, the right label against the other labels, and ``label``, labels against all
    other tokens.
    """
    first = terms(network.layers[0], parts(prompt))
    second = terms(network.layers[1], parts(prompt, network.trace(prompt).activations["update1"]))[:, -1]
    token = np.arange(first.shape[-1])
    is_label = jnp.asarray(token % 2 == 1)
    right = jnp.zeros(len(token), bool).at[1::2].set(prompt.matches)
    own = [
        contrast(first[:, i], jnp.asarray(token == i - 1), jnp.asarray((token <= i) & (token != i - 1)))
        for i in token[1::2]
    ]
    match, label = contrast(second, right, is_label & ~right), contrast(second, is_label, ~is_label)
    return jnp.stack([jnp.mean(jnp.stack(own), axis=0), match, label])


def restricted(network: ItemLabelNetwork, prompt: ItemLabelPrompt, kept: tuple[Any, Any]) -> Any:
    """The trace of a two-layer network whose scores have weighted terms, nine weights for each layer."""
    seen: dict[str, Array] = {}

    def edit(name: str, value: Array) -> Array:
        if name == "scores1":
            return jnp.tensordot(kept[0], terms(network.layers[0], parts(prompt)), 1)
        if name == "scores2":
            return jnp.tensordot(kept[1], terms(network.layers[1], parts(prompt, seen["update1"]))[:, -1], 1)
        seen[name] = value
        return value

    return network.trace(prompt, edit)


@eqx.filter_jit
def mean_contrasts(network: Any, asked: Any) -> Float[Array, "3 9"]:
    """Means of :func:`contrasts` over prompts."""
    return jnp.mean(_mapped(lambda prompt: contrasts(network, prompt), asked), axis=0)


@eqx.filter_jit
def mean_patterns(network: Any, asked: Any) -> tuple[Float[Array, "token token"], Float[Array, "pair token"]]:
    """Mean attention of the first layer, and of the query in the second for each place of the right pair."""

    def one(prompt: Any) -> tuple[Array, Array, Array]:
        traced = network.trace(prompt).activations
        return traced["attention1"], traced["attention2"], prompt.matches.astype(traced["attention2"].dtype)

    first, second, right = _mapped(one, asked)
    return jnp.mean(first, axis=0), (right.T @ second) / jnp.sum(right, axis=0)[:, None]


@eqx.filter_jit
def with_terms(network: Any, task: Any, asked: Any, kept: tuple[Any, Any]) -> Float[Array, "3"]:
    """Accuracy, attention of labels to their items and of the query to the right label, with weighted terms."""

    def one(prompt: Any) -> Float[Array, "3"]:
        trace = restricted(network, prompt, kept)
        attention = heads.item_label_measures(trace, prompt)[:2]
        return jnp.append(task.accuracy(trace.prediction, prompt)[-1], attention)

    return jnp.mean(_mapped(one, asked), axis=0)


@eqx.filter_jit
def logits_of(network: Any, asked: Any) -> Float[Array, "prompt label"]:
    """Logits of every prompt."""
    return _mapped(lambda prompt: network(prompt)[-1], asked)


def overlaps(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
    r"""Mean and spread of the overlaps of the classifier's rows with labels.

    .. math:: \zeta_{ij} = E[f_i \mid i \text{ is right}] - E[f_i \mid j \text{ is right}, i \text{ not in context}]

    for the logit f of label i: proportional to :math:`\gamma_i^\top\ell_i-\gamma_i^\top\ell_j` where the classifier is
    linear. The spread is the standard deviation over i and j without the noise of the means.

    Args:
        logits: Logits, [prompt, label].
        labels: Labels of the items, the query's last, [prompt, position].

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
    apart = ~np.eye(count, dtype=bool)
    gaps = (np.diagonal(means)[None] - means)[apart]
    mean_noise = float(np.nanmean((np.diagonal(noise)[None] + noise)[apart]))
    spread = np.sqrt(max(float(np.nanvar(gaps, ddof=1)) - mean_noise, 0.0))
    return float(np.nanmean(gaps)), float(spread), float(np.sqrt(mean_noise))


def _mapped(function: Any, asked: Any) -> Any:
    count = asked.labels.shape[0]
    return jax.lax.map(function, asked, batch_size=min(TOGETHER, count))


def weights(names: Collection[str]) -> np.ndarray:
    """Nine weights, one for each term that is kept."""
    return np.asarray([float(name in names) for name in INTERACTIONS])
