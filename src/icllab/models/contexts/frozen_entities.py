r"""An attention head whose context entities are frozen, and three reductions that remove them.

.. math:: E' = E + V\, \mathrm{softmax}(K^\top Q), \qquad
          \Delta e_i = \sum_t p_{it} v_t, \qquad p_{it} \propto e^{s_{it}}, \quad s_{it} = q_i \cdot k_t

The sum over t has frozen entities F, of the context, and unfrozen ones U, of what follows. In a causal transformer the
entities of a context do not depend on what follows, so that they are frozen in every layer. A *reduction* is an
attention over U alone that is to give the same updates; each comes with a bound on its error
:math:`|\Delta e_i - \Delta \tilde e_i|`:

1. *The context is irrelevant*: F is left out. The error is :math:`p_F |\bar v_F - \bar v_U|`, with the attention
   :math:`p_F` on frozen entities and the mean values :math:`\bar v` of the two groups.
2. *Values are shared*: every frozen t is counted with the unfrozen a(t), whose score becomes the log-sum-exp of its
   group. The error is at most :math:`\sum_{t \in F} p_t |v_t - v_{a(t)}|`.
3. *A clear winner*: the log-sum-exp of each group becomes its maximum, which is the score of a modified key. Let D be
   the spread over groups of their difference. This changes the attention by at most :math:`\tanh(D/4)` in total
   variation, and the update by at most the diameter of the unfrozen values times that.

Derived: docs/contexts-to-weights.md, Frozen entities.
"""

from numbers import Integral
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from icllab.core.errors import expected, require_integer
from icllab.core.kernels import SOFTMAX
from icllab.models.networks.transformer import Transformer


class Reduction(eqx.Module):
    """Attention over the unfrozen entities that replaces attention over all entities.

    Attributes:
        scores: Scores of the unfrozen entities; minus infinity for those that a query does not see.
        updates: What every query collects.
        bound: Norm of the difference to the update of the whole attention, at most.
    """

    scores: Float[Array, "query unfrozen"]
    updates: Float[Array, "query width"]
    bound: Float[Array, " query"]

    @property
    def pattern(self) -> Float[Array, "query unfrozen"]:
        """Attention of every query."""
        return jax.nn.softmax(self.scores, axis=1)


class Winners(Reduction):
    """The reduction to winners, with the winners and the variation in its bound.

    Attributes:
        winners: The entity with the largest score of each group; those of the context come first.
        variation: Total variation between the attention by maxima and the one by log-sum-exp, at most.
    """

    winners: Int[Array, "query unfrozen"]
    variation: Float[Array, " query"]


