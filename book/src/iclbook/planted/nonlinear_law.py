"""Is a context a change of weights where answers are not linear in them? Layers of tanh units, sines and squares."""

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
    "y = f(x, W + 0.3 B h_c) + eps tanh(x_1 x_2) (1.h_c), in turn f of two tanh units with weights W, "
    "sin(x.w), and x.w + (x.w)^2; h_c the sum of tanh(y) x over four examples, d = 3. "
    "Sixteen contexts, 24 queries to fit and 24 held out."
)
AXIS = r"share of what weights cannot have, $\epsilon$"
STRENGTHS = (0.0, 0.01, 0.1, 1.0, 10.0)
FALSE = dict.fromkeys(STRENGTHS[:2], ("no map", "capacity")) | {10.0: ("law",)}
REPLICATES = 102
KINDS = {"tanh": 2, "sine": 1, "square": 1}
DIM, LENGTH, CONTEXTS, QUERIES = 3, 4, 16, 48
TASK = LinearRegression.convention("timaeus", dim=DIM, length=LENGTH)
SOLVER = MapSolver(method="dense", steps=20, starts=4)
EXAMPLE = 0.3  # size of what an example adds to the weights


class Curved(AbstractPredictor):
    """Answers that are not linear in the weights, to which a context adds a sum over its examples."""

    slow: jax.Array  # [unit, input]
    read: jax.Array  # [unit, input, input]
    out: jax.Array  # [unit]
    strength: jax.Array
    kind: str

    def __call__(self, prompt):
        """The answers at every position."""
        terms = jnp.tanh(prompt.y)[:, None] * prompt.x
        hidden = jnp.cumsum(terms, axis=0) - terms
        weights = self.slow[None] + EXAMPLE * jnp.einsum("uij,tj->tui", self.read, hidden)
        units = jnp.einsum("tui,ti->tu", weights, prompt.x)
        answer = {
            "tanh": lambda: jnp.tanh(units) @ self.out,
            "sine": lambda: jnp.sin(units[:, 0]),
            "square": lambda: units[:, 0] + units[:, 0] ** 2,
        }[self.kind]()
        strength = jax.lax.stop_gradient(self.strength)
        return answer + strength * jnp.tanh(prompt.x[:, 0] * prompt.x[:, 1]) * jnp.sum(hidden, axis=1)


def measured(kind, strength, rng):
    """The tests of a random model."""
    units = KINDS[kind]
    parts = [rng.normal(size=shape) for shape in ((units, DIM), (units, DIM, DIM), (units,))]
    model = Curved(
        *map(jnp.asarray, (parts[0], parts[1] / DIM**0.5, 1 + parts[2] ** 2)),
        jnp.asarray(strength),  # pyright: ignore[reportCallIssue]
        kind=kind,
    )
    x = rng.normal(size=(CONTEXTS, LENGTH + 1, DIM))
    y = np.einsum("cld,cd->cl", x, rng.normal(size=(CONTEXTS, DIM)))
    contexts = [RegressionPrompt(jnp.asarray(x[i]), jnp.asarray(y[i])) for i in range(CONTEXTS)]
    q = rng.normal(size=(CONTEXTS, QUERIES, 1, DIM))
    queries = [RegressionPrompt(jnp.asarray(q[i]), jnp.zeros((QUERIES, 1))) for i in range(CONTEXTS)]
    settings = {"subspace": lambda m: m.slow, "key": jax.random.key(int(rng.integers(2**31)))}
    return context_law(model, TASK, contexts, queries=queries, solver=SOLVER, **settings)


def verdicts(strength, *, replicates, key):
    """One verdict for each replicate, of the kinds in turn."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    with jax.enable_x64(True):
        return [law(measured([*KINDS][i % 3], strength, rng)).outcome.value for i in range(replicates)]
