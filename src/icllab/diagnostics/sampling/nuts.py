"""The no-U-turn sampler of blackjax, as a referee of our own chains: it shares no code with them."""

import math
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from icllab.core import progress
from icllab.core.errors import EnvironmentFault, install_command
from icllab.diagnostics.sampling.chains import Chains, Kept, kept
from icllab.diagnostics.sampling.posteriors import Starts
from icllab.diagnostics.sampling.samplers import ChainSampler


@dataclass(frozen=True, kw_only=True)
class NUTS(ChainSampler):
    r"""The no-U-turn sampler: Hamiltonian trajectories that are doubled until they turn back.

    A trajectory from :math:`(w^-, p^-)` to :math:`(w^+, p^+)` ends where one of its ends would come nearer to the
    other. With masses M and the sum :math:`\rho` of the momenta on the way, which of an exact trajectory is along
    :math:`w^+ - w^-`, that is where

    .. math:: \rho\cdot M^{-1}p^- \le 0 \quad\text{or}\quad \rho\cdot M^{-1}p^+ \le 0, \qquad
              \rho = \sum p - \tfrac12(p^- + p^+) ,

    and the next draw is one of its states. Every chain adapts a step size and a diagonal of masses of its own while it
    warms up. The code is blackjax's (the extra ``[singular]``). Chains run one after the other, so that those which end
    their trajectories are not kept waiting. Its moves are trajectories.

    Source: [HoffmanGelman14].
    """

    mode_reason: ClassVar[str] = "chains that end their trajectories are not kept waiting"

    warm_up: int = 500
    mode: str = field(default="map", init=False, repr=False)

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
        """Run the chains from their starts, see :meth:`ChainSampler.draw`.

        The step size of the answer is the mean square of the chains' own; their masses differ from 1.

        Raises:
            EnvironmentFault: blackjax is not installed.
        """
        blackjax = _blackjax()
        moves = (draws or self.steps[1]) * self.thinning
        first_step = jnp.asarray(math.sqrt(step_size), starts.dtype)
        progress.stage(self.name, len(starts) * moves, "draws")

        def density(w: Array) -> Array:
            return -target.potential(jnp.sum(target.loss(w)), w)

        @jax.jit
        def adapted(start: Array, key: PRNGKeyArray) -> tuple[Any, dict[str, Any]]:
            window = blackjax.window_adaptation(blackjax.nuts, density, initial_step_size=first_step)
            return window.run(key, start, num_steps=warm_up)[0]

        row = partial(_row, target, parameters)

        @jax.jit
        def turns(adaptation: Any, keys: Any, baseline: Array, carry: Any, first: Array, end: Array) -> Any:
            kernel = blackjax.nuts(density, **adaptation)

            def draw(number: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
                state, info = kernel.step(jax.random.clone(keys)[number], carry[0])  # one key a turn
                new = row(state, info.acceptance_rate, baseline)
                return state, jax.tree.map(lambda rows, value: rows.at[number].set(value), carry[1], new)

            return jax.lax.fori_loop(first, end, draw, carry)

        def run(number: int, start: Array, key: PRNGKeyArray, baseline: Array) -> tuple[Any, ...]:
            of_window, of_draws = jax.random.split(key)
            state, adaptation = adapted(start, of_window)
            keys = jax.random.split(of_draws, moves)
            like = row(state, jnp.zeros((), start.dtype), baseline)
            empty = jax.tree.map(lambda leaf: jnp.zeros((moves, *leaf.shape), leaf.dtype), like)
            state, rows = progress.in_stretches(
                lambda carry, *ends: turns(adaptation, keys, baseline, carry, *map(jnp.asarray, ends)),
                (state, empty),
                moves,
                before=number * moves,
            )
            rows = jax.tree.map(lambda leaf: leaf[self.thinning - 1 :: self.thinning], rows)
            return adaptation["step_size"], state.position, *rows

        # blackjax mixes types and ranks on purpose.
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            baseline = jnp.atleast_1d(target.loss(target.at))
            keys = jax.random.split(key, len(starts))
            chains = [run(i, start, keys[i], baseline) for i, start in enumerate(starts)]
        size, last, terms, distance, acceptance, w = jax.tree.map(lambda *leaves: jnp.stack(leaves), *chains)
        return Chains(terms, distance, jnp.mean(acceptance, axis=1), jnp.mean(size**2), last, w)


def _row(target: Any, parameters: Kept, state: Any, acceptance: Array, baseline: Array) -> tuple[Any, ...]:
    """Terms above the baseline, squared distance, acceptance and kept values of a draw."""
    w = state.position
    values = jax.tree.map(lambda leaf: leaf[0], kept(w[None], parameters))
    return jnp.atleast_1d(target.loss(w)) - baseline, jnp.sum((w - target.at) ** 2), acceptance, values


def _blackjax() -> Any:
    """Import blackjax, or raise with the command that installs it."""
    try:
        return import_module("blackjax")
    except ImportError:
        raise EnvironmentFault(f"nuts: expected blackjax, got none; {install_command('singular')}") from None
