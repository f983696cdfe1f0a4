r"""Langevin dynamics without a Metropolis test, on batches of the data where there are more than one."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core import progress
from icllab.core.errors import expected, require_integer
from icllab.diagnostics.sampling.chains import (
    Chains,
    Move,
    Recorded,
    chain_groups,
    over_chains,
    report,
    squared_distance,
)
from icllab.diagnostics.sampling.posteriors import ChainState, Posterior, Starts, langevin
from icllab.diagnostics.sampling.sampled_losses import AtPoint, Batches
from icllab.diagnostics.sampling.samplers import ChainSampler

PROBES = 8  # steps on batches whose acceptance is found, which costs a gradient


@dataclass(frozen=True, kw_only=True)
class SGLD(ChainSampler):
    r"""Stochastic gradient Langevin dynamics: a step along the gradient of a batch with noise, always taken.

    .. math:: w \leftarrow w - \frac\epsilon2\Bigl(n\beta\,\nabla L_b(w) + \gamma(w-w^*)\Bigr) + \sqrt\epsilon\,\xi

    at a step size that is kept. Each chain draws its own batch b at every step, with replacement; what a draw counts is
    the loss of the batch less that of the *same* batch at :math:`w^*`. Without more samples than a batch has, all of
    the data are seen at every step. A finite step is biased, on a quadratic of curvature a by the factor
    :math:`1/(1-\epsilon a/4)`: so an estimate is made at half the step too.

    With the control variate the gradient is :math:`\nabla L_b(w) - \nabla L_b(w^*) + \nabla L(w^*)`, at twice the cost
    of a step, and the noise of batches is of the size of :math:`|w-w^*|`.

    Attributes:
        batch: Samples of a batch, at least 1.
        control_variate: Whether batches' gradients have their own at :math:`w^*` as a control variate; there must be
            more samples than a batch has.

    Source: [WellingTeh11].
    Derived: docs/singular-learning.md, Estimates by sampling.
    """

    tested: ClassVar[bool] = False
    first_step: ClassVar[float] = 0.1  # a bias of at most 2.6 per cent on a quadratic

    batch: int = 256
    control_variate: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_integer("batch", self.batch)

    @property
    def block(self) -> int:
        """As many as a batch has."""
        return self.batch

    def target(self, posterior: Posterior, known: AtPoint) -> Posterior | Batches:
        """The posterior through batches, if there are more samples than a batch has.

        Raises:
            InputError: There is a control variate for batches that there are not.
        """
        if len(known.terms) > self.batch:
            # What a batch is said to lose is above the point already.
            above = replace(posterior, baseline=0.0)
            return Batches(above, known.terms, known.slope if self.control_variate else None, self.batch)
        if self.control_variate:
            came = f"{len(known.terms)} in batches of {self.batch}"
            raise expected("control_variate", "more samples than a batch has", came, "leave it out")
        return posterior

    @property
    def move(self) -> Move:
        """A step with the gradient of all the data."""
        return _step

    def draw(self, target: Any, starts: Starts, *, step_size: float, **options: Any) -> Chains:
        """Run the chains from their starts, on batches if the target has them; see :meth:`ChainSampler.draw`."""
        if not isinstance(target, Batches):
            return super().draw(target, starts, step_size=step_size, **options)
        size = jnp.asarray(step_size, starts.dtype)
        progress.stage(self.name, options["warm_up"] + self.steps[1], "moves")
        return sample_batches(target, starts, step_size=size, draws=self.steps[1], **options)


def _step(
    posterior: Posterior, evaluate: Any, states: ChainState, size: Array, key: PRNGKeyArray
) -> tuple[ChainState, Array]:
    noise = jax.random.normal(jax.random.split(key)[0], states.w.shape, states.w.dtype)
    return langevin(posterior, evaluate, states, noise, size)


def sample_batches(
    batches: Batches,
    starts: Starts,
    *,
    step_size: Float[Array, ""],
    warm_up: int | Int[Array, ""],
    draws: int,
    mode: str,
    key: PRNGKeyArray,
    parameters: bool = False,
) -> Chains:
    r"""Run Langevin dynamics without a test on batches, every chain on its own.

    A draw is the loss of the step's batch at the place where the step begins, less that of the same batch at
    :math:`w^*`. The acceptance is that of a Metropolis test of the posterior of one batch, over a few steps at the end.

    Chains one after the other (``mode="map"``) are shared out among the cores of this process: each has a key of its
    own, so that it is the same chain in any company.
    """
    keys = jax.vmap(lambda chain: jax.random.fold_in(key, chain))(jnp.arange(len(starts)))
    groups = chain_groups(len(starts)) if mode == "map" else 1
    size, last = len(starts) // groups, jnp.asarray(warm_up)
    parts = [slice(i, i + size) for i in range(0, len(starts), size)]
    # A call returns before it is done, so that all groups run at once.
    watched = progress.watched()
    runs = [
        _sample_batches(batches, starts[part], keys[part], step_size, last, draws, mode, parameters, watched)
        for part in parts
    ]
    if groups == 1:
        return runs[0]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves) if leaves[0].ndim else leaves[0], *runs)


@eqx.filter_jit
def _sample_batches(
    batches: Batches,
    starts: Starts,
    keys: Any,
    step_size: Float[Array, ""],
    warm_up: Int[Array, ""],
    draws: int,
    mode: str,
    parameters: bool,
    watched: bool,
) -> Chains:
    posterior, count = batches.posterior, len(starts)

    def step(w: Array, key: PRNGKeyArray) -> tuple[Array, Array]:
        of_batch, of_noise = jax.random.split(key)
        _, slope, terms = batches.evaluated(w, batches.sample(of_batch))
        noise = jax.random.normal(of_noise, w.shape, w.dtype)
        return w - step_size / 2 * slope + jnp.sqrt(step_size) * noise, terms

    def probe(w: Array, key: PRNGKeyArray) -> tuple[Array, Array]:
        of_batch, of_noise = jax.random.split(key)
        batch = batches.sample(of_batch)
        noise = jax.random.normal(of_noise, w.shape, w.dtype)[None]

        def evaluate(w: Array) -> tuple[Array, ...]:
            return tuple(value[None] for value in batches.evaluated(w[0], batch))

        state, chances = langevin(posterior, evaluate, ChainState(w[None], *evaluate(w[None])), noise, step_size)
        return state.w[0], chances[0]

    def move_all(move: Any, w: Array, number: Array) -> tuple[Array, Array]:
        return over_chains(lambda w, key: move(w, jax.random.fold_in(key, number)), mode)(w, keys)

    def turn(number: Array, carry: tuple[Array, Recorded]) -> tuple[Array, Recorded]:
        w, record = carry
        after, terms = move_all(step, w, number)
        if watched:  # by every group: the furthest of them is what is seen
            report(number, warm_up + draws, posterior.nbeta * jnp.mean(jnp.sum(terms, axis=1)))
        distance, zero = squared_distance(posterior, w), jnp.zeros(count, w.dtype)
        return after, record.with_draw(number - warm_up, terms, distance, zero, w)

    terms = jnp.zeros((count, batches.baseline.shape[1]), starts.dtype)
    empty = Recorded.empty(draws, terms, starts if parameters else None)
    last = warm_up + draws
    w, record = jax.lax.fori_loop(0, last, turn, (starts, empty))
    _, chances = jax.lax.scan(lambda w, i: move_all(probe, w, i), w, last + jnp.arange(PROBES))
    chains = record.chains(jnp.zeros_like(empty.terms[0, 0]), step_size, w)
    return chains._replace(acceptance=jnp.mean(chances, axis=0))
