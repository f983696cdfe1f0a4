r"""Functions by examples: a context shows a function of a pool at some items, and the label of one item is asked for.

.. math:: {=}, \dots, {=},\; x_1, f(x_1), \dots, x_n, f(x_n),\; x_q \;\mapsto\; f(x_q)

Items :math:`x_i` are different, drawn uniformly from V; prompts of fewer than N pairs begin with ``=``. The query is
one of the items shown with the probability p, else another one. The context answers the first kind of query, and only
knowledge of the pool the second.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from iclbook.claims.routing._transformers import trajectory
from icllab.core.prompt import TokenPrompt
from icllab.tasks.sequences import AbstractTokens


class ShownFunctions(AbstractTokens):
    """Prompts of functions of a pool. Tokens 0 to V - 1 are items, then come labels, the last is ``=``.

    Attributes:
        table: The labels of each function; None: every prompt has a function of its own, of uniform labels.
        frequencies: How often each function of the pool comes; a leaf.
        shown: p; a leaf.
        lengths: Numbers of pairs n, ascending, equally often; the last is N (static).
        items: V, more than N (static).
        labels: Number of labels (static).
        edited: Whether the label of the query is another than the function's, in the context too (static).
        shuffled: Whether the label that is asked for is drawn uniformly, whatever the context shows (static).
    """

    table: Int[Array, "function item"] | None
    frequencies: Float[Array, " function"]
    shown: Float[Array, ""]
    lengths: tuple[int, ...] = eqx.field(static=True)
    items: int = eqx.field(static=True)
    labels: int = eqx.field(static=True)
    edited: bool = eqx.field(static=True, default=False)
    shuffled: bool = eqx.field(static=True, default=False)

    @property
    def pairs(self) -> int:
        """N."""
        return self.lengths[-1]

    @property
    def vocabulary(self) -> int:
        """Items, labels and the sign ``=``."""
        return self.items + self.labels + 1

    @property
    def tokens(self) -> int:
        """2N + 2."""
        return 2 * self.pairs + 2

    def sample(self, *, key: PRNGKeyArray) -> TokenPrompt:
        """One sequence."""
        of_numbers, of_items, of_labels = jax.random.split(key, 3)
        u = jax.random.uniform(of_numbers, (6,), self.frequencies.dtype)
        f = self._function(u[0], of_labels)
        n = jnp.asarray(self.lengths, jnp.int32)[_whole(u[1], len(self.lengths))]
        order = jax.random.permutation(of_items, self.items).astype(jnp.int32)
        inside, outside = _whole(u[3], n), n + _whole(u[3], self.items - n)
        query = order[jnp.where(u[2] < self.shown.astype(u.dtype), inside, outside)]
        if self.edited:
            f = f.at[query].set((f[query] + 1 + _whole(u[4], self.labels - 1)) % self.labels)
        pairs = jnp.stack([order[: self.pairs], self.items + f[order[: self.pairs]]], axis=1).reshape(-1)
        before = 2 * (self.pairs - n)
        context = jnp.where(jnp.arange(len(pairs)) < before, self.vocabulary - 1, jnp.roll(pairs, before))
        right = _whole(u[5], self.labels) if self.shuffled else f[query]
        return TokenPrompt(jnp.concatenate([context, jnp.stack([query, self.items + right])]))

    def _function(self, u: Array, key: PRNGKeyArray) -> Int[Array, " item"]:
        if self.table is None:
            return jax.random.randint(key, (self.items,), 0, self.labels, jnp.int32)
        below = jnp.cumsum(self.frequencies)
        return self.table[jnp.minimum(jnp.sum(below <= u * below[-1]), len(below) - 1)]


def _whole(u: Array, count: Any) -> Int[Array, ""]:
    """An integer below ``count``, of a number uniform on [0, 1)."""
    return jnp.minimum((jnp.asarray(count, u.dtype) * u).astype(jnp.int32), count - 1)


def accuracies(run: Any, prompts: TokenPrompt) -> Float[np.ndarray, "step test"]:
    """Accuracy of a run's only network on prompts [test, prompt] after each kept step."""
    return np.asarray(_accuracies(*trajectory(run), prompts), float)


@eqx.filter_jit
def _accuracies(params: Any, static: Any, prompts: TokenPrompt) -> Float[Array, "step test"]:
    def at(step: Any) -> Array:
        network = eqx.combine(step, static)

        def correct(prompt: TokenPrompt) -> Array:
            return jnp.argmax(network(prompt)[-1]) == prompt.tokens[-1]

        return jnp.mean(jax.vmap(jax.vmap(correct))(prompts), axis=1)

    return jax.lax.map(at, params)


def recalled(task: ShownFunctions, prompts: TokenPrompt) -> float:
    """The accuracy on stacked prompts of N pairs of recall, the best answer to those that a function of the pool made.

    Of the functions that agree with the most pairs, weighted by their frequencies, it takes the label that most have.
    """
    assert task.table is not None
    tokens, table, weights = np.asarray(prompts.tokens), np.asarray(task.table), np.asarray(task.frequencies, float)
    right = []
    for row in tokens:
        items, labels = row[:-2:2], row[1:-2:2] - task.items
        matches = np.where(weights > 0, (table[:, items] == labels).sum(axis=1), -1)
        best = matches == matches.max()
        votes = np.bincount(table[best, row[-2]], weights=weights[best], minlength=task.labels)
        right.append(votes.argmax() == row[-1] - task.items)
    return float(np.mean(right))
