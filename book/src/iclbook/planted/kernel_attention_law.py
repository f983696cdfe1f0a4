"""Is a context a change of weights in a transformer? A layer of attention, from linear to exponential."""

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
    "y = x.b + sum_j y_j phi(s_j), s_j = x.B A x_j the scores of a context of four examples and phi(s) = "
    "(exp(eps s) - 1) / eps: linear attention beside a direct term for eps = 0, whose map is b + B A h_c; exponential "
    "attention for 1. d = 4, twelve contexts, 32 queries to fit and 32 held out."
)
AXIS = r"curvature of the attention's kernel, $\epsilon$"
STRENGTHS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
FALSE = dict.fromkeys(STRENGTHS[:3], ("no map", "capacity")) | {1.0: ("law",)}
REPLICATES = 100


class Attention(FAST_WEIGHTS["Partly"]):
    """A direct term, and attention with a curved kernel."""

    def __call__(self, prompt):
        """The answers at every position."""
        curvature = jax.lax.stop_gradient(self.strength)
        scores = (prompt.x @ self.up) @ (prompt.x @ self.down.T).T
        bent = jnp.expm1(curvature * scores) / jnp.where(curvature > 0, curvature, 1.0)
        attention = jnp.tril(jnp.where(curvature > 0, bent, scores), -1)
        return prompt.x @ self.slow + attention @ prompt.y


def verdicts(strength, *, replicates, key):
    """One verdict for each replicate."""
    return FAST_WEIGHTS["verdicts"](strength, replicates=replicates, key=key, kind=Attention)
