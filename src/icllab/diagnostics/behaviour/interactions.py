r"""Decomposition of an attention score into nine query-key interactions of content, position and buffer.

A token of the network of items and labels has a content c, a position p, and a buffer b, the output of the first layer.
With :math:`M = W_Q^{}W_K^\top` the score of token j for token i is

.. math:: s_{ij} = \sum_{u, v \in \{c, p, b\}} u_i M v_j^\top .

In the first layer the five terms with a buffer are zero. Softmax ignores a constant added to all keys, so the effect of
a term is its *contrast*: its mean over the keys that a head should attend to, minus its mean over the others. The
contrasts of the terms sum to that of the score.
"""

from collections.abc import Collection
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from icllab.core.errors import require_known
from icllab.core.prompt import ItemLabelPrompt
from icllab.diagnostics.behaviour import item_label_heads
from icllab.models import ItemLabelNetwork

PARTS = ("content", "position", "buffer")
INTERACTIONS = tuple(f"{query}-{key}" for query in PARTS for key in PARTS)
CONTRASTS = ("previous", "match", "label")
TOGETHER = 128  # prompts in parallel


def components(
    prompt: ItemLabelPrompt, buffer: Float[Array, "token width"] | None = None
) -> Float[Array, "3 token width"]:
    """Content, position and buffer of every token, as vectors of the residual stream."""
    tokens = prompt.tokens()
    position = jnp.zeros_like(tokens).at[:, : prompt.position_dim].set(tokens[:, : prompt.position_dim])
    return jnp.stack([tokens - position, position, jnp.zeros_like(tokens) if buffer is None else buffer])


def terms(head: Any, token_parts: Float[Array, "3 token width"]) -> Float[Array, "9 token token"]:
    """The nine terms of a head's scores, in the order of :data:`INTERACTIONS`."""
    queries, keys = token_parts @ head.query, token_parts @ head.key
    return jnp.einsum("uid,vjd->uvij", queries, keys).reshape(9, *token_parts.shape[1:2] * 2)


def contrast(
    values: Float[Array, "*term token"], selected: Bool[Array, " token"], reference: Bool[Array, " token"]
) -> Float[Array, "*term"]:
    """Mean over the selected keys minus the mean over the reference keys."""
    on, off = (mask / jnp.sum(mask) for mask in (selected.astype(values.dtype), reference.astype(values.dtype)))
    return values @ (on - off)


def contrasts(network: ItemLabelNetwork, prompt: ItemLabelPrompt) -> Float[Array, "3 9"]:
    """Contrasts of the nine terms, in the order of :data:`CONTRASTS`.

    ``previous``, first layer: a label's item against all other tokens that the label sees, averaged over labels.
    ``match``, second layer, from the query: the right label against the other labels. ``label``: labels against all
    other tokens.
    """
    first = terms(network.layers[0], components(prompt))
    second = terms(network.layers[1], components(prompt, network.trace(prompt).activations["update1"]))[:, -1]
    token = np.arange(first.shape[-1])
    is_label = jnp.asarray(token % 2 == 1)
    right = jnp.zeros(len(token), bool).at[1::2].set(prompt.matches)
    of_labels = [
        contrast(first[:, i], jnp.asarray(token == i - 1), jnp.asarray((token <= i) & (token != i - 1)))
        for i in token[1::2]
    ]
    match, label = contrast(second, right, is_label & ~right), contrast(second, is_label, ~is_label)
    return jnp.stack([jnp.mean(jnp.stack(of_labels), axis=0), match, label])


def restricted(network: ItemLabelNetwork, prompt: ItemLabelPrompt, layer_weights: tuple[Any, Any]) -> Any:
    """Trace of a two-layer network whose scores are weighted sums of terms, with nine weights for each layer."""
    activations: dict[str, Array] = {}

    def edit(name: str, value: Array) -> Array:
        if name == "scores1":
            return jnp.tensordot(layer_weights[0], terms(network.layers[0], components(prompt)), 1)
        if name == "scores2":
            second = terms(network.layers[1], components(prompt, activations["update1"]))
            return jnp.tensordot(layer_weights[1], second[:, -1], 1)
        activations[name] = value
        return value

    return network.trace(prompt, edit)


@eqx.filter_jit
def mean_contrasts(network: Any, prompts: Any) -> Float[Array, "3 9"]:
    """Means of :func:`contrasts` over prompts."""
    return jnp.mean(_mapped(lambda prompt: contrasts(network, prompt), prompts), axis=0)


