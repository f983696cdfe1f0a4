"""Whether the learning coefficient with a context is below that without, above it, or neither."""

import equinox as eqx
import jax
import jax.numpy as jnp

from icllab.diagnostics import SMC, LocalPosterior, ZeroShot, context_coefficients

STATISTIC = "icllab.diagnostics.singular.few_and_zero_shot.context_coefficients"
CLAIMS = ("routing/degeneracy_and_the_sign", "routing/half_the_degeneracy")
FAMILY = "f(w) = |w|^p of two weights, with |f|^2/2: coefficients 1/p and 1/2; 8 populations of 50 up to n beta = 1e4."
AXIS = "few-shot less zero-shot coefficient, 1/p - 1/2"
STRENGTHS = (-0.2, -0.08, -0.03, 0.0, 0.03, 0.08, 0.2)
FALSE = dict.fromkeys(STRENGTHS[:3], ("above",)) | dict.fromkeys(STRENGTHS[4:], ("below",)) | {0.0: ("below", "above")}
REPLICATES = 100


class Power(eqx.Module):
    """A power of the norm of the weights."""

    half: jax.Array

    def __call__(self, w):
        """The number."""
        return (jnp.sum(w**2) + 1e-30) ** self.half


def squared(u):
    """The zero-shot loss."""
    return u**2 / 2


class Squared(eqx.Module):
    """The few-shot loss."""

    power: Power

    def __call__(self, w):
        """The number."""
        return squared(self.power(w))


def verdicts(strength, *, replicates, key):
    """One verdict for each key of the populations."""
    power, found = Power(jnp.asarray(0.5 / (strength + 0.5))), []
    for i in range(replicates):
        coefficients = context_coefficients(
            LocalPosterior.from_function(Squared(power), jnp.zeros(2), nbeta=1e4, localization=1.0),
            ZeroShot(squared, power, (1,)),
            key=jax.random.fold_in(key, i),
            sampler=SMC(particles=50, repeats=8),
        )
        found.append(coefficients.attrs["sign"])
    return found
