"""How members are run: one after the other, or side by side; chosen by a short timing."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from icllab.training.loop import CAPACITY, Mode, Own, Program, State, advanced

SECONDS = 0.3  # how long each mode is tried, its compilation apart


def chosen_mode(
    mode: str, program: Program, own: Own, state: State, first: int, members: int
) -> tuple[Mode, dict[str, Any]]:
    """The mode to run in, and what was timed: seconds per step of all members, and seconds to compile.

    ``"auto"`` runs a few steps both ways from the present state, keeps none of them, and takes the faster. The
    programs are those of the run itself: the winner is not compiled again.
    """
    modes: tuple[Mode, ...] = ("map",) if mode == "auto" and members == 1 else ("map", "vmap")
    modes = modes if mode == "auto" else (("map",) if mode == "map" else ("vmap",))
    timings: dict[str, Any] = {}
    for one in modes:
        # The first step of a single mode is also timed: that is where its compilation shows.
        step, compiling = timed(lambda steps, one=one: _run(program, one, own, state, first, steps), len(modes) > 1)
        timings[one] = {"seconds_per_step": step, "seconds_to_compile": compiling}
    return min(modes, key=lambda one: timings[one]["seconds_per_step"] or 0.0), timings


def _run(program: Program, mode: Mode, own: Own, state: State, first: int, steps: int) -> None:
    limit = jnp.full(own.key.shape, 2**31 - 1, jnp.int32)
    jax.block_until_ready(
        advanced(program, mode, own, state, jnp.int32(first), jnp.int32(first + steps), limit)[0].status
    )


def timed(run: Callable[[int], None], several: bool) -> tuple[float | None, float]:
    """Seconds per step (the least of three tries; None where nothing is to be compared) and to compile."""
    clock = time.perf_counter()
    run(0)
    compiling = time.perf_counter() - clock
    if not several:
        return None, compiling
    clock = time.perf_counter()
    run(1)
    steps = max(1, min(CAPACITY, int(SECONDS / 3 / max(time.perf_counter() - clock, 1e-9))))
    tries = []
    for _ in range(3):
        clock = time.perf_counter()
        run(steps)
        tries.append((time.perf_counter() - clock) / steps)
    return min(tries), compiling