class FrozenEntities(eqx.Module):
    """Scores and values of one head; the first ``frozen`` tokens are the context.

    Attributes:
        entities: What enters the attention, unfrozen tokens only: keys are linear in it.
        queries: Queries times the scale, of the unfrozen tokens that have one.
        keys: Keys of all tokens.
        values: Values of all tokens, mapped to the residual stream.
        visible: Whether the query sees the token.
        frozen: Number of frozen tokens.
    """

    entities: Float[Array, "unfrozen entity"]
    queries: Float[Array, "query dim"]
    keys: Float[Array, "token dim"]
    values: Float[Array, "token width"]
    visible: Bool[Array, "query token"]
    frozen: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if (
            isinstance(self.frozen, bool)
            or not isinstance(self.frozen, Integral)
            or not 0 < self.frozen < len(self.keys)
        ):
            raise expected("frozen", f"an integer from 1 to {len(self.keys) - 1}", self.frozen)

    @classmethod
    def heads(cls, model: Transformer, prompt: Any, *, frozen: int, layer: int) -> tuple["FrozenEntities", ...]:
        """The heads of a transformer's layer on a prompt; the first ``frozen`` tokens of the prompt are the context.

        Queries are those of unfrozen tokens that see the whole context; in the last layer, of those that are read.

        Raises:
            InputError: The attention is no causal softmax of products, or turns keys by their positions.
        """
        require_integer("frozen", frozen)
        if isinstance(layer, bool) or not isinstance(layer, Integral) or not 0 <= layer < len(model.blocks):
            raise expected("layer", f"an integer from 0 to {len(model.blocks) - 1}", layer)
        attention, block = model.blocks[layer].attention, model.blocks[layer]
        if attention.weighting != SOFTMAX or attention.similarity is not None or attention.normalisation != "none":
            raise expected("model", "softmax attention of products, without another normalisation", attention.weighting)
        for name in ("window", "score_cap", "qk_norms"):
            if getattr(attention, name) is not None:
                raise expected(name, "None, scores that are products of all queries and keys", getattr(attention, name))
        if block.norm in ("output", "both"):
            raise expected("norm", "an output that is added as it is", block.norm)
        if attention.rotary:
            raise expected(
                "positions",
                "a code that is added to the token",
                "rotary",
                "the map to rotated keys depends on the position",
            )
        layout = model.embedding.arrangement.layout(prompt.positions)
        if layout.visible[:frozen, frozen:].any():
            raise expected("model", "a context that sees no later tokens", "a context that sees them", "causal=True")
        activations, name = model.trace(prompt).activations, f"block{layer}.attention"
        stream = activations[f"block{layer - 1}" if layer else "embedding"]
        stream = block.read(0, stream)
        queries, keys, values = (activations[f"{name}.{part}"] for part in ("queries", "keys", "values"))
        rows = np.arange(len(layout.visible))
        rows = rows[layout.read] if len(queries) < len(rows) else rows
        is_query = (rows >= frozen) & layout.visible[rows, :frozen].all(axis=1)
        visible = layout.visible[rows[is_query], : layout.keys]
        if not visible[:, frozen:].any(axis=1).all():
            hint = "query_is_key=True"
            raise expected(
                "model", "queries that each see an unfrozen token", "a query that sees only frozen tokens", hint
            )
        return tuple(
            cls(
                entities=stream[frozen : layout.keys],
                queries=queries[is_query, head] * attention.scale,
                keys=keys[:, head // attention.group],
                values=values[:, head // attention.group] @ output,
                visible=jnp.asarray(visible),
                frozen=frozen,
            )
            for head, output in enumerate(attention.output)
        )

    @property
    def scores(self) -> Float[Array, "query token"]:
        """Products of queries and keys; minus infinity if a query does not see the token."""
        return jnp.where(self.visible, self.queries @ self.keys.T, -jnp.inf)

    @property
    def pattern(self) -> Float[Array, "query token"]:
        """Attention over all tokens."""
        return jax.nn.softmax(self.scores, axis=1)

    @property
    def updates(self) -> Float[Array, "query width"]:
        """The weighted sum over all tokens for each query."""
        return self.pattern @ self.values

    @property
    def mass(self) -> Float[Array, " query"]:
        """:math:`p_F`, the attention on frozen entities."""
        return jnp.sum(self.pattern[:, : self.frozen], axis=1)

    def without(self) -> Reduction:
        """Reduction 1, which drops the frozen entities; its bound is its error."""
        scores, mass = self.scores[:, self.frozen :], self.mass
        updates = jax.nn.softmax(scores, axis=1) @ self.values[self.frozen :]
        of_frozen = jax.nn.softmax(self.scores[:, : self.frozen], axis=1) @ self.values[: self.frozen]
        return Reduction(scores, updates, mass * jnp.linalg.norm(of_frozen - updates, axis=1))

    def nearest(self) -> Int[Array, "query frozen"]:
        """a(t): the visible unfrozen entity whose value is nearest to the frozen entity's."""
        distance = _distances(self.values[: self.frozen], self.values[self.frozen :])
        visible = self.visible[:, None, self.frozen :]
        return jnp.argmin(jnp.where(visible, distance[None], jnp.inf), axis=2)

    def shared(self, groups: Int[Array, "query frozen"] | None = None) -> Reduction:
        """Reduction 2, which shares values. ``groups``: a(t) for each query, from 0; None: :meth:`nearest`."""
        groups = self.nearest() if groups is None else groups
        scores = jax.nn.logsumexp(self._grouped(groups), axis=1)
        values = self.values[self.frozen :]
        distances = jnp.linalg.norm(self.values[None, : self.frozen] - values[groups], axis=2)
        bound = jnp.sum(self.pattern[:, : self.frozen] * distances, axis=1)
        return Reduction(scores, jax.nn.softmax(scores, axis=1) @ values, bound)

    def winners(self, groups: Int[Array, "query frozen"] | None = None) -> Winners:
        """Reduction 3, with groups as in :meth:`shared`; its bound includes the error of sharing values."""
        groups = self.nearest() if groups is None else groups
        members, reduction = self._grouped(groups), self.shared(groups)
        best, first = jnp.max(members, axis=1), jnp.argmax(members, axis=1)
        values = self.values[self.frozen :]
        visible = jnp.isfinite(best)
        gap = jnp.where(visible, reduction.scores - best, jnp.nan)
        variation = jnp.tanh((jnp.nanmax(gap, axis=1) - jnp.nanmin(gap, axis=1)) / 4)
        pair = visible[:, :, None] & visible[:, None, :]
        diameter = jnp.max(jnp.where(pair, _distances(values, values)[None], 0), axis=(1, 2))
        itself = jnp.broadcast_to(self.frozen + jnp.arange(len(values)), first.shape)
        return Winners(
            scores=best,
            updates=jax.nn.softmax(best, axis=1) @ values,
            bound=reduction.bound + variation * diameter,
            winners=jnp.where(first < self.frozen, first, itself),
            variation=variation,
        )

    def _grouped(self, groups: Array) -> Array:
        """Scores of the members of each group, [query, frozen + 1, unfrozen]; the last row is the unfrozen entity."""
        scores = self.scores
        member = groups[:, :, None] == jnp.arange(len(self.keys) - self.frozen)[None, None]
        of_frozen = jnp.where(member, scores[:, : self.frozen, None], -jnp.inf)
        return jnp.concatenate([of_frozen, scores[:, None, self.frozen :]], axis=1)


def singular_values_within(rows: Float[Array, "row dim"], span: Float[Array, "other dim"]) -> Float[Array, " value"]:
    """Singular values of rows projected on a span: the number of their directions that the span contains.

    Queries feel of a context's keys what lies in the span of the queries; values that lie in the span of the unfrozen
    ones can be had from these. The sum of squares, over that of all of ``rows``, is the fraction within the span.
    """
    _, sizes, basis = jnp.linalg.svd(span, full_matrices=False)
    present = sizes > jnp.max(sizes) * max(span.shape) * float(jnp.finfo(sizes.dtype).eps)
    return jnp.linalg.svd(rows @ jnp.where(present[:, None], basis, 0).T, compute_uv=False)


def merge_errors(
    pattern: Float[np.ndarray, "query token"], values: Float[np.ndarray, "token width"]
) -> Float[np.ndarray, " groups"]:
    r"""Relative errors of all updates after entities are merged in pairs; entry k - 1 is for k groups.

    A group of entities counts as one, with the sum :math:`p_a` of their attention by every query and one value
    :math:`v_a`. The best value for two groups lies between theirs, and changes the updates by

    .. math:: E_{ab}^2 = |v_a - v_b|^2\,\frac{|p_a|^2|p_b|^2 - (p_a\cdot p_b)^2}{|p_a + p_b|^2},

    which is zero if the values are equal, or if all queries attend to both in one proportion. Every step merges the
    pair with the smallest change. Attention to k groups has rank k, so that the singular values of the updates beyond
    the k-th bound each error from below.

    Derived: docs/contexts-to-weights.md, Frozen entities.
    """
    p, v = np.array(pattern, float).T, np.array(values, float)
    updates, errors = p.T @ v, [0.0]
    while len(p) > 1:
        products, gaps = p @ p.T, ((v[:, None] - v[None]) ** 2).sum(axis=2)
        squares = np.diag(products)
        sums = squares[:, None] + squares[None] + 2 * products
        change = gaps * (squares[:, None] * squares[None] - products**2) / np.where(sums > 0, sums, 1)
        a, b = np.unravel_index(np.argmin(change + np.diag(np.full(len(p), np.inf))), change.shape)
        share = (squares[a] + products[a, b]) / sums[a, b] if sums[a, b] > 0 else 0.5
        p[a], v[a] = p[a] + p[b], share * v[a] + (1 - share) * v[b]
        p, v = np.delete(p, b, axis=0), np.delete(v, b, axis=0)
        errors.append(float(np.linalg.norm(updates - p.T @ v) / np.linalg.norm(updates)))
    return np.array(errors[::-1])


def _distances(rows: Array, columns: Array) -> Array:
    return jnp.linalg.norm(rows[:, None] - columns[None], axis=2)