@eqx.filter_jit
def mean_patterns(network: Any, prompts: Any) -> tuple[Float[Array, "token token"], Float[Array, "pair token"]]:
    """Mean attention in the first layer, and from the query in the second layer by position of the right pair."""

    def patterns_of(prompt: Any) -> tuple[Array, Array, Array]:
        activations = network.trace(prompt).activations
        second = activations["attention2"]
        return activations["attention1"], second, prompt.matches.astype(second.dtype)

    first, second, right = _mapped(patterns_of, prompts)
    return jnp.mean(first, axis=0), (right.T @ second) / jnp.sum(right, axis=0)[:, None]


@eqx.filter_jit
def with_terms(network: Any, task: Any, prompts: Any, layer_weights: tuple[Any, Any]) -> Float[Array, "3"]:
    """Accuracy, attention of labels to their items, and of the query to the right label, with weighted terms."""

    def measures_of(prompt: Any) -> Float[Array, "3"]:
        trace = restricted(network, prompt, layer_weights)
        attention = item_label_heads.item_label_measures(trace, prompt)[:2]
        return jnp.append(task.accuracy(trace.prediction, prompt)[-1], attention)

    return jnp.mean(_mapped(measures_of, prompts), axis=0)


@eqx.filter_jit
def logits_of(network: Any, prompts: Any) -> Float[Array, "prompt label"]:
    """Logits of every prompt."""
    return _mapped(lambda prompt: network(prompt)[-1], prompts)


@eqx.filter_jit
def landscape_coordinates(network: Any, task: Any, prompts: Any) -> Float[Array, "5"]:
    r"""Coordinates of the reduced model on a network: read-out strength, attentions y, z and z', loss.

    All are means over prompts.

    .. math:: \xi = \frac{E[\text{logit of the right label}] - E[\text{mean logit of labels out of context}]}{E[z]}

    ``network`` has two layers, ``task`` owns the loss, and ``prompts`` are stacked.
    """

    def coordinates_of(prompt: Any) -> Float[Array, "5"]:
        trace = network.trace(prompt)
        first, row = trace.activations["attention1"], trace.activations["attention2"]
        logits, right = trace.prediction[-1], prompt.labels[-1]
        outside = jnp.ones(logits.shape, logits.dtype).at[prompt.labels[:-1]].set(0.0)
        gap = logits[right] - jnp.sum(logits * outside) / jnp.sum(outside)
        z = item_label_heads.target_attention(row, prompt.matches)
        wrong = (item_label_heads.label_attention(row) - z) / (prompt.pairs - 1)
        return jnp.stack(
            [gap, item_label_heads.item_label_attention(first), z, wrong, task.loss(trace.prediction, prompt)[-1]]
        )

    count = prompts.labels.shape[0]
    batch = min(2 * TOGETHER, count)
    gap, y, z, wrong, loss = jnp.mean(jax.lax.map(coordinates_of, prompts, batch_size=batch), axis=0)
    return jnp.stack([gap / z, y, z, wrong, loss])


def overlaps(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
    r"""Mean and spread of the overlaps of the classifier's rows with labels.

    .. math:: \zeta_{ij} = E[f_i \mid i \text{ is right}] - E[f_i \mid j \text{ is right}, i \text{ not in context}]

    for the logit f of label i: proportional to :math:`\gamma_i^\top\ell_i-\gamma_i^\top\ell_j` where the classifier is
    linear. The spread is the standard deviation over i and j without the noise of the means.

    Args:
        logits: Logits, [prompt, label].
        labels: Labels of the items, the query's last, [prompt, position].

    Returns:
        Mean, spread, and the standard error of a single overlap.
    """
    count = logits.shape[1]
    right = labels[:, -1]
    outside = np.ones(logits.shape, bool)
    np.put_along_axis(outside, labels, False, axis=1)
    means, noise = np.full((count, count), np.nan), np.full((count, count), np.nan)
    for j in range(count):
        for i in range(count):
            samples = logits[(right == j) & (outside[:, i] | (i == j)), i]
            if len(samples) > 1:
                means[j, i], noise[j, i] = samples.mean(), samples.var(ddof=1) / len(samples)
    off_diagonal = ~np.eye(count, dtype=bool)
    gaps = (np.diagonal(means)[None] - means)[off_diagonal]
    mean_noise = float(np.nanmean((np.diagonal(noise)[None] + noise)[off_diagonal]))
    spread = np.sqrt(max(float(np.nanvar(gaps, ddof=1)) - mean_noise, 0.0))
    return float(np.nanmean(gaps)), float(spread), float(np.sqrt(mean_noise))


def _mapped(function: Any, prompts: Any) -> Any:
    count = prompts.labels.shape[0]
    return jax.lax.map(function, prompts, batch_size=min(TOGETHER, count))


def weights(names: Collection[str]) -> np.ndarray:
    """Nine weights: 1 for the named terms, 0 for the others."""
    for name in names:
        require_known("interaction", name, INTERACTIONS)
    return np.asarray([float(name in names) for name in INTERACTIONS])
