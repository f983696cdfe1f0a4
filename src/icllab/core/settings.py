"""JAX settings on which the numbers of a key depend: the random generator and the rounding of products.

The environment and ``jax.config`` may change both. A claim's numbers belong to one generator, which is pinned while
they are measured; the default precision of matrix products is the user's choice and part of a configuration.
"""

import contextlib
import os
import sys
from collections.abc import Iterator

IMPLEMENTATION = "threefry2x32"
GENERATOR = f"{IMPLEMENTATION}, partitionable"
"""The random generator of every claim."""
DEFAULT = "default"
"""The precision of matrix products if none is set."""
_UNSCOPED = {"jax_random_seed_offset": 0, "jax_high_dynamic_range_gumbel": False}
"""Settings that change what a key draws, for which JAX has no context manager."""
_ALIASES = {"bfloat16": DEFAULT, "tensorfloat32": "high", "float32": "highest"}


@contextlib.contextmanager
def pinned_generator() -> Iterator[None]:
    """Draw from :data:`GENERATOR` inside the block, regardless of the environment and ``jax.config``."""
    import jax

    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.default_prng_impl(IMPLEMENTATION))
        stack.enter_context(jax.threefry_partitionable(True))
        for name, value in _UNSCOPED.items():
            before = getattr(jax.config, name, value)
            if before != value:
                jax.config.update(name, value)
                stack.callback(jax.config.update, name, before)
        yield


def matmul_precision() -> str:
    """The default precision of matrix products, by one name where JAX has several; JAX is not imported."""
    jax = sys.modules.get("jax")
    variable = os.environ.get("JAX_DEFAULT_MATMUL_PRECISION")
    setting = variable if jax is None else jax.config.jax_default_matmul_precision
    return _ALIASES.get(setting, setting) if setting else DEFAULT


@contextlib.contextmanager
def rounded_products(precision: str) -> Iterator[None]:
    """Compute matrix products in a default precision of :func:`matmul_precision` inside the block."""
    import jax

    setting = None if precision == DEFAULT else precision
    with jax.default_matmul_precision(setting):  # pyright: ignore[reportArgumentType]
        yield
