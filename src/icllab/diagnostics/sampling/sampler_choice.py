"""Which sampler, and whether its chains run side by side: by what a gradient costs."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from icllab.diagnostics.sampling.chains import chain_groups, over_chains
from icllab.diagnostics.sampling.hmc import HMC
from icllab.diagnostics.sampling.posteriors import Posterior, Starts
from icllab.diagnostics.sampling.sampled_losses import Batches
from icllab.diagnostics.sampling.samplers import ChainSampler
from icllab.diagnostics.sampling.sgld import SGLD
from icllab.training.autotune import timed

QUICK = 5e-3  # seconds of a whole loss with its gradient below which nothing is gained by batches
BEARABLE, FEW = 5e-2, 20_000  # the same where there are not more than so many parameters
OVERHEAD = 2e-3  # seconds of a gradient below which a step is mostly overhead, which chains side by side share
WORK = 0.1  # seconds above which they gain nothing, and need the memory of all at once


def chosen_sampler(seconds: float, parameters: int, samples: int) -> tuple[ChainSampler, str]:
    """Hamiltonian Monte Carlo, or Langevin dynamics on batches, with their defaults; and why, in a sentence.

    ``seconds`` are those of the whole loss and its gradient; a loss without data has 0 ``samples``.
    """
    cost = f"the whole loss and its gradient take {1e3 * seconds:.2g} ms"
    sgld = SGLD()
    if seconds < QUICK:
        return HMC(), f"{cost}, below {1e3 * QUICK:g}"
    if not samples:
        return HMC(), f"{cost}, and there are no data to draw batches of"
    if samples <= sgld.batch:
        return HMC(), f"{cost}, and all {samples} samples are one batch"
    if parameters <= FEW and seconds < BEARABLE:
        return HMC(), f"{cost}, below {1e3 * BEARABLE:g}, at {parameters} parameters, not above {FEW}"
    return sgld, f"{cost}, of {samples} samples with {parameters} parameters: batches of {sgld.batch} cost less"


def chosen_mode(target: Posterior | Batches, starts: Starts, seconds: float, key: PRNGKeyArray) -> tuple[str, str]:
    """``"vmap"`` or ``"map"``, and why.

    A few gradients of all chains are taken both ways, unless one costs so little that a step is overhead, or too much:
    it takes about so many ``seconds``.
    """
    if seconds < OVERHEAD:
        return "vmap", f"a gradient takes {1e3 * seconds:.2g} ms, below {1e3 * OVERHEAD:g}"
    if seconds > WORK:
        return "map", f"a gradient takes {1e3 * seconds:.2g} ms, above {1e3 * WORK:g}"
    zero = jnp.zeros((), starts.dtype)

    def run(one: str) -> Any:
        return lambda steps: jax.block_until_ready(_turns(target, starts, zero, one, jnp.asarray(steps), key))

    costs = {one: timed(run(one), True)[0] or 0.0 for one in ("map", "vmap")}
    if isinstance(target, Batches):
        costs["map"] /= chain_groups(len(starts))
    said = ", ".join(f"{1e3 * cost / len(starts):.2g} ms with {one}" for one, cost in costs.items())
    return min(costs, key=lambda one: costs[one]), f"a gradient of one chain takes {said}"


@eqx.filter_jit
def _turns(target: Any, starts: Array, zero: Array, mode: str, steps: Array, key: PRNGKeyArray) -> Array:
    """So many gradients of every chain; ``zero`` keeps chains where they are, which the compiler does not know."""

    def turn(w: Array, key: PRNGKeyArray) -> Array:
        found = target.evaluated(w, target.drawn(key)) if isinstance(target, Batches) else target.evaluated(w)
        return w - zero * found[1]

    def all_turn(i: Array, w: Array) -> Array:
        return over_chains(turn, mode)(w, jax.random.split(jax.random.fold_in(key, i), len(starts)))

    return jax.lax.fori_loop(0, steps, all_turn, starts)
