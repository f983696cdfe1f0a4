"""A network trained on the examples of each prompt, from one initialisation."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.algorithms.least_squares import require_regression
from icllab.core.errors import expected, kind_of, require_instance, require_integer, require_key
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractPredictor


class TrainedNetwork(AbstractPredictor):
    """The answer of a network after steps on the mean squared error of the previous examples; 0 without an example.

    Garg et al. have ``eqx.nn.MLP(20, "scalar", 100, 1, key=k)``, which starts as PyTorch's layers do, and 100 steps of
    ``optax.adam(5e-3)`` on batches of 100. They draw an initialisation for each prompt and prefix; here it is one.
    Their loss is the mean over a batch of prompts too, which divides the rate of SGD by their number. Their figures
    divide squared errors by d, of trees by 1.

    Attributes:
        network: A function of one input that returns a number; its arrays are leaves, which ``icl.fit`` learns.
        optimizer: An optax optimizer (static); to differentiate through Adam, give it ``eps_root`` > 0.
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
        """The answers of networks trained on every prefix."""
        require_regression(prompt)
        start, static = eqx.partition(self.network, eqx.is_inexact_array)

        def answers(parameters: Any) -> Float[Array, " position"]:
            return jax.vmap(eqx.combine(parameters, static))(prompt.x).reshape(prompt.positions)

        def after(i: Int[Array, ""]) -> Float[Array, ""]:
            def step(state: tuple[Any, Any], number: Int[Array, ""]) -> tuple[tuple[Any, Any], None]:
                shares = self._shares(i, number, jnp.zeros_like(prompt.y))
                gradient = jax.grad(lambda parameters: shares @ (answers(parameters) - prompt.y) ** 2)(state[0])
                with jax.numpy_dtype_promotion("standard"):  # optax.adam fails under a strict one
                    updates, optimizer_state = self.optimizer.update(gradient, state[1], state[0])
                    return (optax.apply_updates(state[0], updates), optimizer_state), None

            (end, _), _ = jax.lax.scan(step, (start, self.optimizer.init(start)), jnp.arange(self.steps))
            return jnp.where(i > 0, answers(end)[i], 0)

        with jax.default_matmul_precision("float32"):
            return jax.vmap(after)(jnp.arange(prompt.positions))

    def _shares(self, i: Int[Array, ""], number: Int[Array, ""], zero: Float[Array, " position"]) -> Array:
        """The weight of every example in the loss of a step."""
        used = jnp.arange(len(zero)) < i
        if self.batch is not None and self.key is not None:
            key = jax.random.fold_in(jax.random.fold_in(self.key, i), number)
            order = jnp.argsort(jnp.where(used, jax.random.uniform(key, zero.shape), jnp.inf))
            used = used & (order < self.batch)  # a permutation of the first i
        shares = used.astype(zero.dtype)
        return shares / jnp.maximum(jnp.sum(shares), 1)
