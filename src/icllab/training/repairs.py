"""Members whose parameters stopped being numbers, taken back to the last that were.

The compiled loop looks at the loss alone, which costs nothing. An update that is not finite therefore shows in the
parameters after it. Since every step can be made again with the same bits, such a member is replayed up to that
update, found by bisection, and the loop is spared a look at every parameter at every step.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from icllab.training.loop import State, sound_members
from icllab.training.stopping import DIVERGED


def repaired(replay: Callable[[Array], State], after: State, first: int, last: int) -> State:
    """``after``, with every member that has lost its parameters as it was before the update that lost them.

    Args:
        replay: The state when each member makes only the steps from ``first`` before its limit, ``[member]``.
        after: The state at step ``last``, as it came out of the loop.
        first: The stretch's first step, before which all parameters are finite.
        last: The step after its last.
    """
    lost = ~np.asarray(sound_members(after))
    if not lost.any():
        return after
    # Finite after the steps before `low`, not after those before `high`.
    low = np.full(lost.shape, first, np.int32)
    high = np.where(lost, last, first + 1).astype(np.int32)
    while (high - low > 1).any():
        middle = (low + high) // 2
        sound = np.asarray(sound_members(replay(jnp.asarray(middle))))
        low, high = np.where(sound, middle, low), np.where(sound, high, middle)
    limit = jnp.asarray(low)
    before = eqx.tree_at(
        lambda state: (state.status, state.ended), replay(limit), (jnp.full_like(after.status, DIVERGED), limit)
    )
    chosen = jnp.asarray(lost)
    return jax.tree.map(lambda a, b: jnp.where(chosen.reshape((-1,) + (1,) * (a.ndim - 1)), a, b), before, after)
