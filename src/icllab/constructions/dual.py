"""Linear attention as the implicit update of a linear map, with one gradient step for each layer."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from icllab.core.prompt import RegressionPrompt
from icllab.core.views import fields_html, fields_repr
from icllab.models.linear.linear_attention import LinearAttention


class DualForm(NamedTuple):
    r"""Effect of the examples of one prompt on the map that a layer applies to the query.

    .. math:: z \leftarrow (W_0 + \Delta W_l)\,z, \qquad W_0 = I, \quad \Delta W_l = \sum_iv_{li}k_{li}^\top

    Attributes:
        values: :math:`v_{li} = \frac1nP_lz_i`, the error signals, [layer, key, token].
        keys: :math:`k_{li} = Q_l^\top z_i`, the inputs, [layer, key, token].
        query: :math:`z_{n+1}` before the first layer.
    """

    values: Float[Array, "layer key token"]
    keys: Float[Array, "layer key token"]
    query: Float[Array, " token"]

    __repr__ = fields_repr
    _repr_html_ = fields_html

    @property
    def updates(self) -> Float[Array, "layer token token"]:
        r""":math:`\Delta W_l`, the update of the map in each layer."""
        return jnp.einsum("lia,lib->lab", self.values, self.keys)

    def answer(self, sign: int) -> Float[Array, ""]:
        """The label slot of the query after the updated maps of all layers."""
        z = self.query
        for update in self.updates:
            z = z + update @ z
        return sign * z[-1]


def dual_form(model: LinearAttention, prompt: RegressionPrompt) -> DualForm:
    r"""The implicit weight updates with which linear attention answers the last position of a prompt.

    .. math:: \Delta W_l = -\nabla_W\Bigl[-\sum_iv_{li}^\top Wk_{li}\Bigr]

    A layer of attention gives the query :math:`\sum_iv_i(k_i^\top z)`, which is :math:`\Delta W z`: the examples have
    trained the map W by one step of gradient descent, of size one, on the inputs :math:`k_i` with error signals
    :math:`v_i`. It is an identity of products, true for any weights; what the map has learned depends on them.

    The number of layers does not matter, nor whether the model answers every position or the last.

    Source: [Dai23].
    Derived: docs/constructions.md, The dual form.
    """
    last = dataclasses.replace(model, answers="last", form="tokens")
    activations = last.trace(prompt).activations
    before = [activations["tokens"], *(activations[f"layer{i}"] for i in range(model.layers - 1))]
    n = prompt.length
    keys = n + 1 if model.query_is_key else n
    share = 1 / max(n, 1) if model.normalised else 1.0
    tokens = jnp.stack([z[:keys] for z in before])
    # A query that is a key is one of its own: its row is the query at that layer.
    values = share * jnp.einsum("lab,lib->lia", model.p, tokens)
    return DualForm(values, jnp.einsum("lba,lib->lia", model.q, tokens), before[0][n])
