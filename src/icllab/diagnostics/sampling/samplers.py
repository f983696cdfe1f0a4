r"""What a sampler is: the protocol that estimates are made with, and that of samplers that run Markov chains.

A sampler is a frozen value with its own tuning, so that it can be compared, printed and kept in a configuration. A new
one that runs chains is one file with a subclass of :class:`ChainSampler`: its move, and what it is tuned by.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from icllab.core import progress
from icllab.core.domains import NON_NEGATIVE, POSITIVE
from icllab.core.errors import expected, require_integer, require_key
from icllab.diagnostics.sampling.chains import Chains, Kept, Move, run_chains
from icllab.diagnostics.sampling.convergence import FEWEST
from icllab.diagnostics.sampling.draws import Draws, sample_chains
from icllab.diagnostics.sampling.local_loss import LocalLoss
from icllab.diagnostics.sampling.posteriors import Posterior, Starts
from icllab.diagnostics.sampling.priors import Prior
from icllab.diagnostics.sampling.sampled_losses import BLOCK, AtPoint, Batches, require_mean, vector_loss

MODES = ("auto", "map", "vmap")


class Sampler:
    """What draws from a tempered posterior near a point: chains at one temperature, or populations through many."""

    @property
    def name(self) -> str:
        """Name of the class."""
        return type(self).__name__

    @property
    def block(self) -> int:
        """Samples of the data that are evaluated at once where all of them count."""
        return BLOCK


def local_loss_of(
    loss: Any, at: Any, data: Any, *, nbeta: float, localization: float, block: int = BLOCK, prior: Prior | None = None
) -> LocalLoss:
    """The loss near a point, after its temperature, its localization and its mean over samples are checked."""
    for name, value in (("nbeta", nbeta), ("localization", localization)):
        POSITIVE.require(name, value)
    require_mean(*vector_loss(loss, at, data))
    return LocalLoss.from_loss(loss, at, data, block=block, pull=float(localization), prior=prior)


@dataclass(frozen=True, kw_only=True)
class ChainSampler(Sampler):
    r"""A sampler of Markov chains, which are split between starts at the point and away from it.

    A subclass has a :attr:`move`, of which the chains are made here, or a :meth:`draw` of its own.

    Attributes:
        tested: Whether a Metropolis test makes the posterior the stationary distribution at any step size. Without
            one, the same estimate at half the step is part of an estimate.
        acceptance: Acceptance that the step size is adapted to by dual averaging while the chains warm up, pooled over
            chains; it is held after. None: it is kept as it is.
        first_step: Step size that is taken where none is given, times the largest curvature of the potential.
        mode_reason: Why the mode is what it is, where it is not left to a timing.
        chains: Number of chains, at least 4.
        warm_up: Moves that are left out, at least 1.
        draws: Draws of each chain, at least 8; None: twice as many as the moves of the warm-up.
        thinning: Moves for each draw, at least 1: the last of them is the draw.
        step_size: :math:`\epsilon` of Langevin dynamics, in leapfrog steps of size s :math:`s^2`, which an adaptation
            starts from. None: from the largest curvature, at the point and, without a test, where chains start.
        dispersion: :math:`\sigma \ge 0`: half of the chains start at :math:`w^* + \sigma\gamma^{-1/2}\xi`.
        mode: Gradients of the chains side by side (``"vmap"``), one after the other (``"map"``), or what a short
            timing says (``"auto"``).

    Raises:
        InputError: A number is out of its range.
    """

    tested: ClassVar[bool] = True
    memoryless: ClassVar[bool] = True  # whether a chain goes on from its parameters alone
    acceptance: ClassVar[float | None] = None
    first_step: ClassVar[float] = 1.0
    mode_reason: ClassVar[str] = "asked for"

    chains: int = 8
    warm_up: int = 2000
    draws: int | None = None
    thinning: int = 1
    step_size: float | None = None
    dispersion: float = 0.3
    mode: str = "auto"

    def __post_init__(self) -> None:
        if self.step_size is not None:
            POSITIVE.require("step_size", self.step_size)
        require_integer("warm_up", self.warm_up)
        require_integer("thinning", self.thinning)
        if self.draws is not None:
            require_integer("draws", self.draws, least=FEWEST)
        NON_NEGATIVE.require("dispersion", self.dispersion)
        if isinstance(self.chains, bool) or not isinstance(self.chains, int) or self.chains < 4:
            raise expected("chains", "at least 4, two for each kind of start", self.chains)
        if self.mode not in MODES:
            raise expected("mode", "'auto', 'map' or 'vmap'", self.mode)

    @property
    def scale(self) -> float:
        """Largest ratio of a step and one of Langevin dynamics."""
        return 1.0

    @property
    def steps(self) -> tuple[int, int]:
        """Moves of the warm-up, and draws."""
        return self.warm_up, 2 * self.warm_up if self.draws is None else self.draws

    @property
    def moves(self) -> int:
        """Moves after the warm-up."""
        return self.steps[1] * self.thinning

    @property
    def gradients_per_move(self) -> int:
        """Gradients of a chain in a move, about."""
        return 1

    @property
    def gradients(self) -> int:
        """Gradients of all chains in all moves, about."""
        return self.chains * (self.warm_up + self.moves) * self.gradients_per_move

    def target(self, posterior: Posterior, known: AtPoint) -> Posterior | Batches:
        """What a move sees: the posterior as it is, unless the sampler takes batches."""
        return posterior

    @property
    def move(self) -> Move:
        """``(posterior, evaluate, states, step size, key) -> (states, acceptance of each chain)``."""
        raise NotImplementedError

    def draw(
        self,
        target: Any,
        starts: Starts,
        *,
        step_size: float,
        warm_up: int,
        mode: str,
        key: PRNGKeyArray,
        parameters: Kept = False,
        draws: int | None = None,
    ) -> Chains:
        """Run the chains from their ``starts`` on a :meth:`target`.

        ``step_size`` is that of Langevin dynamics, ``mode`` is ``"map"`` or ``"vmap"``. With a ``warm_up`` of 0 chains
        that are warm go on. ``parameters`` keeps the parameters of every draw, or a function of them. ``draws`` is the
        number of draws if it is smaller than usual, by the same program.
        """
        size = step_size if self.acceptance is None else math.sqrt(step_size)
        progress.stage(self.name, warm_up + (draws or self.steps[1]) * self.thinning, "moves")
        return run_chains(
            target,
            starts,
            move=self.move,
            acceptance=self.acceptance,
            step_size=jnp.asarray(size, starts.dtype),
            warm_up=warm_up,
            room=self.steps[1],
            draws=draws or self.steps[1],
            mode=mode,
            key=key,
            parameters=parameters,
            thinning=self.thinning,
        )

    @progress.shows("sampling")
    def sample(
        self,
        loss: Any,
        at: Any,
        *,
        nbeta: float,
        localization: float,
        key: PRNGKeyArray,
        data: Any = None,
        prior: Prior | None = None,
        observables: Mapping[str, Callable[[Any], Any]] | None = None,
        progress: bool | None = None,
    ) -> Draws:
        r"""Draw from the posterior of a loss near a point.

        Args:
            loss: A function of parameters (and of samples, with ``data``), in nats per sample.
            at: :math:`w^*`, a tree with arrays of one floating-point type.
            nbeta: :math:`n\beta`, positive.
            localization: :math:`\gamma`, positive.
            key: Key of the chains.
            data: Samples: a tree of arrays with a leading axis; the loss is the mean over them.
            prior: A density beside the localization; None: 1.
            observables: Name -> array of the parameters, which is kept of every draw in their place.
            progress: Whether moves and the time left are shown; None: on a terminal and in a notebook.

        Returns:
            Losses and parameters or observables of every draw: what
            :func:`~icllab.diagnostics.singular.coefficients.learning_coefficient`,
            :func:`~icllab.diagnostics.singular.fluctuations.singular_fluctuation` and
            :func:`~icllab.diagnostics.susceptibilities.tilts.susceptibility` are functions of.

        Raises:
            InputError: A number is out of its range, or the loss is no finite mean over samples at the point.
        """
        require_key(key)
        local = local_loss_of(loss, at, data, nbeta=nbeta, localization=localization, block=self.block, prior=prior)
        return sample_chains(self, local, float(nbeta), key=key, parameters=True, observables=observables)
