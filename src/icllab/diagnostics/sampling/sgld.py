r"""Langevin dynamics without a Metropolis test, on batches of the data where there are more than one.

Other dynamics on batches are subclasses with an :meth:`~SGLD.advance` of their own.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
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
    described,
    kept,
    over_chains,
    require_bounded,
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
    def gradients_per_move(self) -> int:
        """One, and another one at the point for the control variate."""
        return 2 if self.control_variate else 1

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
        """The state of a chain beside its parameters, at its start."""
        return ()

    def advance(
        self, posterior: Posterior, w: Vector, memory: Any, slope: Vector, size: Array, noise: Vector
    ) -> tuple[Vector, Any]:
        """One step from w, with the gradient of the potential there and standard normal noise."""
        noise = noise if self.noise_level == 1 else self.noise_level * noise
        return posterior.reflected(w - size / 2 * slope + jnp.sqrt(size) * noise)[0], memory

    def could_be_tested(self, posterior: Posterior) -> bool:
        """True for steps of Langevin dynamics, to which a Metropolis test applies."""
        return self.memoryless and self.noise_level == 1 and posterior.prior is None

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
        """Run the chains from their starts, on batches if the target has them; see :meth:`ChainSampler.draw`."""
        options: Any = {"mode": mode, "key": key, "parameters": parameters}
        if not isinstance(target, Batches) and self.could_be_tested(target):
            return super().draw(target, starts, step_size=step_size, warm_up=warm_up, draws=draws, **options)
        steps = (warm_up, draws or self.steps[1])
        progress.stage(self.name, warm_up + steps[1] * self.thinning, "moves")
        size = jnp.asarray(step_size, starts.dtype)
        return sample_batches(target, starts, sampler=self, step_size=size, steps=steps, **options)


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
    steps: tuple[int, int],
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
    warm_up, draws = steps
    keys = jax.vmap(lambda chain: jax.random.fold_in(key, chain))(jnp.arange(len(starts)))
    groups = chain_groups(len(starts)) if mode == "map" else 1
    size, posterior = len(starts) // groups, target.posterior if isinstance(target, Batches) else target
    parts = [slice(i, i + size) for i in range(0, len(starts), size)]
    loops = [_Loop(target, keys[part], step_size, jnp.asarray(warm_up), sampler, mode, parameters) for part in parts]

    def advance(carries: Any, first: int, end: int) -> Any:
        # A call returns before it is done, so that all groups run at once.
        ends = [(jnp.asarray(first), jnp.asarray(end)) for _ in loops]
        return [_turns(loop, carry, *pair) for loop, carry, pair in zip(loops, carries, ends, strict=True)]

    def above(carries: Any) -> np.ndarray:
        return np.concatenate([np.asarray(carry[3], np.float64).sum(1) for carry in carries])

    known = np.asarray(target.baseline, np.float64)
    level = float(known.mean(0).sum() if isinstance(target, Batches) else known)
    begin = [_begin(loop, jnp.array(starts[part])) for loop, part in zip(loops, parts, strict=True)]
    carries = progress.in_stretches(
        advance,
        begin,
        warm_up + draws * sampler.thinning,
        text=lambda carries: described(float(posterior.nbeta) * above(carries).mean()),
        check=lambda carries: require_bounded(level, above(carries)),
    )
    runs = [_finished(loop, *carry[:3:2]) for loop, carry in zip(loops, carries, strict=True)]
    if groups == 1:
        return runs[0].first(draws)
    chains = jax.tree.map(lambda *leaves: jnp.concatenate(leaves) if leaves[0].ndim else leaves[0], *runs)
    return chains.first(draws)


class _Loop(eqx.Module):
    """Loop of one group of chains, but for its carry: parameters, memory, record and the last terms."""

    target: Posterior | Batches
    keys: Any
    step_size: Float[Array, ""]
    warm_up: Int[Array, ""]
    sampler: SGLD
    mode: str = eqx.field(static=True)
    parameters: Kept = False

    @property
    def posterior(self) -> Posterior:
        """The posterior of all the data."""
        return self.target.posterior if isinstance(self.target, Batches) else self.target

    @property
    def baseline(self) -> Array:
        """Terms at the point; of batches their number alone is used."""
        if isinstance(self.target, Batches):
            return self.target.baseline[0]
        return jnp.atleast_1d(self.target.loss(self.target.at))

    def for_all(self, move: Any, number: Array, *states: Any) -> tuple[Any, ...]:
        """A move of every chain, with the key of its number."""

        def of_chain(key: PRNGKeyArray, *state: Any) -> Any:
            return move(jax.random.fold_in(key, number), *state)

        return over_chains(of_chain, self.mode)(self.keys, *states)


@eqx.filter_jit
def _begin(loop: _Loop, starts: Starts) -> tuple[Array, Any, Recorded, Array]:
    """Parameters at the starts, the memory of the dynamics, room for the draws, and no terms."""
    terms, sampler = jnp.zeros((len(starts), *loop.baseline.shape), starts.dtype), loop.sampler
    memory = jax.vmap(lambda w, key: sampler.memory(w, loop.step_size, jax.random.fold_in(key, MEMORY)))(
        starts, loop.keys
    )
    return starts, memory, Recorded.empty(sampler.steps[1], terms, kept(starts, loop.parameters)), terms


@eqx.filter_jit(donate="all-except-first")
def _turns(loop: _Loop, carry: Any, first: Int[Array, ""], end: Int[Array, ""]) -> Any:
    """The carry after the steps from ``first`` to ``end``."""
    batches, posterior = loop.target if isinstance(loop.target, Batches) else None, loop.posterior
    sampler, baseline = loop.sampler, loop.baseline

    def step(key: PRNGKeyArray, w: Array, memory: Any) -> tuple[Array, Any, Array]:
        of_batch, of_noise = jax.random.split(key)
        if batches is None:
            _, slope, terms = posterior.evaluated(w)
            terms = terms - baseline
        else:
            _, slope, terms = batches.evaluated(w, batches.sample(of_batch))
        noise = jax.random.normal(of_noise, w.shape, w.dtype)
        return *sampler.advance(posterior, w, memory, slope, loop.step_size, noise), terms

    def turn(number: Array, carry: tuple[Array, Any, Recorded, Array]) -> tuple[Array, Any, Recorded, Array]:
        w, memory, record, _ = carry
        after, memory, terms = loop.for_all(step, number, w, memory)
        distance, zero = squared_distance(posterior, w), jnp.zeros(len(w), w.dtype)
        number = number - loop.warm_up
        record = record.with_draw(number, sampler.thinning, terms, distance, zero, kept(w, loop.parameters))
        return after, memory, record, terms

    return jax.lax.fori_loop(first, end, turn, carry)


@eqx.filter_jit
def _finished(loop: _Loop, w: Array, record: Recorded) -> Chains:
    """The draws, with the acceptance of a Metropolis test of the posterior of one batch."""
    batches, sampler = loop.target if isinstance(loop.target, Batches) else None, loop.sampler
    posterior, last = loop.posterior, loop.warm_up + sampler.moves

    def probe(key: PRNGKeyArray, w: Array) -> tuple[Array, Array]:
        assert batches is not None
        evaluated, (of_batch, of_noise) = batches.evaluated, jax.random.split(key)
        batch = batches.sample(of_batch)
        noise = jax.random.normal(of_noise, w.shape, w.dtype)[None]

        def evaluate(w: Array) -> tuple[Array, ...]:
            return tuple(value[None] for value in evaluated(w[0], batch))

        state, chances = langevin(posterior, evaluate, ChainState(w[None], *evaluate(w[None])), noise, loop.step_size)
        return state.w[0], chances[0]

    chains = record.chains(jnp.zeros_like(record.terms[0, 0]), loop.step_size, w)
    if batches is None or not sampler.could_be_tested(posterior):
        return chains._replace(acceptance=jnp.full(len(w), jnp.nan, w.dtype))
    _, chances = jax.lax.scan(lambda w, i: loop.for_all(probe, i, w), w, last + jnp.arange(PROBES))
    return chains._replace(acceptance=jnp.mean(chances, axis=0))
