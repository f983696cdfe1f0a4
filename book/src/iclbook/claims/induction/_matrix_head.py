r"""An induction head whose three strengths are matrices, each a single matrix or a product of two.

.. math:: a_{ij} = a\bigl(x_iAx_j^\top\bigr)_{j\le i}, \quad v_j = \sum_ka_{jk}x_k, \qquad
          b_j = a\bigl(x_qBv_j^\top\bigr), \quad f = \sum_jb_jc_jC

with tokens :math:`x = [e; c]` of position and content; a is softmax, or attention of first order, (1 + score) over the
number of tokens seen. What the first layer collects is kept apart from the tokens, and the readout is linear.
"""

from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.core.protocols import AbstractPredictor, AbstractTask
from icllab.tasks import ItemLabel

SOFTMAX = "softmax"


class MatrixHead(AbstractPredictor):
    """The head: the factors of each matrix, and its kind of attention."""

    previous: tuple[Any, ...]
    match: tuple[Any, ...]
    readout: tuple[Any, ...]
    attention: str = eqx.field(static=True)
    positions: ClassVar[Literal["every", "last"]] = "last"

    @classmethod
    def init(cls, task: ItemLabel, *, attention: str, factors: int, scale: Any, key: Any) -> "MatrixHead":
        r"""Two factors with entries from :math:`N(0, \sigma^2/n)`, n their rows, multiplied out for a single matrix."""
        sizes = [(task.width, task.width), (task.width, task.width), (task.dim, task.labels)]
        matrices = []
        for i, (rows, columns) in enumerate(sizes):
            first_key, second_key = jax.random.split(jax.random.fold_in(key, i))
            pair = (jax.random.normal(first_key, (rows, rows)), jax.random.normal(second_key, (rows, columns)))
            pair = tuple(scale * factor / rows**0.5 for factor in pair)
            matrices.append(pair if factors == 2 else (pair[0] @ pair[1],))
        return cls(*matrices, attention)  # pyright: ignore[reportCallIssue]

    def __call__(self, prompt: Any) -> Any:
        """The logits of the query's label."""
        return self.pattern(prompt) @ prompt.content() @ multiplied(self.readout)

    def pattern(self, prompt: Any) -> Any:
        """The attention of the query to all tokens, [1, token]."""
        x = prompt.tokens()
        first, second = multiplied(self.previous), multiplied(self.match)
        visible = np.tri(len(x), dtype=bool)
        buffer = self.attends(x @ first @ x.T, visible) @ x
        return self.attends((buffer @ (second.T @ x[-1]))[None], visible[-1:])

    def attends(self, scores: Any, visible: np.ndarray) -> Any:
        """The attention pattern from scores, among the visible tokens."""
        if self.attention == SOFTMAX:
            return jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=1)
        return (1 + scores) * jnp.asarray(visible / visible.sum(axis=1, keepdims=True), scores.dtype)


class SquaredError(AbstractTask):
    """A task of items and labels whose loss is half the squared distance of the logits from 1 and 0."""

    task: ItemLabel

    def sample(self, *, key: Any) -> Any:
        """Sample a prompt."""
        return self.task.sample(key=key)

    def sample_many(self, count: int, *, key: Any) -> Any:
        """Sample prompts, stacked."""
        return self.task.sample_many(count, key=key)

    def loss(self, prediction: Any, prompt: Any) -> Any:
        """Half the squared error at the query."""
        right = jax.nn.one_hot(prompt.labels[-1], prediction.shape[1], dtype=prediction.dtype)
        return jnp.sum((prediction - right[None]) ** 2, axis=1) / 2


def multiplied(factors: tuple[Any, ...]) -> Any:
    """The product of the factors."""
    return factors[0] if len(factors) == 1 else factors[0] @ factors[1]
