r"""Hamiltonian Monte Carlo with a Metropolis test, at a step size that is adapted while the chains warm up."""

from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from icllab.core.errors import require_integer
from icllab.diagnostics.sampling.chains import Move, noise_and_chances
from icllab.diagnostics.sampling.posteriors import ChainState, Posterior, hamiltonian
from icllab.diagnostics.sampling.samplers import ChainSampler


@dataclass(frozen=True, kw_only=True)
class HMC(ChainSampler):
    r"""Hamiltonian Monte Carlo: trajectories of a particle of unit mass in the potential U, taken or refused.

    .. math:: p \leftarrow p - \tfrac s2\nabla U(w), \quad w \leftarrow w + s\,p, \quad
              p \leftarrow p - \tfrac s2\nabla U(w)

    repeated l times from :math:`p \sim \mathcal N(0, I)`, accepted with the probability
    :math:`\min\bigl(1, e^{-\Delta(U + |p|^2/2)}\bigr)`. The number l is drawn for every trajectory, from half to one
    and a half times ``leapfrogs``, the same for all chains. The step s is adapted to an acceptance of 0.8. The sampler
    of choice wherever all of the loss can be differentiated at every step. Its moves are trajectories.

    Attributes:
        leapfrogs: Mean number of leapfrog steps of a trajectory.

    Source: [Neal11].
    """

    acceptance: ClassVar[float | None] = 0.8

    warm_up: int = 500
    leapfrogs: int = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        require_integer("leapfrogs", self.leapfrogs)

    @property
    def gradients_per_move(self) -> int:
        """The mean number of leapfrog steps."""
        return self.leapfrogs

    @property
    def move(self) -> Move:
        """A trajectory."""
        return eqx.Partial(_trajectory, leapfrogs=self.leapfrogs)


def _trajectory(
    posterior: Posterior, evaluate: Any, states: ChainState, size: Array, key: PRNGKeyArray, *, leapfrogs: int
) -> tuple[ChainState, Array]:
    noise, chances = noise_and_chances(states, key)
    half = leapfrogs // 2
    length = (leapfrogs - half + jnp.floor(chances[-1] * (2 * half + 1))).astype(int)
    return hamiltonian(posterior, evaluate, states, noise, size, length, chances[:-1])
