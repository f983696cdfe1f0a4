r"""The exponential of a product as an average of products, which turns a context into a finite sum.

.. math:: e^{q \cdot k} = E_{w \sim N(0, I)}\big[ e^{w \cdot q - |q|^2/2}\, e^{w \cdot k - |k|^2/2} \big]
          \approx \phi(q) \cdot \phi(k), \qquad \phi_r(x) = \frac1{\sqrt m} e^{w_r \cdot x - |x|^2/2}

The features are positive, so that no attention is. With them the two sums of softmax attention over a context,

.. math:: \sum_t e^{q \cdot k_t} v_t \approx S^\top \phi(q), \qquad \sum_t e^{q \cdot k_t} \approx z \cdot \phi(q),
          \qquad S = \sum_t \phi(k_t) v_t^\top, \quad z = \sum_t \phi(k_t),

hold all that the context has to say in m (d + 1) numbers, whatever its length: weights. The sums of two contexts add.

Source: [Choromanski21].
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from icllab.core.errors import require_integer, require_key


class PositiveFeatures(eqx.Module):
    r""":math:`\phi`.

    Attributes:
        directions: :math:`w_r`.
    """

    directions: Float[Array, "feature dim"]

    @classmethod
    def init(cls, features: int, *, dim: int, key: PRNGKeyArray) -> "PositiveFeatures":
        """Draw independent directions from N(0, I)."""
        require_integer("features", features)
        require_integer("dim", dim)
        require_key(key)
        return cls(jax.random.normal(key, (features, dim)))

    def __call__(self, x: Float[Array, "row dim"]) -> Float[Array, "row feature"]:
        """Features of every row."""
        exponent = x @ self.directions.T - jnp.sum(x**2, axis=1, keepdims=True) / 2
        return jnp.exp(exponent) * len(self.directions) ** -0.5

    def relative_variance(
        self, queries: Float[Array, "query dim"], keys: Float[Array, "key dim"]
    ) -> Float[Array, "query key"]:
        r"""Variance of :math:`\phi(q) \cdot \phi(k)` divided by :math:`e^{2 q \cdot k}`.

        .. math:: \frac{e^{|q + k|^2} - 1}{m}

        The error falls as one over the root of m, and grows exponentially with the size of queries and keys.

        Derived: docs/contexts-to-weights.md, Random features.
        """
        squares = jnp.sum((queries[:, None] + keys[None]) ** 2, axis=2)
        return jnp.expm1(squares) / len(self.directions)


class ContextSums(eqx.Module):
    """A context of one attention head as additional weights, whose number does not depend on the context's length.

    Attributes:
        features: The features of queries and keys.
        value_sum: S.
        normaliser: z.
    """

    features: PositiveFeatures
    value_sum: Float[Array, "feature width"]
    normaliser: Float[Array, " feature"]

    @classmethod
    def from_tokens(
        cls, features: PositiveFeatures, keys: Float[Array, "token dim"], values: Float[Array, "token width"]
    ) -> "ContextSums":
        """The sums over the tokens of a context."""
        key_features = features(keys)
        return cls(features, key_features.T @ values, jnp.sum(key_features, axis=0))

    def extended(self, keys: Float[Array, "token dim"], values: Float[Array, "token width"]) -> "ContextSums":
        """The sums of this context followed by another context."""
        extension = ContextSums.from_tokens(self.features, keys, values)
        return ContextSums(self.features, self.value_sum + extension.value_sum, self.normaliser + extension.normaliser)

    def attend(
        self,
        queries: Float[Array, "query dim"],
        keys: Float[Array, "own dim"],
        values: Float[Array, "own width"],
        visible: Bool[Array, "query own"],
    ) -> Float[Array, "query width"]:
        """Softmax attention over the context by its sums, and exactly over the tokens that follow it.

        Args:
            queries: Queries times the scale.
            keys: Keys of the tokens that follow the context.
            values: Values of these.
            visible: Which of these a query sees.
        """
        query_features = self.features(queries)
        weights = jnp.where(visible, jnp.exp(queries @ keys.T), 0)
        total = query_features @ self.normaliser + jnp.sum(weights, axis=1)
        return (query_features @ self.value_sum + weights @ values) / total[:, None]
