"""Validation of the user's own predictors: a call on two prompts, on the host if JAX cannot trace them.

Predictors of this library declare their properties, and its tests hold them to these. A predictor of the library that
holds a function of the user's is validated as the user's own predictors are.
"""

# A predictor may answer with a tensor.
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
import dataclasses
import functools
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.errors import JAXTypeError
from jaxtyping import Array, PRNGKeyArray

from icllab.core.errors import IclError, InputError, ResultWarning, expected, require_key
from icllab.core.protocols import AbstractPredictor, AbstractTask, Predictor, answer_single, declared, require_task
from icllab.diagnostics.causality import Examination, examine
from icllab.models.pytorch import FromTorch, from_module, is_torch_module
from icllab.training.ensembles import Ensemble
from icllab.training.runs import Run, Trajectory

# Packages whose callables are not the user's; a builtin may have no module.
_LIBRARIES = ("", "builtins", "equinox", "functools", "icllab", "jax", "jaxlib", "math", "numpy", "scipy")


class OnHost:
    """A function of NumPy, PyTorch or another library, called on the host and without a gradient."""

    traceable: ClassVar[bool] = False
    differentiable: ClassVar[bool] = False

    def __init__(self, function: Predictor) -> None:
        self.function = function
        self.positions: Literal["every", "last"] = declared(function, "positions")
        self.batched: bool = declared(function, "batched")
        self.__name__ = name_of(function)

    def __call__(self, prompt: Any) -> Array:
        """The function's answer, as an array of JAX."""
        answer: Any = self.function(prompt)
        if isinstance(answer, list | tuple) and declared(self.function, "traceable"):
            hint = "numpy.array or jax.numpy.stack makes one"
            raise expected(f"predictor {self.__name__!r}", "an array of answers", type(answer).__name__, hint)
        if answer is None:
            raise expected(f"predictor {self.__name__!r}", "an array of answers", None, "it returns nothing")
        for step in ("detach", "cpu", "double"):  # a tensor of PyTorch on any device, of any dtype
            answer = getattr(answer, step)() if hasattr(answer, step) else answer
        return jnp.asarray(np.asarray(answer, np.float64), float)


def validate_predictor(
    predictors: Any, task: AbstractTask, *, key: PRNGKeyArray, complaints: list[str] | None = None
) -> Any:
    """Return the predictors, with each of the user's own in a form that can be called.

    One member of an ensemble is called. A predictor that sees its target or later entries causes a warning, and so does
    one that gives two answers to the same prompt.

    Args:
        predictors: Predictors of any of the kinds that a diagnostic takes.
        task: Task that samples the prompts.
        key: Key of two prompts.
        complaints: List that takes the warnings, for the result of a diagnostic; None: they are issued.

    Raises:
        InputError: A predictor cannot answer a prompt of the task.
    """
    require_key(key)
    warned: list[str] = [] if complaints is None else complaints
    usable = _validated(predictors, task, key, warned)
    if complaints is None:
        for text in warned:
            warnings.warn(text, ResultWarning, stacklevel=2)
    return usable


def _validated(predictors: Any, task: AbstractTask, key: PRNGKeyArray, warned: list[str]) -> Any:
    if isinstance(predictors, Mapping):
        usable = dict(predictors)
        for name, predictor in predictors.items():
            if callable(predictor):
                usable[name] = _validate(str(name), predictor, task, key, warned)
        return usable
    if isinstance(predictors, Run | Ensemble | Trajectory):
        member: Any = _member(predictors)
        if getattr(member, "batched", False):
            raise expected("predictors", "members that answer one prompt at a time", name_of(member))
        if callable(member):
            _validate(name_of(member), member, task, key, warned)
        return predictors
    if not callable(predictors) or isinstance(predictors, type):
        return predictors
    return _validate(name_of(predictors), predictors, task, key, warned)


def require_causal(predictor: Predictor, task: AbstractTask, *, key: PRNGKeyArray) -> None:
    """Raise if a predictor's answers change when entries that it must not see are exchanged.

    Args:
        predictor: Function of a prompt, of JAX or on the host. It is called three times more than a prompt has
            positions, and eight times as often if its answers change, to tell dependence from rounding.
        task: Task that samples the prompts.
        key: Key of two prompts.

    Raises:
        InputError: A prediction depends on its own target or on later entries, or changes from call to call; or the
            argument is not a predictor, or its answers have another shape than it declares.

    Derived: docs/howto-network.md, What a predictor may see.
    """
    require_task(task)
    require_key(key)
    if not callable(predictor) or isinstance(predictor, type):
        came = predictor.__name__ if isinstance(predictor, type) else type(predictor).__name__
        raise expected("predictor", "one function of a prompt", came)
    variant, examination = _examine(name_of(predictor), predictor, task, key)
    if complaint := examination.complaint:
        subject = f"predictor: expected a causal predictor, got {name_of(predictor)}, which {complaint}"
        raise InputError(f"{subject}{_way_out(variant, examination)}")


