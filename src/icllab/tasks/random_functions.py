"""Regression of a function drawn anew for each prompt: a network with one hidden layer, or a decision tree."""

import abc
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.domains import NON_NEGATIVE
from icllab.core.errors import require_key
from icllab.core.prompt import RegressionPrompt
from icllab.tasks.regression import AbstractRegression, number, require_sizes
from icllab.tasks.regression_distributions import AbstractInputs, GaussianInputs, require_dim, require_inputs

Function: TypeAlias = Callable[[Float[Array, " dim"]], Float[Array, ""]]


class RandomFunctionRegression(AbstractRegression):
    r"""Prompts :math:`y_i = f(x_i) + \varepsilon_i` of a random function; the loss is the squared error.

    Attributes:
        dim: Input dimension d (static).
        length: Examples before the query, ℓ (static); a prompt has ``length + 1`` positions.
        inputs: Distribution of ``x``, :math:`N(0, I)` by default.
        noise_variance: Label-noise variance, also on the query's own label; a leaf.
    """

    dim: int = eqx.field(static=True)
    length: int = eqx.field(static=True)
    inputs: AbstractInputs = eqx.field(default_factory=lambda: GaussianInputs(1.0), kw_only=True)
    noise_variance: Float[Array, ""] = eqx.field(converter=partial(number, "noise_variance"), default=0.0, kw_only=True)

    def __check_init__(self) -> None:
        require_sizes(self, "dim", "length")
        require_inputs(self.inputs)
        require_dim("inputs", self.inputs, self.dim)
        NON_NEGATIVE.require_leaf("noise_variance", self.noise_variance)

    @abc.abstractmethod
    def function(self, *, key: PRNGKeyArray) -> Function:
        """Draw the random function f of one input."""

    def sample(self, *, key: PRNGKeyArray) -> RegressionPrompt:
        """One prompt of ``length + 1`` positions."""
        require_key(key)
        of_function, of_x, of_noise = jax.random.split(key, 3)
        x = self.inputs.sample_many(self.length + 1, self.dim, key=of_x)
        noise = jnp.sqrt(self.noise_variance.astype(x.dtype)) * jax.random.normal(of_noise, x.shape[:1], x.dtype)
        return RegressionPrompt(x=x, y=jax.vmap(self.function(key=of_function))(x) + noise)


class NetworkRegression(RandomFunctionRegression):
    r"""Networks of h = ``hidden`` (static) ReLU units without biases, all weights standard normal.

    .. math:: f(x) = \sqrt{2/h}\, \sum_{j=1}^h v_j\, (u_j^\top x)_+, \qquad \mathbb E\, f(x)^2 = |x|^2

    Labels are as large as those of linear regression; the paper's figures divide squared errors by d.

    Source: [Garg22].
    """

    hidden: int = eqx.field(static=True, default=100, kw_only=True)

    def __check_init__(self) -> None:
        require_sizes(self, "hidden")

    def function(self, *, key: PRNGKeyArray) -> Function:
        """Draw a network."""
        normals = jax.random.normal(key, (self.hidden, self.dim + 1), self.noise_variance.dtype)
        u, v = normals[:, :-1], (2 / self.hidden) ** 0.5 * normals[:, -1]
        return lambda x: v.astype(x.dtype) @ jax.nn.relu(u.astype(x.dtype) @ x)


class TreeRegression(RandomFunctionRegression):
    """Complete trees of ``depth`` (static): a node splits on the sign of a random coordinate, a leaf is N(0, 1).

    A coordinate may be asked for twice along a path. The paper's figures do not divide squared errors.

    Source: [Garg22].
    """

    depth: int = eqx.field(static=True, default=4, kw_only=True)

    def __check_init__(self) -> None:
        require_sizes(self, "depth")

    def function(self, *, key: PRNGKeyArray) -> Function:
        """Draw a tree."""
        of_nodes, of_leaves = jax.random.split(key)
        coordinates = jax.random.randint(of_nodes, (2**self.depth - 1,), 0, self.dim)
        leaves = jax.random.normal(of_leaves, (2**self.depth,), self.noise_variance.dtype)

        def answer(x: Float[Array, " dim"]) -> Float[Array, ""]:
            node = jnp.zeros((), jnp.int32)  # the children of node k are 2k + 1 and 2k + 2
            for _ in range(self.depth):
                node = 2 * node + 1 + (x[coordinates[node]] > 0).astype(jnp.int32)
            return leaves[node - len(coordinates)].astype(x.dtype)

        return answer
