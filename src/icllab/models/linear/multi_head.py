r"""Linear attention with several heads, whose keys and queries are one matrix or two matrices of low rank.

.. math:: Z_l = Z_{l-1} + \frac{1}{n} \sum_h P_l^{(h)} Z_{l-1} M \big( Z_{l-1}^\top Q_l^{(h)} Z_{l-1} \big),
          \qquad Q^{(h)} = K^{(h)} {Q'}^{(h)\top}

Heads of rank R have two factors of R columns. One matrix, *merged*, and two, *separate*, give the same functions where
R is the number of features, but not the same training: a product of two weights leaves zero by a plateau.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected, require_flag, require_integer, require_key
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import Edit, Trace
from icllab.models.interventions.recording import Recorder
from icllab.models.linear.linear_attention import LinearAttention, StackedAttention, token_sums
from icllab.models.networks.dense import product, require_spread


class MultiHeadLinearAttention(StackedAttention):
    r"""L layers of H heads of linear attention on joined tokens.

    Activations are those of :class:`LinearAttention`; ``layer0.scores`` has a leading axis of heads, and so has
    ``layer0.heads``, what each adds to the tokens.

    Fields beside those of :class:`StackedAttention`:

    Attributes:
        p: P of each head.
        keys: K of each head; or, without ``queries``, the whole matrix Q.
        queries: Q' of each head; None for heads of one merged matrix.
        causal: Whether an example sees itself and earlier examples only, or all of its prefix.
        query_is_key: Whether the query also sees itself, as a token with label 0.

    Source: [Ahn23], [Zhang25].
    """

    p: Float[Array, "layer head token token"]
    keys: Float[Array, "layer head token rank"]
    queries: Float[Array, "layer head token rank"] | None
    causal: bool = eqx.field(static=True, kw_only=True)
    query_is_key: bool = eqx.field(static=True, kw_only=True)

    def __check_init__(self) -> None:
        self._require_shape("p", "an array [layer, head, dim + 1, dim + 1]", lambda shape: len(shape) == 4)
        shape = jnp.shape(self.p)
        if self.queries is None:
            self._require_shape("keys", "an array of the shape of p, or queries with it", lambda keys: keys == shape)
        else:
            self._require_shape("keys", "an array [layer, head, dim + 1, rank]", lambda keys: keys[:3] == shape[:3])
            self._require_shape("queries", "an array of the shape of keys", lambda q: q == jnp.shape(self.keys))
        require_flag("causal", self.causal)
        require_flag("query_is_key", self.query_is_key)

    @classmethod
    def init(
        cls, *, dim: int, layers: int, heads: int, rank: int | None, std: float, key: PRNGKeyArray, **fields: Any
    ) -> "MultiHeadLinearAttention":
        """Draw normal entries of deviation ``std``; keys and queries have rank ``rank``, or are merged if None."""
        for name, value in (("dim", dim), ("layers", layers), ("heads", heads)):
            require_integer(name, value)
        if rank is not None:
            require_integer("rank", rank)
        require_spread("std", std, default=False)
        require_key(key)
        of_p, of_keys, of_queries = jax.random.split(key, 3)
        shape = (layers, heads, dim + 1)
        columns = dim + 1 if rank is None else rank
        p, keys = (std * jax.random.normal(k, (*shape, c)) for k, c in ((of_p, dim + 1), (of_keys, columns)))
        queries = None if rank is None else std * jax.random.normal(of_queries, (*shape, rank))
        return cls(p, keys, queries, **fields)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.p.shape[0]

    @property
    def dim(self) -> int:
        """Input dimension d."""
        return self.p.shape[2] - 1

    @property
    def q(self) -> Float[Array, "layer head token token"]:
        """The matrix Q of each head."""
        return self.keys if self.queries is None else self.keys @ jnp.swapaxes(self.queries, -1, -2)

    def one_head(self) -> LinearAttention:
        """A network with one head as :class:`LinearAttention`, with the same function.

        Raises:
            InputError: There are more heads.
        """
        if self.p.shape[1] != 1:
            raise expected("heads", "1", self.p.shape[1], "a sum of heads is not a single pair of matrices")
        fields = {name: getattr(self, name) for name in ("sign", "answers", "normalised", "causal", "query_is_key")}
        return LinearAttention(self.p[:, 0], self.q[:, 0], **fields)

    def trace(self, prompt: RegressionPrompt, edit: Edit | None = None) -> Trace:
        """Predict, and record the named activations."""
        record = Recorder(edit)
        z, weight, read = token_sums(self, prompt)
        z = record("tokens", z)
        for i in range(self.layers):
            scores = jax.vmap(lambda q, z=z: product(z, q) @ jnp.swapaxes(z, -1, -2))(self.q[i])
            scores = record(f"layer{i}.scores", scores)
            sums = jax.vmap(lambda s, z=z: (weight * jnp.swapaxes(s, -1, -2)) @ z)(scores)
            heads = record(f"layer{i}.heads", jax.vmap(lambda s, p: product(s, p.T))(sums, self.p[i]))
            z = record(f"layer{i}", z + record(f"layer{i}.update", jnp.sum(heads, axis=0)))
        return Trace(record("prediction", self.sign * z[read]), record.activations)
