"""Coordinates of the reduced model of an induction head, measured on a network of items and labels."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icllab.diagnostics.behaviour import heads

TOGETHER = 256  # prompts side by side


@eqx.filter_jit
def read(network: Any, task: Any, prompts: Any) -> Float[Array, "5"]:
    r"""Strength of the readout, attentions y, z and z', and loss: means over prompts.

    .. math:: \xi = \frac{E[\text{logit of the right label}] - E[\text{mean logit of labels out of context}]}{E[z]}

    ``network`` has two layers, ``task`` owns the loss, and ``prompts`` are stacked.
    """

    def coordinates_of(prompt: Any) -> Float[Array, "5"]:
        trace = network.trace(prompt)
        first, row = trace.activations["attention1"], trace.activations["attention2"]
        logits, right = trace.prediction[-1], prompt.labels[-1]
        outside = jnp.ones(logits.shape, logits.dtype).at[prompt.labels[:-1]].set(0.0)
        gap = logits[right] - jnp.sum(logits * outside) / jnp.sum(outside)
        z = heads.target_attention(row, prompt.matches)
        wrong = (heads.label_attention(row) - z) / (prompt.pairs - 1)
        return jnp.stack([gap, heads.item_label_attention(first), z, wrong, task.loss(trace.prediction, prompt)[-1]])

    count = prompts.labels.shape[0]
    gap, y, z, wrong, loss = jnp.mean(jax.lax.map(coordinates_of, prompts, batch_size=min(TOGETHER, count)), axis=0)
    return jnp.stack([gap / z, y, z, wrong, loss])
