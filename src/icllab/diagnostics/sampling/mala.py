r"""Langevin dynamics with a Metropolis test, at a step size that is adapted while the chains warm up."""

from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Array, PRNGKeyArray

from icllab.diagnostics.sampling.chains import Move, noise_and_chances
from icllab.diagnostics.sampling.posteriors import ChainState, Posterior, hamiltonian
from icllab.diagnostics.sampling.samplers import ChainSampler


@dataclass(frozen=True, kw_only=True)
class MALA(ChainSampler):
    r"""Metropolis-adjusted Langevin dynamics: a step along the gradient with noise, taken or refused.

    .. math:: w' = w - \frac\epsilon2\nabla U(w) + \sqrt\epsilon\,\xi, \qquad
              \min\Bigl(1, \frac{e^{-U(w')}\,q(w\mid w')}{e^{-U(w)}\,q(w'\mid w)}\Bigr), \qquad
              q(w'\mid w) = \mathcal N\bigl(w - \tfrac\epsilon2\nabla U(w), \epsilon I\bigr)

    It is one leapfrog step of size :math:`\sqrt\epsilon`, and computed as one. The step is adapted to an acceptance of
    0.57. A gradient a step, but a random walk: where a posterior is long and narrow it goes along it far more slowly
    than :class:`~icllab.diagnostics.sampling.hmc.HMC`.

    Source: [RobertsTweedie96].
    """

    acceptance: ClassVar[float | None] = 0.57

    @property
    def move(self) -> Move:
        """One leapfrog step."""
        return _step


def _step(
    posterior: Posterior, evaluate: Any, states: ChainState, size: Array, key: PRNGKeyArray
) -> tuple[ChainState, Array]:
    noise, chances = noise_and_chances(states, key)
    return hamiltonian(posterior, evaluate, states, noise, size, 1, chances[:-1])
