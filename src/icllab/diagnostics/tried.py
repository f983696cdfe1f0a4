"""The user's own predictors, tried once: on the host where JAX cannot trace them, and warned of if they look ahead.

Predictors of this library declare what they are, and its tests hold them to it; those that hold a function of the
user's are tried as the user's own are.
"""

# A predictor may answer with a tensor; at least one way of calling it is tried, so that ``last`` is bound.
# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
import dataclasses
import functools
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jax.errors import JAXTypeError
from jaxtyping import Array, PRNGKeyArray

from icllab.core.errors import IclError, InputError, expected, require_key
from icllab.core.protocols import AbstractTask, Predictor, declared
from icllab.diagnostics.behaviour.causality import forbidden_positions, looks_ahead
from icllab.training.ensembles import Ensemble
from icllab.training.runs import Run, Trajectory

# Whose callables are not the user's; a builtin may have no module.
_LIBRARIES = ("", "builtins", "equinox", "functools", "icllab", "jax", "jaxlib", "math", "numpy", "scipy")


class OnHost:
    """A function of NumPy, PyTorch or another library, called prompt by prompt; it has no gradient."""

    traceable: ClassVar[bool] = False
    differentiable: ClassVar[bool] = False

    def __init__(self, function: Predictor) -> None:
        self.function = function
        self.positions: Literal["every", "last"] = declared(function, "positions")
        self.__name__ = _name(function)

    def __call__(self, prompt: Any) -> Array:
        """The function's answer, as an array of JAX."""
        answer = self.function(prompt)
        if isinstance(answer, list | tuple) and declared(self.function, "traceable"):
            hint = "numpy.array or jax.numpy.stack makes one"
            raise expected(f"predictor {self.__name__!r}", "an array of answers", type(answer).__name__, hint)
        return jnp.asarray(np.asarray(answer.detach() if hasattr(answer, "detach") else answer, np.float64), float)


def tried(given: Any, task: AbstractTask, *, key: PRNGKeyArray, level: int = 5) -> Any:
    """The same kind of predictors, each of the user's own as it can be called; of ensembles one member is tried.

    Args:
        given: Predictors of any of the kinds that a diagnostic takes.
        task: Task that samples the prompts.
        key: Key of two prompts.
        level: Number of calls from the warning up to the user's.

    Raises:
        InputError: A predictor cannot answer a prompt of the task.
    """
    require_key(key)
    if isinstance(given, Mapping):
        found = dict(given)
        for name, one in given.items():
            if callable(one):
                found[name] = _tried(str(name), one, task, key, level)
        return found
    if isinstance(given, Run | Ensemble | Trajectory):
        member = _member(given)
        if callable(member):
            _tried(_name(member), member, task, key, level)
        return given
    if not callable(given) or isinstance(given, type):
        return given
    return _tried(_name(given), given, task, key, level)


def require_causal(predictor: Predictor, task: AbstractTask, *, key: PRNGKeyArray) -> None:
    """Refuse a predictor whose answers change when what it may not see is exchanged.

    Args:
        predictor: Function of a prompt, of JAX or on the host. It is called once more than a prompt has positions.
        task: Task that samples the prompts.
        key: Key of two prompts.

    Raises:
        InputError: A prediction depends on its own target, or on later entries; or there is none.

    Derived: docs/howto-network.md, What a predictor may see.
    """
    if not callable(predictor) or isinstance(predictor, type):
        came = predictor.__name__ if isinstance(predictor, type) else type(predictor).__name__
        raise expected("predictor", "one function of a prompt", came)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="predictor .* its numbers say nothing")
        callable_here = tried(predictor, task, key=key)
    if seen := forbidden_positions(callable_here, task, key=key):
        raise InputError(f"predictor: expected one that is causal, got {_name(predictor)}, which {looks_ahead(seen)}")


def _tried(name: str, predictor: Any, task: AbstractTask, key: PRNGKeyArray, level: int) -> Any:
    of_library = _home(predictor).startswith("icllab.") and not any(map(_is_theirs, _parts(predictor)))
    if isinstance(predictor, type) or of_library:
        return predictor
    ways = [predictor] if declared(predictor, "traceable") else []
    for way in (*ways, predictor if isinstance(predictor, OnHost) else OnHost(predictor)):
        try:
            seen = forbidden_positions(way, task, key=key)
        except Exception as error:
            last = error
            continue
        if seen:
            warnings.warn(f"predictor {name!r} {looks_ahead(seen)}: its numbers say nothing", stacklevel=level)
        return way
    if isinstance(last, IclError):
        raise last
    first = (str(last).splitlines() or [""])[0]
    hint = "; traceable = False keeps a function of NumPy on the host" if isinstance(last, JAXTypeError) else ""
    wanted = "an array of answers to a prompt of the task"
    raise InputError(f"predictor {name!r}: expected {wanted}, got {type(last).__name__}: {first}{hint}") from last


def _member(given: Run | Ensemble | Trajectory) -> Any:
    """One member, or None where there is none."""
    if isinstance(given, Trajectory):
        return given.at(given.steps[0]).member(0) if len(given) else None
    members = given.members if isinstance(given, Run) else given
    return members.member(0) if isinstance(members, Ensemble) else None


def _is_theirs(thing: Any) -> bool:
    """Whether it is a callable of the user's, or holds one."""
    if isinstance(thing, type):
        return False
    if callable(thing) and _home(thing).partition(".")[0] not in _LIBRARIES:
        return True
    return any(map(_is_theirs, _parts(thing)))


def _parts(thing: Any) -> Iterable[Any]:
    """What a module, a container or a partial function holds."""
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, Mapping):
        return thing.values()
    if isinstance(thing, list | tuple):
        return thing
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return [getattr(thing, field.name, None) for field in dataclasses.fields(thing)]
    return []


def _home(predictor: Any) -> str:
    """The module of its class, or of a function."""
    kind = predictor if hasattr(predictor, "__name__") else type(predictor)
    return getattr(kind, "__module__", None) or ""


def _name(predictor: Any) -> str:
    return getattr(predictor, "__name__", None) or type(predictor).__name__
