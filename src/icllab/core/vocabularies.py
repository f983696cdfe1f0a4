"""Checks of ids of tokens, labels and classes; JAX would silently look up another id for one out of range."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool

from icllab.core.errors import expected

PADDING = "mask the padding, TokenPrompt(tokens, mask=...), or TokenPrompt.from_ragged(sequences)"


def are_ids(ids: Any, size: int) -> Bool[Array, "*ids"]:
    """True for each integer from 0 to ``size`` - 1."""
    ids = jnp.asarray(ids)
    return (ids >= 0) & (ids <= min(size - 1, np.iinfo(ids.dtype).max))


def in_vocabulary(name: str, ids: Any, size: int, hint: str = "") -> Bool[Array, "*ids"]:
    """True for each id from 0 to ``size`` - 1; raise for other ids unless they are traced.

    Raises:
        InputError: The ids are known, and one is outside.
    """
    valid = are_ids(ids, size)
    if not isinstance(valid, Tracer) and not np.all(valid):
        index = tuple(int(i) for i in np.argwhere(~np.asarray(valid))[0])
        place = f" at {index[0] if len(index) == 1 else list(index)}" if index else ""
        actual = int(np.asarray(ids)[index])
        raise expected(f"{name}{place}", f"an id from 0 to {size - 1}, a vocabulary of {size}", actual, hint)
    return valid
