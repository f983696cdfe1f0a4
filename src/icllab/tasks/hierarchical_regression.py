"""Linear regressions that share only their form from prompt to prompt, as tables of measurements do.

:class:`~icllab.tasks.linear_regression.LinearRegression` has one covariance of inputs and one noise for all
prompts, and a predictor that is trained on it may take them for granted. Here a prompt has correlations,
weights and a share of noise of its own.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected, require_key
from icllab.core.prompt import RegressionPrompt
from icllab.tasks.regression import AbstractRegression, real, require_sizes


def _share(name: str, value: Any) -> Array:
    """A fraction as an array; raise unless it is one real number."""
    array = real(name, value)
    if array.ndim:
        raise expected(name, "a number from 0 to 1", f"shape {array.shape}")
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


class HierarchicalRegression(AbstractRegression):
    r"""Prompts of a linear function; correlations, weights and noise are drawn anew for each prompt.

    .. math:: u_j &\sim \mathrm{U}(S^{m-1}), \qquad x_i = (u_1, \dots, u_d)^\top g_i, \quad g_i \sim N(0, I_m), \\
              w &\propto v \sim N(0, I_d), \quad w^\top \Sigma\, w = h, \qquad h \sim \mathrm{U}(h_0, h_1), \\
              y_i &= \langle w, x_i \rangle + \varepsilon_i, \qquad \varepsilon_i \sim N(0, 1 - h)

    Given its correlations :math:`\Sigma_{jk} = \langle u_j, u_k \rangle`, an input is :math:`N(0, \Sigma)`. Every
    column and the target have variance 1, as in a table that is standardised, and the columns explain the
    share ``h`` of the target. Two columns have a squared correlation of 1/m on average. The loss is the
    squared error.

    Attributes:
        dim: Input dimension d (static).
        length: Examples before the query, ℓ (static); a prompt has ``length + 1`` positions.
        factors: m (static); with fewer of them columns are more alike, with m = 1 equal up to sign.
        least_explained: :math:`h_0`.
        most_explained: :math:`h_1`.

    Derived: docs/tables.md, Correlations drawn at random.
    """

    dim: int = eqx.field(static=True)
    length: int = eqx.field(static=True)
    factors: int = eqx.field(static=True)
    least_explained: Float[Array, ""] = eqx.field(converter=partial(_share, "least_explained"), default=0.0)
    most_explained: Float[Array, ""] = eqx.field(converter=partial(_share, "most_explained"), default=1.0)

    def __check_init__(self) -> None:
        require_sizes(self, "dim", "length", "factors")
        least, largest = self.least_explained, self.most_explained
        if not isinstance(least, Tracer) and not isinstance(largest, Tracer) and not bool(0 <= least <= largest <= 1):
            shares = [float(np.asarray(share)) for share in (least, largest)]
            raise expected("least_explained and most_explained", "two fractions, 0 <= least <= most <= 1", shares)

    def sample(self, *, key: PRNGKeyArray) -> RegressionPrompt:
        """One prompt of ``length + 1`` positions, at a cost of O(dim factors) each."""
        require_key(key)
        of_table, of_rows = jax.random.split(key)
        dtype, positions = self.most_explained.dtype, self.length + 1
        normals = jax.random.normal(of_table, (self.dim, self.factors + 1), dtype)
        loadings, v = normals[:, :-1], normals[:, -1]
        loadings = loadings / jnp.linalg.norm(loadings, axis=1, keepdims=True)
        share = jax.random.uniform(jax.random.fold_in(of_table, 1), (), dtype)
        signal_share = self.least_explained + share * (self.most_explained - self.least_explained)
        rows = jax.random.normal(of_rows, (positions, self.factors + 1), dtype)
        g, noise = rows[:, :-1], rows[:, -1]
        along = loadings.T @ v  # the factors' weights: the signal has variance |along|^2 before it is scaled
        signal = g @ (along / jnp.linalg.norm(along))
        return RegressionPrompt(
            x=g @ loadings.T, y=jnp.sqrt(signal_share) * signal + jnp.sqrt(1 - signal_share) * noise
        )
