"""Interventions wrap a model: whatever takes a model takes an edited one, and nothing else changes."""

import abc
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
from jaxtyping import Array

from icllab.core.errors import InputError, expected
from icllab.core.protocols import AbstractModel, Edit, Trace
from icllab.core.views import fields_html, fields_repr
from icllab.models.interventions.recording import as_wide


class AbstractEdited(AbstractModel):
    """A model under an intervention; answers and declares as the wrapped model does."""

    model: eqx.AbstractVar[AbstractModel]

    __repr__ = fields_repr
    _repr_html_ = fields_html

    @abc.abstractmethod
    def edit_of(self, prompt: Any) -> Edit:
        """The intervention in a run on ``prompt``."""

    @property
    def positions(self) -> Literal["every", "last"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of the wrapped model."""
        return self.model.positions

    @property
    def traceable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of the wrapped model."""
        return self.model.traceable

    @property
    def differentiable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of the wrapped model."""
        return self.model.differentiable

    @property
    def batched(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of the wrapped model."""
        return self.model.batched

    def trace(self, prompt: Any, edit: Edit | None = None) -> Trace:
        """The wrapped model's trace; this intervention comes first, then ``edit``.

        Raises:
            InputError: The intervention returns every activation as it came: there is none of the name it waits for.
                Or it returns no array, or one of another shape.
        """
        own_edit, changes = self.edit_of(prompt), []

        def both(name: str, value: Array) -> Array:
            replacement = as_wide(name, value, own_edit(name, value))
            if replacement is not value:
                changes.append(name)
            return replacement if edit is None else as_wide(name, value, edit(name, replacement))

        result = self.model.trace(prompt, both)
        if not changes:
            names = ", ".join(result.activations)
            raise InputError(
                f"edit: expected one that changes an activation of the model, got none; there are: {names}"
            )
        return result


class Edited(AbstractEdited):
    """``model`` with ``edit`` applied to every named activation on its way."""

    model: AbstractModel
    edit: Edit

    def edit_of(self, prompt: Any) -> Edit:
        """The intervention, which is the same for all prompts."""
        del prompt
        return self.edit


class EditedBy(AbstractEdited):
    """``model`` under an edit that is made anew for every prompt: ``edit(prompt)`` is what is applied."""

    model: AbstractModel
    edit: Callable[[Any], Edit]

    def edit_of(self, prompt: Any) -> Edit:
        """The intervention in a run on ``prompt``."""
        return self.edit(prompt)


def edited(model: AbstractModel, edit: Edit) -> Edited:
    """``model`` under ``edit(name, value) -> value``, which returns what it leaves alone as it came.

    An edit that leaves all activations alone is refused when the model runs.
    """
    _require(model, edit, "a function of an activation's name and value")
    return Edited(model, edit)


def edited_by(model: AbstractModel, edit: Callable[[Any], Edit]) -> EditedBy:
    """``model`` under ``edit(prompt)(name, value) -> value``: an intervention that depends on what is asked."""
    _require(model, edit, "a function of a prompt, which returns an edit")
    return EditedBy(model, edit)


def _require(model: Any, edit: Any, requirement: str) -> None:
    if not callable(model) or not callable(getattr(model, "trace", None)):
        came = model.__name__ if isinstance(model, type) else type(model).__name__
        raise expected("model", "one with named activations, which has a trace", came)
    if not callable(edit):
        raise expected("edit", requirement, type(edit).__name__)
