"""Whether a predictor sees the target that it is asked for."""

import equinox as eqx
import jax
import jax.numpy as jnp

from icllab.core.protocols import AbstractPredictor
from icllab.diagnostics.causality import forbidden_positions
from icllab.tasks import LinearRegression

STATISTIC = "icllab.diagnostics.causality.forbidden_positions"
CLAIMS = ()
FAMILY = (
    "One plus a step of gradient descent on 20 examples in 4 dimensions, plus a share of the target; a third of the "
    "replicates take a cumulative sum of the gradients, a third a matrix, and a third all examples minus the later "
    "ones."
)
AXIS = "share of the target"
STRENGTHS = (0.0, 1e-12, 1e-9, 1e-7, 1e-6, 1e-5, 1e-2)
CAUSAL, AHEAD = "causal", "looks ahead"
FALSE = {0.0: (AHEAD,), 1e-2: (CAUSAL,)}
REPLICATES = 102

TASK = LinearRegression.convention("raventos", dim=4, length=20)


def before(terms, form):
    """Sums of the terms before each position, in one of three forms that differ in rounding."""
    if form == 0:
        return jnp.cumsum(terms, axis=0) - terms
    if form == 1:
        return jnp.tril(jnp.ones((len(terms), len(terms))), -1) @ terms
    return jnp.sum(terms, axis=0)[None] - jnp.cumsum(terms[::-1], axis=0)[::-1]


class Step(AbstractPredictor):
    """A step of gradient descent that adds a share of the target to its answer."""

    share: jax.Array
    rate: jax.Array
    form: int = eqx.field(static=True)

    def __call__(self, prompt):
        """The answers at every position."""
        w = self.rate * before(prompt.y[:, None] * prompt.x, self.form)
        return 1 + jnp.sum(w * prompt.x, axis=1) + self.share * prompt.y


def verdicts(strength, *, replicates, key):
    """One verdict for each replicate, which has its own rate and prompts."""
    names = []
    for i, k in enumerate(jax.random.split(key, replicates)):
        of_rate, of_prompts = jax.random.split(k)
        rate = jax.random.uniform(of_rate, minval=0.01, maxval=0.2)
        predictor = Step(jnp.asarray(strength), rate, i % 3)
        names.append(AHEAD if forbidden_positions(predictor, TASK, key=of_prompts) else CAUSAL)
    return names
