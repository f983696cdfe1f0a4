"""Names for what a model computes on its way: every activation is written down, and may be replaced there."""

from collections.abc import Callable
from typing import TypeAlias

from jaxtyping import Array

from icllab.core.protocols import Edit

Record: TypeAlias = Callable[[str, Array], Array]


class Recorder:
    """``record(name, value) -> value``: keeps activations in the order they come, each after ``edit``.

    What nobody reads afterwards costs nothing under ``jit``: the compiler drops it.
    """

    def __init__(self, edit: Edit | None = None) -> None:
        self.activations: dict[str, Array] = {}
        self._edit = edit

    def __call__(self, name: str, value: Array) -> Array:
        """``value``, or what ``edit`` makes of it."""
        value = value if self._edit is None else self._edit(name, value)
        self.activations[name] = value
        return value

    def within(self, part: str) -> Record:
        """The same recorder for a part of the model: ``name`` becomes ``part.name``, and ``""`` the part itself."""
        return lambda name, value: self(f"{part}.{name}" if name else part, value)