class Unstacked(AbstractPredictor):
    """A traceable predictor of stacked prompts, wrapped so that it takes a single prompt."""

    predictor: Predictor

    @property
    def positions(self) -> Literal["every", "last"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of ``predictor``."""
        return declared(self.predictor, "positions")

    @property
    def differentiable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of ``predictor``."""
        return declared(self.predictor, "differentiable")

    def __call__(self, prompt: Any) -> Array:
        """The answer to a stack of one."""
        return answer_single(self.predictor, prompt)


def _validate(name: str, predictor: Any, task: AbstractTask, key: PRNGKeyArray, warned: list[str]) -> Any:
    of_library = _home(predictor).startswith("icllab.") and not any(map(_holds_user_code, _parts(predictor)))
    if isinstance(predictor, type) or of_library:
        return predictor
    variant, examination = _examine(name, predictor, task, key)
    if complaint := examination.complaint:
        warned.append(f"predictor {name!r} {complaint}: its numbers say nothing{_way_out(variant, examination)}")
    return Unstacked(variant) if declared(variant, "batched") and declared(variant, "traceable") else variant


def _examine(name: str, predictor: Any, task: AbstractTask, key: PRNGKeyArray) -> tuple[Any, Examination]:
    """Return the predictor in a form that can be called, and its examination."""
    bare, failures = is_torch_module(predictor), []
    variants = [predictor] if not bare and declared(predictor, "traceable") else []
    if bare:  # of which few take a prompt
        variants = [from_module(predictor, eqx.filter_eval_shape(lambda k: task.sample(key=k), key))]
    for variant in (*variants, predictor if isinstance(predictor, OnHost | FromTorch) else OnHost(predictor)):
        try:
            return variant, examine(variant, task, key=key, name=f"predictor {name!r}")
        except Exception as error:
            failures.append(error)
    failure = failures[0 if bare else -1]
    if isinstance(failure, IclError):
        raise failure
    message = (str(failure).splitlines() or [""])[0]
    hint = "; traceable = False keeps a function of NumPy on the host" if isinstance(failure, JAXTypeError) else ""
    if _holds_torch_module(predictor):
        hint = "; models.FromTorch(module) gives a torch.nn.Module the tensors of a prompt"
    came = f"{type(failure).__name__}: {message}{hint}"
    wish = "an array of answers to a prompt of the task"
    raise InputError(f"predictor {name!r}: expected {wish}, got {came}") from failure


def _way_out(predictor: Any, examination: Examination) -> str:
    """A hint for a PyTorch module that is random."""
    is_random = isinstance(predictor, FromTorch) and not examination.repeats
    return "; dropout with training=self.training is off in evaluation mode" if is_random else ""


def _member(predictors: Run | Ensemble | Trajectory) -> Any:
    """One member, or None if there is none."""
    if isinstance(predictors, Trajectory):
        return predictors.at(predictors.steps[0]).member(0) if len(predictors) else None
    members = predictors.members if isinstance(predictors, Run) else predictors
    return members.member(0) if isinstance(members, Ensemble) else None


def _holds_user_code(value: Any) -> bool:
    """True if a value is a callable of the user's or contains one."""
    if isinstance(value, type):
        return False
    if callable(value) and _home(value).partition(".")[0] not in _LIBRARIES:
        return True
    return any(map(_holds_user_code, _parts(value)))


def _holds_torch_module(value: Any) -> bool:
    """Search a predictor, but no :class:`FromTorch`, for a ``torch.nn.Module``."""
    return is_torch_module(value) or (not isinstance(value, FromTorch) and any(map(_holds_torch_module, _parts(value))))


def _parts(value: Any) -> Iterable[Any]:
    """Values that a module, a container or a partial function holds."""
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return []


def _home(predictor: Any) -> str:
    """Name of the module of a function, or of the class of a predictor."""
    kind = predictor if hasattr(predictor, "__name__") else type(predictor)
    return getattr(kind, "__module__", None) or ""


def name_of(predictor: Any) -> str:
    """Name of a predictor in messages: its own, or that of its class, or of the class of a PyTorch module."""
    predictor = predictor.module if isinstance(predictor, FromTorch) else predictor
    return getattr(predictor, "__name__", None) or type(predictor).__name__
