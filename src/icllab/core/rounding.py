"""Errors for numbers that JAX's types would round silently, and exact scaling into their range."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icllab.core.errors import expected

COARSE = 1 / 64
"""Rounding, as a fraction of the standard deviation, above which numbers are refused: losses err by its square."""


def require_representable(name: str, tree: Any) -> None:
    """Raise if JAX would lose the differences between the numbers of a NumPy array in a tree.

    A float64 array is refused if it has numbers that overflow, or if the root mean square of what rounding takes from a
    column (an index of the axes from the third on) exceeds 1/64 of its standard deviation; an integer array if it has
    numbers out of range.
    """
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if isinstance(leaf, np.ndarray) and leaf.size and leaf.dtype.kind in "fiu":
            _require(name + jax.tree_util.keystr(path), leaf, np.dtype(jax.dtypes.canonicalize_dtype(leaf.dtype)))


def _require(name: str, values: np.ndarray, dtype: np.dtype[Any]) -> None:
    if dtype == values.dtype:
        return
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        outside = values[(values < limits.min) | (values > limits.max)]
        if outside.size:
            raise expected(name, f"integers that {dtype} holds", int(outside[0]), "jax.enable_x64 holds larger ones")
        return
    limits = jnp.finfo(dtype)
    outside = values[np.isfinite(values) & (np.abs(values) > float(limits.max))]
    if outside.size:
        raise expected(name, f"numbers up to {limits.max:.3g}", float(outside[0]), "give them in another unit")
    columns = values.reshape(-1, *values.shape[2:])
    finite = np.where(np.isfinite(columns), columns, 0)
    lost = np.sqrt(np.mean((finite - finite.astype(dtype)) ** 2, axis=0))
    spread = np.where(np.ptp(finite, axis=0) > 0, finite.std(axis=0), np.inf)
    worst = np.max(np.where(lost > COARSE * spread, lost, 0))
    if worst > 0:
        hint = "subtract a constant or give them in another unit, or use jax.enable_x64"
        raise expected(name, f"numbers whose differences {dtype} holds", f"differences rounded by {worst:.3g}", hint)


def power_of_two(size: jax.Array) -> jax.Array:
    """A power of two near ``size``, so that division by it is exact; 1 for zero, infinity and NaN."""
    exponent_bits = jnp.finfo(size.dtype).nexp
    size = jax.lax.stop_gradient(jnp.abs(size))
    # The largest numbers would be rounded up to infinity, and half of the smallest to zero.
    power = jax.lax.reduce_precision(jnp.where(size > 1, size / 2, size), exponent_bits, 0)
    return jnp.where((power > 0) & jnp.isfinite(power), power, jnp.ones_like(power))


def unit_of_first(rows: jax.Array) -> jax.Array:
    """A power of two near the largest number of the first nonzero row; later rows do not change it."""
    sizes = jnp.max(jnp.abs(rows), axis=1)
    return power_of_two(sizes[jnp.argmax(sizes > 0)])
