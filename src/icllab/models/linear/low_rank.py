r"""Attention heads from a query to the labels of its context, with keys and queries of low rank, or merged.

.. math:: \hat y = \sum_h v_h\sum_{i\le n}\alpha^{(h)}_i\,y_i, \qquad
          \alpha^{(h)}_i = \tfrac1n s^{(h)}_i \;\text{(linear)}, \quad
          \alpha^{(h)} = \mathrm{softmax}\,s^{(h)}, \qquad s^{(h)}_i = (K_hx_i)^\top Q_hx_{n+1}

The linear one is :class:`~icllab.models.linear.multi_head.MultiHeadLinearAttention` of one layer with zeros in the rows
of P that write inputs, in its row of labels but for :math:`v_h`, and in what keys and queries read of labels. Gradient
flow of the population's loss leaves these zeros where they are: under :math:`y\to-y` the loss is even in them.
"""

from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected, require_flag, require_integer, require_key
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractModel, Edit, Trace
from icllab.models.interventions.recording import Recorder
from icllab.models.networks.dense import require_spread


class LowRankAttention(AbstractModel):
    r"""The last answer of H heads, each with one value, and keys and queries of R rows.

    Activations: ``moment``, the mean of labels times inputs, or for a softmax ``scores`` and ``pattern`` of each head
    and example; ``heads``, what each adds; ``prediction``.

    Attributes:
        values: :math:`v_h`.
        keys: :math:`K_h`; or, without ``queries``, the whole matrix :math:`K_h^\top Q_h`.
        queries: :math:`Q_h`; None for heads of one merged matrix.
        softmax: Whether attention is a softmax over the examples, or linear.

    Source: [Zhang25].
    """

    positions: ClassVar[Literal["every", "last"]] = "last"

    values: Float[Array, " head"]
    keys: Float[Array, "head row dim"]
    queries: Float[Array, "head row dim"] | None
    softmax: bool = eqx.field(static=True, kw_only=True)

    def __check_init__(self) -> None:
        require_flag("softmax", self.softmax)
        heads, keys = jnp.shape(self.values), jnp.shape(self.keys)
        if keys and (len(keys) != 3 or keys[:1] != heads):
            raise expected("keys", "an array [head, row, dim] with a value for each head", (heads, keys))
        if self.queries is None and keys and keys[1] != keys[2]:
            raise expected("keys", "square matrices, or queries with them", keys)
        if self.queries is not None and jnp.shape(self.queries) != keys:
            raise expected("queries", "an array of the shape of keys", jnp.shape(self.queries))

    @classmethod
    def init(
        cls, *, dim: int, heads: int, rank: int | None, std: float, softmax: bool, key: PRNGKeyArray
    ) -> "LowRankAttention":
        """Draw normal entries of deviation ``std``; keys and queries have rank ``rank``, or are merged if None."""
        for name, value in (("dim", dim), ("heads", heads), ("rank", dim if rank is None else rank)):
            require_integer(name, value)
        require_spread("std", std, default=False)
        require_key(key)
        shape = (heads, dim if rank is None else rank, dim)
        of_values, of_keys, of_queries = jax.random.split(key, 3)
        keys, queries = (std * jax.random.normal(of, shape) for of in (of_keys, of_queries))
        values = std * jax.random.normal(of_values, (heads,))
        return cls(values, keys, None if rank is None else queries, softmax=softmax)

    def matrices(self) -> Float[Array, "head dim dim"]:
        r"""The matrix :math:`K_h^\top Q_h` of each head."""
        return self.keys if self.queries is None else jnp.swapaxes(self.keys, 1, 2) @ self.queries

    def trace(self, prompt: RegressionPrompt, edit: Edit | None = None) -> Trace:
        """Predict, and record the named activations."""
        record = Recorder(edit)
        x, y = prompt.x[:-1], prompt.y[:-1]
        if self.softmax:
            scores = record("scores", (self.matrices() @ prompt.x[-1]) @ x.T)
            readings = record("pattern", jax.nn.softmax(scores, axis=1)) @ y
        else:  # labels first: no array of heads and examples
            moment = record("moment", y @ x / max(len(y), 1))
            keys, query = self.keys, prompt.x[-1]
            if self.queries is None:
                readings = (moment @ keys) @ query
            else:
                readings = jnp.sum((keys @ moment) * (self.queries @ query), axis=1)
        heads = record("heads", self.values * readings)
        return Trace(record("prediction", jnp.sum(heads)[None]), record.activations)
