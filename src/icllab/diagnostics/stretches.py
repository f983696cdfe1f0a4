"""Maps over rows that return to Python about every quarter of a second, so that Ctrl-C is seen."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from icllab.core.progress import in_stretches


def map_in_stretches(function: Callable[[Any], Any], rows: Any) -> Any:
    """Values of a function at every row of a tree of arrays, as by ``jax.lax.map``, one after the other."""
    count = len(jax.tree.leaves(rows)[0])
    shapes = eqx.filter_eval_shape(function, jax.tree.map(lambda leaf: leaf[0], rows))
    values = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), shapes)
    return in_stretches(
        lambda values, first, end: _filled((function, rows), values, jnp.asarray(first), jnp.asarray(end)),
        values,
        count,
        shown=False,
    )


@eqx.filter_jit(donate="all-except-first")
def _filled(problem: tuple[Callable[[Any], Any], Any], values: Any, first: Any, end: Any) -> Any:
    """Fill in the values of the rows from ``first`` to ``end``."""
    function, rows = problem

    def step(i: Any, values: Any) -> Any:
        new = function(jax.tree.map(lambda leaf: leaf[i], rows))
        return jax.tree.map(lambda whole, value: whole.at[i].set(value), values, new)

    return jax.lax.fori_loop(first, end, step, values)
