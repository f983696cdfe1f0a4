"""Interventions as wrappers: an edited model can be used wherever a model can."""

import abc
import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array

from icllab.core.errors import InputError, expected
from icllab.core.protocols import AbstractModel, Edit, Trace
from icllab.core.views import fields_html, fields_repr
from icllab.models.interventions.recording import as_wide

Function = TypeVar("Function", bound=Callable[..., Any])
SELECTIONS = ("scatter", "select_n", "dynamic_update_slice", "iota")  # operations of JAX that choose entries


class AbstractEdited(AbstractModel):
    """A model under an intervention, with the answers' properties of the wrapped model."""

    model: eqx.AbstractVar[AbstractModel]

    __repr__ = fields_repr
    _repr_html_ = fields_html

    @abc.abstractmethod
    def edit_of(self, prompt: Any) -> Edit:
        """The intervention in a run on ``prompt``."""

    @property
    def positions(self) -> Literal["every", "last"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of the wrapped model: "every" or "last"."""
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
        """The wrapped model's trace under this intervention and then ``edit``.

        Raises:
            InputError: The intervention returns every activation as it came: there is none of the name it waits for.
                Or it selects entries that do not exist, or returns no array, or one of another shape.
        """
        if getattr(prompt, "stack_axes", 0) > 0:
            return jax.vmap(lambda single: self.trace(single, edit))(prompt)
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
                f"edit: expected a change of an activation of the model, got an edit without effect; known: {names}"
            )
        return result


class Edited(AbstractEdited):
    """``model`` with ``edit`` applied to every named activation."""

    model: AbstractModel
    edit: Edit

    def edit_of(self, prompt: Any) -> Edit:
        """The intervention, which is the same for all prompts; it raises if it selects entries that do not exist."""
        del prompt
        return functools.partial(_replaced, self.edit)


class EditedBy(AbstractEdited):
    """``model`` under ``edit(prompt)``, an edit that is made anew for every prompt."""

    model: AbstractModel
    edit: Callable[[Any], Edit]

    def edit_of(self, prompt: Any) -> Edit:
        """The intervention in a run on ``prompt``."""
        return self.edit(prompt)


def of_language_models(function: Function) -> Function:
    """Decorate an intervention so that it takes a language model of ``pretrained.open`` too, and returns one."""

    @functools.wraps(function)
    def wrapped(model: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(model, "tokenizer"):
            return function(model, *args, **kwargs)
        return type(model)(function(model.model, *args, **kwargs), model.tokenizer)

    return wrapped  # pyright: ignore[reportReturnType]


@of_language_models
def edited(model: AbstractModel, edit: Edit) -> Edited:
    """``model`` under ``edit(name, value) -> value``, which returns other activations unchanged.

    An edit that leaves all activations alone is refused when the model runs, and so is one of entries that do not
    exist, such as a third head of two. To tell, it may be called on other numbers in the place of an activation.
    """
    _require(model, edit, "a function of an activation's name and value")
    return Edited(model, edit)


@of_language_models
def edited_by(model: AbstractModel, edit: Callable[[Any], Edit]) -> EditedBy:
    """``model`` under ``edit(prompt)(name, value) -> value``, an intervention that depends on the prompt."""
    _require(model, edit, "a function of a prompt, which returns an edit")
    return EditedBy(model, edit)


def unedited(model: Any) -> Any:
    """The model within all interventions."""
    while isinstance(model, AbstractEdited):
        model = model.model
    return model


def _replaced(edit: Edit, name: str, value: Array) -> Array:
    """Apply ``edit`` to an activation; raise if it selects entries that do not exist.

    JAX drops them in silence, as of ``value.at[9].set(0)`` where there are two heads. So an edit that changes nothing
    is tried on random numbers too, and afterwards called once more for what it may keep on its way.
    """
    replacement = as_wide(name, value, edit(name, value))
    if replacement is value:
        return value
    concrete = not isinstance(replacement, Tracer) and not isinstance(value, Tracer)
    if concrete and not np.array_equal(np.asarray(replacement), np.asarray(value), equal_nan=True):
        return replacement
    if _selects_nothing(edit, name, value):
        hint = "JAX ignores indices that are too large; count heads, tokens and layers from 0"
        raise expected(
            "edit", f"entries within shape {value.shape} of {name}", "an edit that selects none of them", hint
        )
    return as_wide(name, value, edit(name, value))


def _selects_nothing(edit: Edit, name: str, value: Array) -> bool:
    """True if an edit that selects entries changes no entry of random numbers; scaling by 1 selects none."""
    jaxpr, shape = jax.make_jaxpr(lambda v: edit(name, v), return_shape=True)(value)
    if jaxpr.jaxpr.outvars[0] is jaxpr.jaxpr.invars[0]:
        return True
    chooses = any(word in str(jaxpr) for word in SELECTIONS)
    if not chooses or shape.dtype != value.dtype or any(isinstance(part, Tracer) for part in jaxpr.consts):
        return False
    probe = np.random.default_rng(0).normal(size=value.shape).astype(value.dtype)
    with jax.ensure_compile_time_eval():
        (answer,) = jaxpr_as_fun(jaxpr)(probe)
        return bool(np.array_equal(np.asarray(answer), probe))


def _require(model: Any, edit: Any, requirement: str) -> None:
    if not callable(model) or not callable(getattr(model, "trace", None)):
        actual = model.__name__ if isinstance(model, type) else type(model).__name__
        raise expected("model", "a model with named activations and a method trace", actual)
    if not callable(edit):
        raise expected("edit", requirement, type(edit).__name__)
