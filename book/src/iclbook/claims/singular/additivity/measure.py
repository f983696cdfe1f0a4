"""Learning coefficients of every arrangement and of its terms, by Hamiltonian Monte Carlo."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.singular.additivity.claim import ARRANGEMENTS, MOST
from icllab.diagnostics import HMC, LocalPosterior, coefficient_at_temperature

VERSION = 1


class Terms(eqx.Module):
    """Losses of contexts, each by its hidden units and its input; w may have an axis of contexts."""

    units: jax.Array
    h: jax.Array
    target: jax.Array

    @classmethod
    def from_contexts(cls, contexts, opposed=False):
        """Make terms from pairs of hidden units and number of the input; ``opposed``: targets alternate in sign."""
        units, h = np.zeros((len(contexts), MOST)), np.zeros((len(contexts), MOST))
        for c, (hidden, column) in enumerate(contexts):
            units[c, list(hidden)], h[c, column] = 1.0, 1.0
        target = (-1.0) ** np.arange(len(contexts)) if opposed else np.zeros(len(contexts))
        return cls(jnp.asarray(units), jnp.asarray(h), jnp.asarray(target))

    def __call__(self, w):
        """Half the squared error of the answer to each context."""
        axis = "c" if w["a"].ndim == 3 else ""
        answers = jnp.einsum(f"{axis}iu,cu,{axis}uj,cj->ci", w["b"], self.units, w["a"], self.h)
        return jnp.sum((answers - self.target[:, None]) ** 2, axis=1) / 2


def measure(point, *, key, separate=False, opposed=False):
    """One cell: an arrangement at a temperature. ``separate``: contexts do not share weights.

    ``opposed``: the targets of contexts alternate between 1 and -1.
    """
    arrangement = ARRANGEMENTS[point.arrangement]
    sampler = HMC(chains=point.chains, warm_up=point.warm_up, draws=point.draws)

    @functools.cache  # terms that are alike have one run
    def estimate(contexts):
        axes = (len(contexts),) if separate else ()
        at = {"a": jnp.zeros((*axes, MOST, MOST)), "b": jnp.zeros((*axes, point.dim, MOST))}
        of_contexts = jax.random.fold_in(key, sum(map(ord, repr(contexts))))
        loss = Terms.from_contexts(contexts, opposed)
        posterior = LocalPosterior.from_function(loss, at, nbeta=point.nbeta, localization=1.0)
        return coefficient_at_temperature(posterior, checks=(), sampler=sampler, key=of_contexts)

    whole = estimate(arrangement)
    single_runs = [estimate((((*range(len(units)),), 0),)) for units, _ in arrangement]
    rows = {
        "learning_coefficient": (whole["estimate"], whole["mcse"]),
        "contribution": (whole["term_estimate"][0], whole["term_mcse"][0]),
        "term_covariance": (whole["term_covariance"][0, 1], whole["term_covariance_mcse"][0, 1]),
        "additivity_gap": gap(whole, single_runs),
    }
    warnings = sum(len(run.attrs["warnings"]) for run in (whole, *single_runs))
    values = {
        f"{name}{end}": ((), float(x)) for name, row in rows.items() for end, x in zip(("", "_error"), row, strict=True)
    }
    return {**values, "sampler_warnings": ((), warnings)}


def gap(whole, terms):
    """The whole less its terms alone, and its error; the error of a run counts for all terms that it stands for."""
    variance = float(whole["mcse"]) ** 2
    for run in {id(term): term for term in terms}.values():
        variance += (sum(term is run for term in terms) * float(run["mcse"])) ** 2
    return float(whole["estimate"]) - sum(float(term["estimate"]) for term in terms), variance**0.5
