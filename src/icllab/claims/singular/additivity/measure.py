"""The coefficients of every arrangement, whole and term by term, by Hamiltonian Monte Carlo."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.claims.singular.additivity.claim import ARRANGEMENTS, MOST
from icllab.diagnostics import HMC, learning_coefficient

VERSION = 1


class Terms(eqx.Module):
    """The losses of the contexts, by the hidden units that each uses and its input; w may have an axis of contexts."""

    units: jax.Array
    h: jax.Array

    @classmethod
    def of(cls, chosen):
        """Contexts as the units that they use and the number of their input."""
        units, h = np.zeros((len(chosen), MOST)), np.zeros((len(chosen), MOST))
        for c, (some, which) in enumerate(chosen):
            units[c, list(some)], h[c, which] = 1.0, 1.0
        return cls(jnp.asarray(units), jnp.asarray(h))

    def __call__(self, w):
        """Half the squared answer to each context."""
        own = "c" if w["a"].ndim == 3 else ""
        answers = jnp.einsum(f"{own}iu,cu,{own}uj,cj->ci", w["b"], self.units, w["a"], self.h)
        return jnp.sum(answers**2, axis=1) / 2


def measure(point, *, key, separate=False):
    """One cell: an arrangement at a temperature. ``separate``: contexts have weights of their own all the same."""
    chosen = ARRANGEMENTS[point.arrangement]
    sampler = HMC(chains=point.chains, warm_up=point.warm_up, draws=point.draws)

    @functools.cache  # terms that are alike have one run
    def estimated(contexts):
        own = (len(contexts),) if separate else ()
        at = {"a": jnp.zeros((*own, MOST, MOST)), "b": jnp.zeros((*own, point.dim, MOST))}
        of_contexts = jax.random.fold_in(key, sum(map(ord, repr(contexts))))
        how = {"n": point.nbeta, "nbeta": point.nbeta, "localization": 1.0, "sampler": sampler}
        return learning_coefficient(Terms.of(contexts), at, key=of_contexts, estimand="at_temperature", **how)

    whole = estimated(chosen)
    alone = [estimated((((*range(len(units)),), 0),)) for units, _ in chosen]
    rows = {
        "learning_coefficient": (whole["estimate"], whole["mcse"]),
        "contribution": (whole["term_estimate"][0], whole["term_mcse"][0]),
        "term_covariance": (whole["term_covariance"][0, 1], whole["term_covariance_mcse"][0, 1]),
        "additivity_gap": gap(whole, alone),
    }
    warnings = sum(len(one.attrs["warnings"]) for one in (whole, *alone))
    found = {
        f"{name}{end}": ((), float(x)) for name, row in rows.items() for end, x in zip(("", "_error"), row, strict=True)
    }
    return {**found, "sampler_warnings": ((), warnings)}


def gap(whole, alone):
    """The whole less its terms alone, and its error; of terms that are alike one run stands for all."""
    error = float(whole["mcse"]) ** 2
    for one in {id(run): run for run in alone}.values():
        error += (sum(run is one for run in alone) * float(one["mcse"])) ** 2
    return float(whole["estimate"]) - sum(float(run["estimate"]) for run in alone), error**0.5
