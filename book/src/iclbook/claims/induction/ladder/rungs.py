"""Models between the landscape of an induction head and a network, and gradient descent on their losses."""

import functools
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icllab.core.prompt import ItemLabelPrompt
from icllab.core.protocols import AbstractModel, Edit, Trace
from icllab.models.interventions.recording import Recorder
from icllab.models.networks.attention import masked_softmax


def strengths_loss(w: Float[Array, "3"], kind: str, pairs: int, labels: int) -> Float[Array, ""]:
    r"""Mean loss over queries of a head with strengths :math:`\beta, \alpha, \xi` on orthogonal items and labels.

    ``"even"``: a label sees N + 1 tokens and nothing but its own item counts. ``"causal"``: every token sees itself and
    all before it, stores a part of each, and positions differ.
    """
    tokens, query = 2 * pairs + 1, np.arange(pairs)
    if kind == "even":
        weight = jax.nn.softmax(jnp.zeros(pairs + 1).at[0].set(w[0]))[0]
        buffers = jnp.zeros((pairs, tokens)).at[query, 2 * query + 1].set(weight)
    else:
        sees = jnp.asarray(np.tril(np.ones((tokens, tokens), bool)))
        pattern = jax.nn.softmax(jnp.where(sees, w[0] * jnp.asarray(np.eye(tokens, k=-1), w.dtype), -jnp.inf), axis=1)
        matches = np.zeros((pairs, tokens))
        matches[query, 2 * query] = matches[:, -1] = 1.0
        buffers = jnp.asarray(matches, w.dtype) @ pattern.T
    attention = jax.nn.softmax(w[1] * buffers, axis=1)
    logits = jnp.pad(w[2] * attention[:, 1::2], ((0, 0), (0, 1)))
    counts = jnp.append(jnp.ones(pairs), float(labels - pairs))
    return jnp.mean(jax.nn.logsumexp(logits, axis=1, b=counts[None]) - jnp.diagonal(logits))


@functools.partial(jax.jit, static_argnames=("kind", "pairs", "labels", "records", "between"))
def descended(start: Array, rate: Any, *, kind: str, pairs: int, labels: int, records: int, between: int) -> Array:
    """Losses along gradient descent, at the start and after every ``between`` steps."""

    def step(w: Array, _: None) -> tuple[Array, None]:
        return w - rate * jax.grad(strengths_loss)(w, kind, pairs, labels), None

    def record(w: Array, _: None) -> tuple[Array, Array]:
        later, _ = jax.lax.scan(step, w, None, length=between)
        return later, strengths_loss(w, kind, pairs, labels)

    return jax.lax.scan(record, start, None, length=records)[1]


class SeparateBuffers(AbstractModel):
    r"""Two attention layers of matrices, with buffers kept apart from the token's content, and a linear reader.

    .. math:: m_i = \sum_{j\le i}\operatorname{softmax}_{j\le i}\langle x_iW_1, x_j\rangle\,x_j, \qquad
              w = \sum_j\operatorname{softmax}_j\bigl(\langle x_qW_2, x_j\rangle
              + \langle x_qW_3, m_j\rangle\bigr)\,x_j, \qquad f = (x_q, w)\,U

    Nothing is added to a residual stream, there are no values and no hidden layers. :math:`W` are products of two
    matrices that are drawn from :math:`N(0, 1/D)`, as the network's queries and keys, U from :math:`N(0, 1/2d)`.

    Activations: ``attention1`` [T, T], ``buffer`` [T, d], ``attention2`` [T], ``update2`` [d], ``logits`` [1, L].
    """

    queries: Float[Array, "3 width width"]
    keys: Float[Array, "3 width width"]
    readout: Float[Array, "double label"]

    @classmethod
    def from_task(cls, task: Any, *, key: Array) -> "SeparateBuffers":
        """Build the model for the sizes of a task."""
        of_queries, of_keys, of_readout = jax.random.split(key, 3)
        width = task.position_dim + task.dim
        matrices = [
            jax.random.normal(matrix_key, (3, width, width)) * task.dim**-0.5 for matrix_key in (of_queries, of_keys)
        ]
        return cls(*matrices, jax.random.normal(of_readout, (2 * width, task.labels)) * (2 * width) ** -0.5)  # pyright: ignore[reportCallIssue]

    @property
    def positions(self) -> Literal["every", "last"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """``"last"``: the query after the whole context."""
        return "last"

    def trace(self, prompt: ItemLabelPrompt, edit: Edit | None = None) -> Trace:
        """Predict, and record the named activations."""
        record, x = Recorder(edit), prompt.tokens()
        sees = jnp.asarray(np.tril(np.ones((len(x), len(x)), bool)))
        scores = (x @ self.queries[0]) @ (x @ self.keys[0]).T
        buffer = record("buffer", record("attention1", masked_softmax(scores, sees)) @ x)
        scores = x @ (self.keys[1] @ (x[-1] @ self.queries[1])) + buffer @ (self.keys[2] @ (x[-1] @ self.queries[2]))
        update = record("update2", record("attention2", jax.nn.softmax(scores)) @ x)
        logits = record("logits", (jnp.concatenate([x[-1], update]) @ self.readout)[None])
        return Trace(logits, record.activations)


@eqx.filter_jit
def losses(params: Any, static: Any, task: Any, batch: Any) -> Float[Array, " step"]:
    """Mean losses on stacked prompts for the parameters of several steps."""

    def at(step: Any) -> Array:
        network = eqx.combine(step, static)
        return jnp.mean(jax.vmap(lambda prompt: task.loss(network.trace(prompt).prediction, prompt)[-1])(batch))

    return jax.lax.map(at, params)
