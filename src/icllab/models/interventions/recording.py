"""Names for a model's activations: each is recorded, and may be replaced when it is recorded."""

from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import numpy as np
from jaxtyping import Array

from icllab.core.errors import expected
from icllab.core.protocols import Edit

Record: TypeAlias = Callable[[str, Array], Array]


class Recorder:
    """``record(name, value) -> value``: records activations in the order of computation, each after ``edit``.

    An edit that returns no array, or one of another shape than the activation's, is refused by the activation's name.
    A model whose own changes are of other shapes gives them as ``first``, which comes before.

    What nobody reads afterwards costs nothing under ``jit``: the compiler drops it.
    """

    def __init__(self, edit: Edit | None = None, *, first: Edit | None = None) -> None:
        self.activations: dict[str, Array] = {}
        self._edit, self._first = edit, first

    def __call__(self, name: str, value: Array) -> Array:
        """Record and return ``value`` after ``edit``."""
        value = value if self._first is None else self._first(name, value)
        value = value if self._edit is None else as_wide(name, value, self._edit(name, value))
        self.activations[name] = value
        return value

    def within(self, part: str) -> Record:
        """The same recorder for a part of the model: ``name`` becomes ``part.name``, and ``""`` the part itself."""
        return lambda name, value: self(f"{part}.{name}" if name else part, value)


def as_wide(name: str, value: Array, replacement: Any) -> Any:
    """``replacement``; raise unless it is an array of the activation's shape."""
    if not eqx.is_array_like(replacement):
        raise expected("edit", f"an array for {name}", type(replacement).__name__)
    if np.shape(replacement) != value.shape:
        raise expected("edit", f"shape {value.shape} of {name}", np.shape(replacement))
    return replacement
