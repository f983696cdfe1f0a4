"""The classifier of the last token: ReLU layers with one bias each, and a readout without a bias."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import require_integer, require_key
from icllab.models.interventions.recording import Record
from icllab.models.networks.dense import product


class Classifier(eqx.Module):
    r"""Logits of a vector.

    .. math:: h \leftarrow \max(0, h W_i + b_i), \quad i = 1, \dots, n, \qquad f = h U

    Weights are drawn from :math:`N(0, 2/d)`, the single bias of each layer and the read-out from :math:`N(0, 1/d)`,
    with d the number of entries of the vector, which all layers keep.

    Attributes:
        weights: :math:`W_i`.
        biases: :math:`b_i`, one number for all units of a layer.
        readout: U.

    Source: [Reddy24].
    """

    weights: tuple[Float[Array, "width width"], ...]
    biases: tuple[Float[Array, ""], ...]
    readout: Float[Array, "width label"]

    def __init__(self, width: int, labels: int, *, depth: int, key: PRNGKeyArray):
        require_integer("width", width)
        require_integer("labels", labels)
        require_integer("depth", depth, least=0)
        require_key(key)
        of_weights, of_biases, of_readout = jax.random.split(key, 3)
        spread = width**-0.5
        weights = 2**0.5 * spread * jax.random.normal(of_weights, (depth, width, width))
        biases = spread * jax.random.normal(of_biases, (depth,))
        self.weights = tuple(weights[i] for i in range(depth))
        self.biases = tuple(biases[i] for i in range(depth))
        self.readout = spread * jax.random.normal(of_readout, (width, labels))

    def __call__(self, x: Float[Array, " width"], record: Record = lambda _, value: value) -> Float[Array, "one label"]:
        """The logits, with an axis of length 1 for the position; ``record`` sees ``hidden1``, ``hidden2``, ..."""
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            after = product(x[None], weight)[0]
            x = record(f"hidden{i + 1}", jax.nn.relu(after + jnp.broadcast_to(bias, after.shape)))
        return product(x[None], self.readout)
