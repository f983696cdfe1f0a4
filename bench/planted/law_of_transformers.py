"""Is a context a change of a transformer's attention? A mixture of an exact change and of a function it cannot have."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractPredictor
from icllab.diagnostics.contexts.laws import context_law, normal_like
from icllab.diagnostics.contexts.solvers import MapSolver
from icllab.diagnostics.contexts.verdicts import law
from icllab.models import BlockOptions, Joined, Transformer
from icllab.tasks import LinearRegression

STATISTIC = "icllab.diagnostics.contexts.verdicts.law"
FAMILY = (
    "(1 - eps) T_{w + Delta h_c}(x) + eps 1.h_c sin(3 u.x) / 10, T a transformer of one layer and width 4, w its "
    "attention, h_c the sum of y x over four examples, d = 2, queries of three tokens, eight contexts, 128 queries to "
    "fit and 128 held out."
)
AXIS = r"share of what the attention cannot have, $\epsilon$"
STRENGTHS = (0.0, 0.03, 0.1, 0.3, 0.6, 0.9)
FALSE = {0.0: ("no map", "capacity"), 0.9: ("law",)}
REPLICATES = 100
DIM, LENGTH, CONTEXTS, QUERIES, OWN = 2, 4, 8, 256, 2
TASK = LinearRegression.convention("timaeus", dim=DIM, length=LENGTH + OWN)
SOLVER = MapSolver(method="dense", steps=60)
SIZE, AMPLITUDE = 0.03, 0.1


class Mixture(AbstractPredictor):
    """A transformer whose weights a context changes, and a function of the query and the context."""

    network: Transformer
    writes: tuple
    frequency: jax.Array
    strength: jax.Array

    def __call__(self, prompt):
        """The answer to the last query."""
        first = prompt.positions - OWN - 1
        h = prompt.y[:first] @ prompt.x[:first]
        changed = jax.tree.map(
            lambda w, *d: w + sum(h[i] * part for i, part in enumerate(d)),
            eqx.filter(self.network.blocks[0].attention, eqx.is_inexact_array),
            *self.writes,
        )
        network = eqx.tree_at(
            lambda m: m.blocks[0].attention, self.network, eqx.combine(changed, self.network.blocks[0].attention)
        )
        share = jax.lax.stop_gradient(self.strength)
        wave = jnp.sum(h) * jnp.sin(3 * prompt.x[-1] @ self.frequency)
        return (1 - share) * network(prompt.alone(prompt.positions - 1, size=OWN + 1)) + share * AMPLITUDE * wave


def measured(strength, rng):
    """The tests of a random network."""
    keys = jax.random.split(jax.random.key(int(rng.integers(2**31))), 4)
    block = BlockOptions(heads=1, mlp=(8,), norm="pre")
    arrangement = Joined(answers="last", causal=True, query_is_key=True)
    network = Transformer(arrangement, dim=DIM, width=4, layers=1, positions="none", block=block, key=keys[0])
    attention = eqx.filter(network.blocks[0].attention, eqx.is_inexact_array)
    writes = tuple(jax.tree.map(lambda leaf: SIZE * leaf, normal_like(attention, key)) for key in keys[1:3])
    model = Mixture(network, writes, jnp.asarray(rng.normal(size=DIM)), jnp.asarray(strength))
    model = jax.tree.map(lambda leaf: leaf.astype(float) if eqx.is_inexact_array(leaf) else leaf, model)
    x = rng.normal(size=(CONTEXTS, LENGTH + 1, DIM))
    y = np.einsum("cld,cd->cl", x, rng.normal(size=(CONTEXTS, DIM)))
    contexts = [RegressionPrompt(jnp.asarray(x[i]), jnp.asarray(y[i])) for i in range(CONTEXTS)]
    q = rng.normal(size=(CONTEXTS, QUERIES, OWN + 1, DIM))
    a = rng.normal(size=(CONTEXTS, QUERIES, OWN + 1))
    queries = [RegressionPrompt(jnp.asarray(q[i]), jnp.asarray(a[i])) for i in range(CONTEXTS)]
    return context_law(
        model,
        TASK,
        contexts,
        subspace=lambda m: m.network.blocks[0].attention,
        key=keys[3],
        queries=queries,
        query_length=OWN + 1,
        solver=SOLVER,
    )


def verdicts(strength, *, replicates, key):
    """A verdict of every replicate."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    with jax.enable_x64(True):
        return [law(measured(strength, rng)).outcome.value for _ in range(replicates)]
