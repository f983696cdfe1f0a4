"""Is a context a change of weights? Fast weights, and an effect of the context that no weights have."""

import jax
import jax.numpy as jnp
import numpy as np

from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractPredictor
from icllab.diagnostics.contexts.laws import context_law
from icllab.diagnostics.contexts.solvers import MapSolver
from icllab.diagnostics.contexts.verdicts import law
from icllab.tasks import LinearRegression

STATISTIC = "icllab.diagnostics.contexts.verdicts.law"
CLAIMS = (
    "context_map/exact_family",
    "context_map/simplest_model",
)
FAMILY = (
    "y = x.(b + B A h_c) + eps tanh(x_1 x_2) (1.A h_c), h_c the sum of y x over a context of four examples, d = 4, "
    "twelve contexts, 32 queries to fit and 32 held out."
)
AXIS = r"share of what weights cannot have, $\epsilon$"
STRENGTHS = (0.0, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
FALSE = dict.fromkeys(STRENGTHS[:4], ("no map", "capacity")) | {3.0: ("law",), 10.0: ("law",)}
REPLICATES = 100
DIM, LENGTH, CONTEXTS, QUERIES = 4, 4, 12, 64
TASK = LinearRegression.convention("timaeus", dim=DIM, length=LENGTH)
SOLVER = MapSolver(method="dense", steps=8)


class Partly(AbstractPredictor):
    """Fast weights with an addition that is not linear in the query."""

    down: jax.Array
    up: jax.Array
    slow: jax.Array
    strength: jax.Array

    def __call__(self, prompt):
        """The answers at every position."""
        terms = prompt.y[:, None] * prompt.x
        hidden = (jnp.cumsum(terms, axis=0) - terms) @ self.down.T
        linear = jnp.sum(prompt.x * (self.slow[None] + hidden @ self.up.T), axis=1)
        return linear + jax.lax.stop_gradient(self.strength) * jnp.tanh(prompt.x[:, 0] * prompt.x[:, 1]) * jnp.sum(
            hidden, axis=1
        )


def measured(strength, rng, kind=Partly):
    """The tests of a random model."""
    model = kind(
        *(jnp.asarray(rng.normal(size=shape) / DIM**0.5) for shape in ((DIM, DIM), (DIM, DIM), (DIM,))),
        jnp.asarray(strength),  # pyright: ignore[reportCallIssue]
    )
    x = rng.normal(size=(CONTEXTS, LENGTH + 1, DIM))
    y = np.einsum("cld,cd->cl", x, rng.normal(size=(CONTEXTS, DIM)))
    contexts = [RegressionPrompt(jnp.asarray(x[i]), jnp.asarray(y[i])) for i in range(CONTEXTS)]
    q = rng.normal(size=(CONTEXTS, QUERIES, 1, DIM))
    queries = [RegressionPrompt(jnp.asarray(q[i]), jnp.zeros((QUERIES, 1))) for i in range(CONTEXTS)]
    return context_law(
        model,
        TASK,
        contexts,
        subspace=lambda m: m.slow,
        key=jax.random.key(int(rng.integers(2**31))),
        queries=queries,
        solver=SOLVER,
    )


def verdicts(strength, *, replicates, key, kind=Partly):
    """One verdict for each replicate."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    with jax.enable_x64(True):
        return [law(measured(strength, rng, kind)).outcome.value for _ in range(replicates)]
