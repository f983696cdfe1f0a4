r"""Dynamics with momenta and a thermostat, which takes up the noise of batches."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from icllab.core.domains import POSITIVE
from icllab.diagnostics.sampling.posteriors import Posterior, Vector
from icllab.diagnostics.sampling.sgld import SGLD


@dataclass(frozen=True, kw_only=True)
class SGNHT(SGLD):
    r"""The stochastic gradient Nose-Hoover thermostat: momenta v, and a friction that keeps their temperature.

    .. math::
        v \leftarrow (1-\xi)\,v - \epsilon\,\nabla U_b(w) + \sqrt{2a\epsilon}\,\zeta, \qquad w \leftarrow w + v, \qquad
        \xi \leftarrow \xi + |v|^2/d - \epsilon

    from :math:`v \sim \mathcal N(0, \epsilon I)` and :math:`\xi = a`, of d parameters. If the noise of batches has one
    variance in all directions, :math:`\xi` balances it. If not, directions have temperatures of their own, with the
    right mean, which an estimate at half the step shows: there is no bound ``noise_bias``, and no acceptance. The
    friction moves by the order of :math:`\epsilon` at a step, and balances after some :math:`\xi/\epsilon` of them: let
    the warm-up be as long. Where noise needs a friction near 1, chains run to infinity, which is warned of.

    Attributes:
        diffusion: :math:`a > 0`.

    Source: [Ding14].
    Derived: docs/singular-learning.md, Other dynamics on batches.
    """

    memoryless: ClassVar[bool] = False

    diffusion: float = 0.01
    noise_level: float = field(default=1.0, init=False, repr=False)  # the friction balances any other

    def __post_init__(self) -> None:
        super().__post_init__()
        POSITIVE.require("diffusion", self.diffusion)

    def memory(self, w: Vector, size: Array, key: PRNGKeyArray) -> Any:
        """Momenta, and the friction."""
        return jnp.sqrt(size) * jax.random.normal(key, w.shape, w.dtype), jnp.asarray(self.diffusion, w.dtype)

    def advance(
        self, posterior: Posterior, w: Vector, memory: Any, slope: Vector, size: Array, noise: Vector
    ) -> tuple[Vector, Any]:
        """One step along the momentum, which is turned round at the box of a prior."""
        momentum, friction = memory
        momentum = momentum - friction * momentum - size * slope + jnp.sqrt(2 * self.diffusion * size) * noise
        w, signs = posterior.reflected(w + momentum)
        return w, (signs * momentum, friction + jnp.mean(momentum**2) - size)
