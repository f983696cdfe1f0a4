"""Interventions wrap a model: whatever takes a model takes an edited one, and nothing else changes."""

from typing import Any, Literal

from icllab.core.protocols import AbstractModel, Edit, Trace


class Edited(AbstractModel):
    """``model`` with ``edit`` applied to every named activation on its way; answers and declares as ``model`` does."""

    model: AbstractModel
    edit: Edit

    @property
    def positions(self) -> Literal["every", "last"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the wrapped model."""
        return self.model.positions

    @property
    def traceable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the wrapped model."""
        return self.model.traceable

    @property
    def differentiable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the wrapped model."""
        return self.model.differentiable

    def trace(self, prompt: Any, edit: Edit | None = None) -> Trace:
        """The wrapped model's trace; this intervention comes first, then ``edit``."""
        if edit is None:
            return self.model.trace(prompt, self.edit)
        return self.model.trace(prompt, lambda name, value: edit(name, self.edit(name, value)))


def edited(model: AbstractModel, edit: Edit) -> Edited:
    """``model`` under ``edit(name, value) -> value``, which returns what it leaves alone as it came."""
    return Edited(model, edit)
