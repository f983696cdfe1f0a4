r"""Langevin dynamics without a Metropolis test, on batches of the data where there are more than one.

Other dynamics on batches are subclasses with an :meth:`~SGLD.advance` of their own.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core import progress
from icllab.core.domains import POSITIVE
from icllab.core.errors import expected, require_integer
from icllab.diagnostics.sampling.chains import (
    Chains,
    Kept,
    Move,
    Recorded,
    chain_groups,
    kept,
    over_chains,
    report,
    squared_distance,
)
from icllab.diagnostics.sampling.posteriors import ChainState, Posterior, Starts, Vector, langevin
from icllab.diagnostics.sampling.sampled_losses import AtPoint, Batches
from icllab.diagnostics.sampling.samplers import ChainSampler

PROBES = 8  # steps on batches whose acceptance is found, which costs a gradient
MEMORY = 1 << 30  # folded into the key of a chain for what it carries beside its parameters


@dataclass(frozen=True, kw_only=True)
class SGLD(ChainSampler):
    r"""Stochastic gradient Langevin dynamics: a step along the gradient of a batch with noise, always taken.

    .. math::
        w \leftarrow w - \frac\epsilon2\Bigl(n\beta\,\nabla L_b(w) + \gamma(w-w^*)\Bigr) + \sigma\sqrt\epsilon\,\xi

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
        noise_level: :math:`\sigma > 0`. Draws are those of :math:`e^{-U/\sigma^2}` at small steps, which is the
            posterior at 1 alone: an estimate at another level warns.

    Source: [WellingTeh11].
    Derived: docs/singular-learning.md, Estimates by sampling.
    """

    tested: ClassVar[bool] = False
    first_step: ClassVar[float] = 0.1  # a bias of at most 2.6 per cent on a quadratic

    batch: int = 256
    control_variate: bool = False
    noise_level: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_integer("batch", self.batch)
        POSITIVE.require("noise_level", self.noise_level)

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

    def memory(self, w: Vector, size: Array, key: PRNGKeyArray) -> Any:
        """What a chain carries beside its parameters, at its start."""
        return ()

    def advance(
        self, posterior: Posterior, w: Vector, memory: Any, slope: Vector, size: Array, noise: Vector
    ) -> tuple[Vector, Any]:
        """One step from w, with the gradient of the potential there and standard normal noise."""
        noise = noise if self.noise_level == 1 else self.noise_level * noise
        return posterior.reflected(w - size / 2 * slope + jnp.sqrt(size) * noise)[0], memory

    def could_be_tested(self, posterior: Posterior) -> bool:
        """Whether the steps are those of Langevin dynamics, which a Metropolis test could take."""
        return self.memoryless and self.noise_level == 1 and posterior.prior is None

    def draw(self, target: Any, starts: Starts, *, step_size: float, **options: Any) -> Chains:
        """Run the chains from their starts, on batches if the target has them; see :meth:`ChainSampler.draw`."""
        if not isinstance(target, Batches) and self.could_be_tested(target):
            return super().draw(target, starts, step_size=step_size, **options)
        size = jnp.asarray(step_size, starts.dtype)
        progress.stage(self.name, options["warm_up"] + self.moves, "moves")
        return sample_batches(target, starts, sampler=self, step_size=size, **options)


def _step(
    posterior: Posterior, evaluate: Any, states: ChainState, size: Array, key: PRNGKeyArray
) -> tuple[ChainState, Array]:
    noise = jax.random.normal(jax.random.split(key)[0], states.w.shape, states.w.dtype)
    return langevin(posterior, evaluate, states, noise, size)


def sample_batches(
    target: Posterior | Batches,
    starts: Starts,
    *,
    sampler: SGLD,
    step_size: Float[Array, ""],
    warm_up: int | Int[Array, ""],
    mode: str,
    key: PRNGKeyArray,
    parameters: Kept = False,
) -> Chains:
    r"""Run dynamics without a test, every chain on its own, on batches if the target has them.

    A draw is the loss of the step's batch at the place where the step begins, less that of the same batch at
    :math:`w^*`. The acceptance is that of a Metropolis test of the posterior of one batch, over a few steps at the end,
    NaN for other dynamics.

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
        _sample_batches(target, starts[part], keys[part], sampler, step_size, last, mode, parameters, watched)
        for part in parts
    ]
    if groups == 1:
        return runs[0]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves) if leaves[0].ndim else leaves[0], *runs)


