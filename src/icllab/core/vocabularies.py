"""Ids of a vocabulary: tokens, labels and classes, of which JAX looks up another where one does not exist."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool

from icllab.core.errors import expected

PADDING = "mask what is padding, TokenPrompt(tokens, mask=...), or TokenPrompt.from_ragged(sequences)"


def are_ids(ids: Any, size: int) -> Bool[Array, "*ids"]:
    """Whether each of some integers is from 0 to ``size`` - 1."""
    ids = jnp.asarray(ids)
    return (ids >= 0) & (ids <= min(size - 1, np.iinfo(ids.dtype).max))


def in_vocabulary(name: str, ids: Any, size: int, hint: str = "") -> Bool[Array, "*ids"]:
    """Whether each id is from 0 to ``size`` - 1; where ids are traced, to give NaN for what belongs to others.

    Raises:
        InputError: The ids are known, and one is outside.
    """
    valid = are_ids(ids, size)
    if not isinstance(valid, Tracer) and not np.all(valid):
        index = tuple(int(i) for i in np.argwhere(~np.asarray(valid))[0])
        at = f" at {index[0] if len(index) == 1 else list(index)}" if index else ""
        came = int(np.asarray(ids)[index])
        raise expected(f"{name}{at}", f"an id from 0 to {size - 1}, a vocabulary of {size}", came, hint)
    return valid
