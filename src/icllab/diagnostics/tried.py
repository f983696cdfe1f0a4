"""The user's own predictors, tried once: on the host where JAX cannot trace them, and warned of if they look ahead.

Predictors of this library declare what they are, and its tests hold them to it.
"""

# A predictor may answer with a tensor; at least one way of calling it is tried, so that ``last`` is bound.
# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from icllab.core.errors import IclError, InputError, require_key
from icllab.core.protocols import AbstractTask, Predictor, declared
from icllab.diagnostics.behaviour.causality import forbidden_positions, looks_ahead
from icllab.training.ensembles import Ensemble
from icllab.training.runs import Run
from icllab.training.trajectory import Trajectory


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
        return jnp.asarray(np.asarray(answer.detach() if hasattr(answer, "detach") else answer, np.float64), float)


def tried(given: Any, task: AbstractTask, *, key: PRNGKeyArray) -> Any:
    """The same kind of predictors, each of the user's own as it can be called.

    Raises:
        InputError: A predictor cannot answer a prompt of the task.
    """
    require_key(key)
    if isinstance(given, Mapping):
        return {name: _tried(str(name), one, task, key) if callable(one) else one for name, one in given.items()}
    if isinstance(given, Run | Ensemble | Trajectory) or not callable(given) or isinstance(given, type):
        return given
    return _tried(_name(given), given, task, key)


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
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="predictor .* its numbers say nothing")
        callable_here = tried(predictor, task, key=key)
    if seen := forbidden_positions(callable_here, task, key=key):
        raise InputError(f"predictor: expected one that is causal, got {_name(predictor)}, which {looks_ahead(seen)}")


def _tried(name: str, predictor: Any, task: AbstractTask, key: PRNGKeyArray) -> Any:
    if isinstance(predictor, type) or _home(predictor).startswith("icllab."):
        return predictor
    ways = [predictor] if declared(predictor, "traceable") else []
    for way in (*ways, predictor if isinstance(predictor, OnHost) else OnHost(predictor)):
        try:
            seen = forbidden_positions(way, task, key=key)
        except Exception as error:
            last = error
            continue
        if seen:
            warnings.warn(f"predictor {name!r} {looks_ahead(seen)}: its numbers say nothing", stacklevel=5)
        return way
    if isinstance(last, IclError):
        raise last
    first = (str(last).splitlines() or [""])[0]
    raise InputError(
        f"predictor {name!r}: expected an array of answers to a prompt of the task, got {type(last).__name__}: {first}"
    ) from last


def _home(predictor: Any) -> str:
    """The module of its class, or of a function."""
    kind = predictor if hasattr(predictor, "__name__") else type(predictor)
    return getattr(kind, "__module__", None) or ""


def _name(predictor: Any) -> str:
    return getattr(predictor, "__name__", None) or type(predictor).__name__