@eqx.filter_jit
def _sample_batches(
    target: Posterior | Batches,
    starts: Starts,
    keys: Any,
    sampler: SGLD,
    step_size: Float[Array, ""],
    warm_up: Int[Array, ""],
    mode: str,
    parameters: Kept,
    watched: bool,
) -> Chains:
    batches, count = target if isinstance(target, Batches) else None, len(starts)
    posterior = target.posterior if isinstance(target, Batches) else target
    baseline = jnp.atleast_1d(posterior.loss(posterior.at)) if batches is None else batches.baseline[0]

    def step(key: PRNGKeyArray, w: Array, memory: Any) -> tuple[Array, Any, Array]:
        of_batch, of_noise = jax.random.split(key)
        if batches is None:
            _, slope, terms = posterior.evaluated(w)
            terms = terms - baseline
        else:
            _, slope, terms = batches.evaluated(w, batches.sample(of_batch))
        noise = jax.random.normal(of_noise, w.shape, w.dtype)
        return *sampler.advance(posterior, w, memory, slope, step_size, noise), terms

    def probe(key: PRNGKeyArray, w: Array) -> tuple[Array, Array]:
        assert batches is not None
        evaluated, (of_batch, of_noise) = batches.evaluated, jax.random.split(key)
        batch = batches.sample(of_batch)
        noise = jax.random.normal(of_noise, w.shape, w.dtype)[None]

        def evaluate(w: Array) -> tuple[Array, ...]:
            return tuple(value[None] for value in evaluated(w[0], batch))

        state, chances = langevin(posterior, evaluate, ChainState(w[None], *evaluate(w[None])), noise, step_size)
        return state.w[0], chances[0]

    def move_all(move: Any, number: Array, *states: Any) -> tuple[Any, ...]:
        return over_chains(lambda key, *of_chain: move(jax.random.fold_in(key, number), *of_chain), mode)(keys, *states)

    def turn(number: Array, carry: tuple[Array, Any, Recorded]) -> tuple[Array, Any, Recorded]:
        w, memory, record = carry
        after, memory, terms = move_all(step, number, w, memory)
        if watched:  # by every group: the furthest of them is what is seen
            report(number, last, posterior.nbeta * jnp.mean(jnp.sum(terms, axis=1)))
        distance, zero, values = squared_distance(posterior, w), jnp.zeros(count, w.dtype), kept(w, parameters)
        return after, memory, record.with_draw(number - warm_up, sampler.thinning, terms, distance, zero, values)

    terms = jnp.zeros((count, *baseline.shape), starts.dtype)
    memory = jax.vmap(lambda w, key: sampler.memory(w, step_size, jax.random.fold_in(key, MEMORY)))(starts, keys)
    empty, last = Recorded.empty(sampler.steps[1], terms, kept(starts, parameters)), warm_up + sampler.moves
    w, _, record = jax.lax.fori_loop(0, last, turn, (starts, memory, empty))
    chains = record.chains(jnp.zeros_like(empty.terms[0, 0]), step_size, w)
    if batches is None or not sampler.could_be_tested(posterior):
        return chains._replace(acceptance=jnp.full(count, jnp.nan, w.dtype))
    _, chances = jax.lax.scan(lambda w, i: move_all(probe, i, w), w, last + jnp.arange(PROBES))
    return chains._replace(acceptance=jnp.mean(chances, axis=0))
