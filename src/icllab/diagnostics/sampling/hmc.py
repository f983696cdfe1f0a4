r"""Hamiltonian Monte Carlo with a Metropolis test, at a step size that is adapted while the chains warm up."""

import math
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import require_integer
from icllab.diagnostics.sampling.chains import Chains, noise_and_chances, run_chains
from icllab.diagnostics.sampling.posteriors import ChainState, Posterior, hamiltonian
from icllab.diagnostics.sampling.samplers import ChainSampler

ACCEPTANCE = 0.8  # what the step size is adapted to


@dataclass(frozen=True, kw_only=True)
class HMC(ChainSampler):
    r"""Hamiltonian Monte Carlo: trajectories of a particle of unit mass in the potential U, taken or refused.

    .. math:: p \leftarrow p - \tfrac s2\nabla U(w), \quad w \leftarrow w + s\,p, \quad
              p \leftarrow p - \tfrac s2\nabla U(w)

    repeated l times from :math:`p \sim \mathcal N(0, I)`, accepted with the probability
    :math:`\min\bigl(1, e^{-\Delta(U + |p|^2/2)}\bigr)`. The number l is drawn for every trajectory, from half to one
    and a half times ``leapfrogs``, the same for all chains. The step s is adapted to an acceptance of 0.8 by dual
    averaging, pooled over chains, and held after the warm-up. The sampler of choice wherever all of the loss can be
    differentiated at every step.

    Attributes:
        chains: Number of chains, at least 4.
        warm_up: Trajectories that are left out, at least 1.
        draws: Trajectories that count, of each chain, at least 8; None: twice as many as those of the warm-up.
        leapfrogs: Mean number of leapfrog steps of a trajectory.
        step_size: :math:`s^2` that the adaptation starts from; None: one over the largest curvature.
        dispersion: :math:`\sigma \ge 0`: half of the chains start at :math:`w^* + \sigma\gamma^{-1/2}\xi`.
        mode: Gradients of the chains side by side (``"vmap"``), one after the other (``"map"``), or what a short
            timing says (``"auto"``).

    Raises:
        InputError: A number is out of its range.

    Source: [Neal11].
    """

    chains: int = 8
    warm_up: int = 500
    draws: int | None = None
    leapfrogs: int = 12
    step_size: float | None = None
    dispersion: float = 0.3
    mode: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_integer("leapfrogs", self.leapfrogs)

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
            move=eqx.Partial(_trajectory, leapfrogs=self.leapfrogs),
            acceptance=ACCEPTANCE,
            step_size=jnp.asarray(math.sqrt(step_size), starts.dtype),
            warm_up=jnp.asarray(warm_up),
            draws=self.steps[1],
            mode=mode,
            key=key,
        )


def _trajectory(
    posterior: Posterior, evaluate: Any, states: ChainState, size: Array, key: PRNGKeyArray, *, leapfrogs: int
) -> tuple[ChainState, Array]:
    noise, chances = noise_and_chances(states, key)
    half = leapfrogs // 2
    length = (leapfrogs - half + jnp.floor(chances[-1] * (2 * half + 1))).astype(int)
    return hamiltonian(posterior, evaluate, states, noise, size, length, chances[:-1])
