r"""Langevin dynamics with a Metropolis test, at a step size that is adapted while the chains warm up."""

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.diagnostics.sampling.chains import Chains, noise_and_chances, run_chains
from icllab.diagnostics.sampling.posteriors import ChainState, Posterior, hamiltonian
from icllab.diagnostics.sampling.samplers import ChainSampler

ACCEPTANCE = 0.57  # what the step size is adapted to


@dataclass(frozen=True, kw_only=True)
class MALA(ChainSampler):
    r"""Metropolis-adjusted Langevin dynamics: a step along the gradient with noise, taken or refused.

    .. math:: w' = w - \frac\epsilon2\nabla U(w) + \sqrt\epsilon\,\xi, \qquad
              \min\Bigl(1, \frac{e^{-U(w')}\,q(w\mid w')}{e^{-U(w)}\,q(w'\mid w)}\Bigr), \qquad
              q(w'\mid w) = \mathcal N\bigl(w - \tfrac\epsilon2\nabla U(w), \epsilon I\bigr)

    It is one leapfrog step of size :math:`\sqrt\epsilon`, and computed as one. The step is adapted to an acceptance of
    0.57 by dual averaging, pooled over chains, and held after the warm-up. A gradient a step, but a random walk: where
    a posterior is long and narrow it goes along it far more slowly than :class:`~icllab.diagnostics.sampling.hmc.HMC`.

    Attributes:
        chains: Number of chains, at least 4.
        warm_up: Steps that are left out, at least 1.
        draws: Steps that count, of each chain, at least 8; None: twice as many as those of the warm-up.
        step_size: :math:`\epsilon` that the adaptation starts from; None: one over the largest curvature.
        dispersion: :math:`\sigma \ge 0`: half of the chains start at :math:`w^* + \sigma\gamma^{-1/2}\xi`.
        mode: Gradients of the chains side by side (``"vmap"``), one after the other (``"map"``), or what a short
            timing says (``"auto"``).

    Raises:
        InputError: A number is out of its range.

    Source: [RobertsTweedie96].
    """

    chains: int = 8
    warm_up: int = 2000
    draws: int | None = None
    step_size: float | None = None
    dispersion: float = 0.3
    mode: str = "auto"

    def draw(
        self,
        target: Any,
        starts: Float[Array, "chain parameter"],
        *,
        step_size: float,
        warm_up: int,
        mode: str,
        key: PRNGKeyArray,
    ) -> Chains:
        """Run the chains from their starts, see :meth:`ChainSampler.draw`."""
        return run_chains(
            target,
            starts,
            move=_step,
            acceptance=ACCEPTANCE,
            step_size=jnp.asarray(math.sqrt(step_size), starts.dtype),
            warm_up=jnp.asarray(warm_up),
            draws=self.steps[1],
            mode=mode,
            key=key,
        )


def _step(
    posterior: Posterior, evaluate: Any, states: ChainState, size: Array, key: PRNGKeyArray
) -> tuple[ChainState, Array]:
    noise, chances = noise_and_chances(states, key)
    return hamiltonian(posterior, evaluate, states, noise, size, 1, chances[:-1])
