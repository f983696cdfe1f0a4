"""A network that is trained on the examples of each prompt, from one initialisation."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from icllab.algorithms.least_squares import require_regression
from icllab.core.errors import expected, kind_of, require_instance, require_integer, require_key
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractPredictor


class TrainedNetwork(AbstractPredictor):
    r"""The answer of a network after steps of an optimizer on the examples seen, for every prefix from the start.

    .. math:: F(\theta) = \frac{1}{|B|} \sum_{j \in B} (f_\theta(x_j) - y_j)^2, \qquad B \subseteq \{0, \dots, i - 1\}

    0 without an example. The two-layer network of Garg et al. starts as PyTorch's linear layers do, and is::

        TrainedNetwork(eqx.nn.MLP(20, "scalar", 100, 1, key=k), optax.adam(5e-3), steps=100, batch=100, key=key)

    They draw an initialisation for each prompt and prefix, here it is one. Their loss is the mean over a batch of
    prompts too, which divides the rate of SGD by their number. Their figures divide squared errors by d, of trees by 1.

    Attributes:
        network: A function of one input that returns a number; its arrays are leaves, which ``icl.fit`` learns.
        optimizer: An optax optimizer (static).
        steps: Number of steps (static).
        batch: Examples of a step, drawn without replacement (static); all while there are fewer; None: all.
        key: Key of the batches, the same for all prompts; None without ``batch``.

    Source: [Garg22].
    """

    network: Any
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    steps: int = eqx.field(static=True, kw_only=True)
    batch: int | None = eqx.field(static=True, default=None, kw_only=True)
    key: PRNGKeyArray | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        if isinstance(self.network, type) or not callable(self.network):
            raise expected("network", "a function of one input, such as eqx.nn.MLP(...)", kind_of(self.network))
        require_instance("optimizer", self.optimizer, optax.GradientTransformation, "an optax optimizer")
        require_integer("steps", self.steps)
        if self.batch is not None:
            require_integer("batch", self.batch)
            require_key(self.key)

    def __call__(self, prompt: RegressionPrompt) -> Float[Array, " position"]:
        """The answers of the networks trained on every prefix."""
        require_regression(prompt)
        with jax.default_matmul_precision("float32"):
            return jax.vmap(lambda i: self._answer(prompt, i))(jnp.arange(prompt.positions))

    def _answer(self, prompt: RegressionPrompt, i: Int[Array, ""]) -> Float[Array, ""]:
        start, static = eqx.partition(self.network, eqx.is_inexact_array)

        def values(parameters: Any, x: Float[Array, "row dim"]) -> Float[Array, " row"]:
            return jax.vmap(eqx.combine(parameters, static))(x).reshape(len(x))

        def loss(parameters: Any, used: Bool[Array, " position"]) -> Float[Array, ""]:
            errors = jnp.where(used, values(parameters, prompt.x) - prompt.y, 0)
            return jnp.sum(errors**2) / jnp.maximum(jnp.sum(used), 1).astype(errors.dtype)

        def step(state: tuple[Any, Any], number: Int[Array, ""]) -> tuple[tuple[Any, Any], None]:
            gradient = jax.grad(loss)(state[0], self._batch(i, number, prompt.positions))
            with jax.numpy_dtype_promotion("standard"):  # optax.adam fails under a strict one
                updates, optimizer_state = self.optimizer.update(gradient, state[1], state[0])
                return (optax.apply_updates(state[0], updates), optimizer_state), None

        (end, _), _ = jax.lax.scan(step, (start, self.optimizer.init(start)), jnp.arange(self.steps))
        return jnp.where(i > 0, values(end, prompt.x[i][None])[0], 0)

    def _batch(self, i: Int[Array, ""], number: Int[Array, ""], positions: int) -> Bool[Array, " position"]:
        """Which examples a step sees."""
        seen = jnp.arange(positions) < i
        if self.batch is None or self.key is None or self.batch >= positions:
            return seen
        order = jax.random.uniform(jax.random.fold_in(jax.random.fold_in(self.key, i), number), (positions,))
        return seen & (jnp.argsort(jnp.argsort(jnp.where(seen, order, jnp.inf))) < self.batch)
