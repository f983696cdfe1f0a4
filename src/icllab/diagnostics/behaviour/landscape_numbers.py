"""The coordinates of the reduced model of an induction head, measured on a network of items and labels."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icllab.diagnostics.behaviour import heads

TOGETHER = 256  # prompts side by side


@eqx.filter_jit
def read(network: Any, task: Any, asked: Any) -> Float[Array, "5"]:
    r"""The strength of the readout, the attentions y, z and z', and the loss: means over prompts.

    .. math:: \xi = \frac{E[\text{logit of the right label}] - E[\text{mean logit of labels out of context}]}{E[z]}

    of a two-layer network, for a task that has the loss and stacked prompts.
    """

    def one(prompt: Any) -> Float[Array, "5"]:
        trace = network.trace(prompt)
        first, row = trace.activations["attention1"], trace.activations["attention2"]
        logits, right = trace.prediction[-1], prompt.labels[-1]
        outside = jnp.ones(logits.shape, logits.dtype).at[prompt.labels[:-1]].set(0.0)
        gap = logits[right] - jnp.sum(logits * outside) / jnp.sum(outside)
        z = heads.target_attention(row, prompt.matches)
        other = (heads.label_attention(row) - z) / (prompt.pairs - 1)
        return jnp.stack([gap, heads.item_label_attention(first), z, other, task.loss(trace.prediction, prompt)[-1]])

    count = asked.labels.shape[0]
    gap, y, z, other, loss = jnp.mean(jax.lax.map(one, asked, batch_size=min(TOGETHER, count)), axis=0)
    return jnp.stack([gap / z, y, z, other, loss])
