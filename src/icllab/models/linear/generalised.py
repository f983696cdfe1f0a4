r"""Attention whose weights are any function of a key and a query, in the parametrisation of Cheng et al.

.. math:: Z_l = Z_{l-1} + \frac1n V_lZ_{l-1}M\,h(B_lX_{l-1}, C_lX_{l-1}), \qquad \hat y = \pm[Z_L]_{d+1,\,n+1}

The columns of :math:`Z_0` are the examples :math:`(x_i; y_i)` and the query :math:`(x_{n+1}; 0)`, X is its first d
rows, :math:`h(U, W)_{ij} = h(u_i, w_j)` has a row for each key and a column for each query token, and the mask M
removes the query from the keys. V is the product of output and value weights, B the key matrix, C the query matrix.
With h the inner product it is :class:`~icllab.models.linear.linear_attention.LinearAttention` with P = V and
:math:`Q = \mathrm{diag}(B^\top C, 0)`.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.domains import POSITIVE
from icllab.core.errors import expected, require_integer, require_key, unknown
from icllab.core.kernels import ELEMENTWISE, SOFTMAX, Kernel, require_kernel
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import Edit, Trace
from icllab.models.interventions.recording import Recorder
from icllab.models.linear.linear_attention import MASKED, LinearAttention, StackedAttention, prefix_tokens
from icllab.models.networks.dense import product, require_spread


class GeneralisedAttention(StackedAttention):
    r"""L layers of attention with any h on joined tokens, without any other parameter.

    Activations: ``tokens`` (rows are tokens: :math:`Z_0^\top`), then for each layer ``layer0.keys``
    (:math:`X^\top B^\top`), ``layer0.queries`` (:math:`X^\top C^\top`), ``layer0.pattern`` (h, row: key, column: query,
    before the mask and 1/n), ``layer0.update`` and ``layer0`` (the new tokens), last ``prediction``. Where every
    position is answered, every activation but the prediction has a leading axis ``position``: each prefix is a prompt
    of its own, in which examples see each other, and the cost is O(length^3) for a layer; with ``answers="last"`` it is
    O(length^2).

    Fields beside those of :class:`~icllab.models.linear.linear_attention.StackedAttention`:

    Attributes:
        value: V of each layer.
        key: B of each layer.
        query: C of each layer.
        temperature: T of each layer: :math:`h(u, w)` is a function of :math:`u^\top w/T`, or of :math:`u/\sqrt T` and
            :math:`w/\sqrt T` where it is given as a function.
        diagonal: V of a second head in each layer, whose h is the identity matrix: every example adds a multiple of
            itself. None: no such head.
        similarity: h: a name of :data:`~icllab.core.kernels.NAMES`, or a function of a key and a query.
        axis: Axis of a softmax: ``"keys"``, over all n + 1 keys, so that columns sum to one before the mask removes the
            query's row; or ``"queries"``, over all n + 1 query tokens, so that rows do.

    Source: [Cheng24].
    """

    value: Float[Array, "layer token token"]
    key: Float[Array, "layer dim dim"]
    query: Float[Array, "layer dim dim"]
    temperature: Float[Array, " layer"]
    diagonal: Float[Array, "layer token token"] | None
    similarity: Kernel = eqx.field(static=True, kw_only=True)
    axis: str = eqx.field(static=True, kw_only=True)

    def __check_init__(self) -> None:
        self._require_shape("value", "an array [layer, dim + 1, dim + 1]", lambda shape: len(shape) == 3)
        layers, size = np.shape(self.value)[:2]
        for name in ("key", "query"):
            requirement = f"an array [layer, dim, dim] of shape {(layers, size - 1, size - 1)}"
            self._require_shape(name, requirement, lambda shape: shape == (layers, size - 1, size - 1))
        self._require_shape("temperature", f"one number for each of {layers} layers", lambda shape: shape == (layers,))
        if self.diagonal is not None:
            like_value = "an array of the shape of value, or None"
            self._require_shape("diagonal", like_value, lambda shape: shape == np.shape(self.value))
        require_kernel("similarity", self.similarity)
        if self.axis not in ("keys", "queries"):
            raise unknown("axis", self.axis, ("keys", "queries"))

    @classmethod
    def init(
        cls, *, dim: int, layers: int, std: float, temperature: float, key: PRNGKeyArray, **fields: Any
    ) -> "GeneralisedAttention":
        """Draw all entries of V, B and C from a normal distribution of standard deviation ``std``; no diagonal head.

        The other fields are as they are given, with ``axis="keys"`` by default.
        """
        require_integer("dim", dim)
        require_integer("layers", layers)
        require_spread("std", std, default=False)
        POSITIVE.require_scalar("temperature", temperature)
        require_key(key)
        of_value, of_rest = jax.random.split(key)
        value = std * jax.random.normal(of_value, (layers, dim + 1, dim + 1))
        b, c = std * jax.random.normal(of_rest, (2, layers, dim, dim))
        return cls(value, b, c, jnp.full(layers, temperature, value.dtype), None, **{"axis": "keys", **fields})

    @classmethod
    def from_linear(cls, model: LinearAttention) -> "GeneralisedAttention":
        """Convert linear attention without labels in its scores: V = P, B = I, C the block of Q. Not traceable.

        Raises:
            InputError: Q has entries for labels, the query is a key, or examples see earlier examples only.
        """
        q, dim = model.q, model.dim
        if bool(jnp.any(q[:, dim] != 0) | jnp.any(q[:, :, dim] != 0)):
            raise expected(
                "model", "zeros in the last row and column of Q, because h uses the inputs alone", "other entries"
            )
        if model.query_is_key or model.causal:
            raise expected("model", "query_is_key=False and causal=False", (model.query_is_key, model.causal))
        identity = jnp.broadcast_to(jnp.eye(dim, dtype=q.dtype), (model.layers, dim, dim))
        fields: dict[str, Any] = {"sign": model.sign, "answers": model.answers, "normalised": model.normalised}
        arrays = (model.p, identity, q[:, :dim, :dim], jnp.ones(model.layers, q.dtype), None)
        return cls(*arrays, similarity="linear", axis="keys", **fields)

    def linear_attention(self) -> LinearAttention:
        r"""The same predictor as P = V and :math:`Q = \mathrm{diag}(B^\top C/T, 0)`, if h is the inner product.

        Raises:
            InputError: h is another function, or there is a diagonal head.
        """
        if self.similarity != "linear" or self.diagonal is not None:
            raise expected("similarity", "'linear', without a diagonal head", self.similarity)
        scale = jnp.broadcast_to(self.temperature[:, None, None], self.key.shape)
        block = jnp.swapaxes(self.key, 1, 2) @ self.query / scale
        q = jnp.pad(block, ((0, 0), (0, 1), (0, 1)))
        fields = {**MASKED, "sign": self.sign, "answers": self.answers, "normalised": self.normalised}
        return LinearAttention(self.value, q, **fields)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.value.shape[0]

    @property
    def dim(self) -> int:
        """Input dimension d."""
        return self.value.shape[1] - 1

    def trace(self, prompt: RegressionPrompt, edit: Edit | None = None) -> Trace:
        """Predict, and record the named activations."""
        record = Recorder(edit)
        z, is_key = _prefixes(prompt) if self.answers == "every" else _whole(prompt)
        count = jnp.sum(is_key, axis=-1).astype(z.dtype)
        share = 1 / jnp.maximum(count, 1) if self.normalised else jnp.ones_like(count)
        present = is_key.at[..., -1].set(True)  # the query, which is a token but no key
        z = record("tokens", z)
        for i in range(self.layers):
            keys = record(f"layer{i}.keys", product(z[..., :-1], self.key[i].T))
            queries = record(f"layer{i}.queries", product(z[..., :-1], self.query[i].T))
            pattern = record(f"layer{i}.pattern", self._pattern(keys, queries, self.temperature[i], present))
            masked = jnp.where(jnp.broadcast_to(is_key[..., :, None], pattern.shape), pattern, 0)
            sums = jnp.swapaxes(masked, -1, -2) @ z
            update = product(sums, self.value[i].T)
            if self.diagonal is not None:
                diagonal_update = product(z, self.diagonal[i].T)
                update = update + jnp.where(
                    jnp.broadcast_to(is_key[..., None], diagonal_update.shape), diagonal_update, 0
                )
            update = update * jnp.broadcast_to(share[..., None, None], update.shape)
            z = record(f"layer{i}", z + record(f"layer{i}.update", update))
        return Trace(record("prediction", self.sign * jnp.atleast_1d(z[..., -1, -1])), record.activations)

    def _pattern(self, keys: Array, queries: Array, temperature: Array, present: Array) -> Array:
        """h of all pairs; for absent examples the values are finite but meaningless."""
        pair = present[..., :, None] & present[..., None, :]
        if not isinstance(self.similarity, str):
            root = jnp.sqrt(temperature)
            by_query = jax.vmap(self.similarity, in_axes=(None, 0))
            of_pairs = jax.vmap(by_query, in_axes=(0, None))
            for _ in range(keys.ndim - 2):
                of_pairs = jax.vmap(of_pairs)
            return of_pairs(keys / root, queries / root)
        # The mask comes first: what is not there may not overflow into the gradient.
        scores = jnp.where(pair, keys @ jnp.swapaxes(queries, -1, -2) / temperature, 0)
        if self.similarity != SOFTMAX:
            return ELEMENTWISE[self.similarity](scores)
        scores = jnp.where(pair, scores, jnp.finfo(scores.dtype).min)
        return jax.nn.softmax(scores, axis=-2 if self.axis == "keys" else -1)


def _whole(prompt: RegressionPrompt) -> tuple[Array, Array]:
    """Tokens of the examples and then the query, and a mask of the examples."""
    z = jnp.concatenate([prompt.x, jnp.pad(prompt.y[:-1], (0, 1))[:, None]], axis=1)
    return z, jnp.arange(prompt.positions) < prompt.length


def _prefixes(prompt: RegressionPrompt) -> tuple[Array, Array]:
    """The tokens of every prefix; later examples are zero, so that no layer uses the future."""
    z, token = prefix_tokens(prompt), jnp.arange(prompt.positions)
    is_key = (token[None, :] < token[:, None]) & (token[None, :] < prompt.length)
    present = is_key | (token == prompt.length)[None]
    return jnp.where(jnp.broadcast_to(present[..., None], z.shape), z, 0), is_key
