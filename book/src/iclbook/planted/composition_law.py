"""Do contexts compose? Fast weights, and an addition to the weights that does not add up."""

import runpy
from pathlib import Path

import jax
import jax.numpy as jnp

FAST_WEIGHTS = runpy.run_path(str(Path(__file__).with_name("fast_weight_law.py")))

STATISTIC = "icllab.diagnostics.contexts.verdicts.law"
CLAIMS = (
    "context_map/exact_family",
    "context_map/simplest_model",
)
FAMILY = (
    "y = x.(b + B A h_c + eps sin(7 A h_c)), h_c the sum of y x over a context of four examples, d = 4: weights have "
    "every effect and its changes. Twelve contexts, 32 queries to fit and 32 held out."
)
AXIS = r"share of what does not add up, $\epsilon$"
STRENGTHS = (0.0, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
FALSE = dict.fromkeys(STRENGTHS[:4], ("no map", "capacity")) | {
    3.0: ("law", "no map"),
    10.0: ("law", "no map"),
}
REPLICATES = 100


class Waves(FAST_WEIGHTS["Partly"]):
    """Fast weights with an addition to the weights that is not a sum over the context."""

    def __call__(self, prompt):
        """The answers at every position."""
        terms = prompt.y[:, None] * prompt.x
        hidden = (jnp.cumsum(terms, axis=0) - terms) @ self.down.T
        waves = jax.lax.stop_gradient(self.strength) * jnp.sin(7 * hidden)
        return jnp.sum(prompt.x * (self.slow[None] + hidden @ self.up.T + waves), axis=1)


def verdicts(strength, *, replicates, key):
    """One verdict for each replicate."""
    return FAST_WEIGHTS["verdicts"](strength, replicates=replicates, key=key, kind=Waves)
