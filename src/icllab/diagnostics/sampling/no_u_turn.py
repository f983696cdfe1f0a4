"""The no-U-turn sampler of blackjax, as a referee of our own chains: it shares no code with them."""

from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import EnvironmentFault
from icllab.diagnostics.sampling.langevin import Chains
from icllab.diagnostics.sampling.posteriors import Posterior


def sample_no_u_turn(
    posterior: Posterior,
    starts: Float[Array, "chain parameter"],
    *,
    step_size: Float[Array, ""],
    warm_up: int,
    draws: int,
    key: PRNGKeyArray,
) -> Chains:
    """Every chain adapts its own step and its own diagonal of masses in windows, then draws.

    The step size of the answer is the mean square of the chains' own; their masses differ from 1.

    Raises:
        EnvironmentFault: blackjax is not installed.
    """
    try:
        blackjax: Any = import_module("blackjax")
    except ImportError:
        raise EnvironmentFault("nuts: expected blackjax, got none; pip install 'icl-lab[singular]'") from None

    def potential(w: Array) -> Array:
        return posterior.potential(jnp.sum(posterior.loss(w)), w)

    def run(start: Array, key: PRNGKeyArray, baseline: Array) -> tuple[Array, ...]:
        of_window, of_draws = jax.random.split(key)

        def density(w: Array) -> Array:
            return -potential(w)

        window = blackjax.window_adaptation(blackjax.nuts, density, initial_step_size=step_size)
        (state, adapted), _ = window.run(of_window, start, num_steps=warm_up)
        kernel = blackjax.nuts(density, **adapted)

        def draw(state: Any, key: PRNGKeyArray) -> tuple[Any, tuple[Array, ...]]:
            state, info = kernel.step(key, state)
            w = state.position
            terms = jnp.atleast_1d(posterior.loss(w)) - baseline
            return state, (terms, jnp.sum((w - posterior.at) ** 2), info.acceptance_rate)

        state, found = jax.lax.scan(draw, state, jax.random.split(of_draws, draws))
        return *found, adapted["step_size"], state.position

    # blackjax mixes types and ranks on purpose.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        baseline = jnp.atleast_1d(posterior.loss(posterior.at))
        every = jax.jit(lambda starts, keys: jax.lax.map(lambda own: run(own[0], own[1], baseline), (starts, keys)))
        terms, distance, accepted, size, last = every(starts, jax.random.split(key, len(starts)))
    return Chains(terms, distance, jnp.mean(accepted, axis=1), jnp.mean(size**2), last)
