r"""Validation of the user's own predictors: a call on two prompts, on the host if JAX cannot trace them.

Predictors of this library declare their properties, and its tests hold them to these. A predictor of the library that
holds a function of the user's is validated as the user's own predictors are.

A prediction at position i is causal if it stays *exactly* the same when everything after its query is exchanged:

.. math:: T_j(\text{prompt}) = T_j(\text{prompt with another target at } i, \text{ other entries after}), \quad j \le i
"""

# A predictor may answer with a tensor; at least one variant is called, so that ``failure`` is bound.
# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
import dataclasses
import functools
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import JAXTypeError
from jaxtyping import Array, PRNGKeyArray

from icllab.core.errors import IclError, InputError, expected, require_key
from icllab.core.prompt import Prompt
from icllab.core.protocols import AbstractTask, Predictor, declared, require_task
from icllab.training.ensembles import Ensemble
from icllab.training.runs import Run, Trajectory

# Packages whose callables are not the user's; a builtin may have no module.
_LIBRARIES = ("", "builtins", "equinox", "functools", "icllab", "jax", "jaxlib", "math", "numpy", "scipy")
_LISTED, _LARGEST = 5, 16  # positions in a message, and positions of the test


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


def validate_predictor(predictors: Any, task: AbstractTask, *, key: PRNGKeyArray, level: int = 5) -> Any:
    """Return the predictors, with each of the user's own in a form that can be called.

    One member of an ensemble is called. A predictor that sees its target or later entries causes a warning.

    Args:
        predictors: Predictors of any of the kinds that a diagnostic takes.
        task: Task that samples the prompts.
        key: Key of two prompts.
        level: Number of calls from the warning up to the user's.

    Raises:
        InputError: A predictor cannot answer a prompt of the task.
    """
    require_key(key)
    if isinstance(predictors, Mapping):
        usable = dict(predictors)
        for name, predictor in predictors.items():
            if callable(predictor):
                usable[name] = _validate(str(name), predictor, task, key, level)
        return usable
    if isinstance(predictors, Run | Ensemble | Trajectory):
        member = _member(predictors)
        if callable(member):
            _validate(_name(member), member, task, key, level)
        return predictors
    if not callable(predictors) or isinstance(predictors, type):
        return predictors
    return _validate(_name(predictors), predictors, task, key, level)


def require_causal(predictor: Predictor, task: AbstractTask, *, key: PRNGKeyArray) -> None:
    """Raise if a predictor's answers change when entries that it must not see are exchanged.

    Args:
        predictor: Function of a prompt, of JAX or on the host. It is called once more than a prompt has positions.
        task: Task that samples the prompts.
        key: Key of two prompts.

    Raises:
        InputError: A prediction depends on its own target or on later entries, or the argument is not a predictor.

    Derived: docs/howto-network.md, What a predictor may see.
    """
    require_task(task)
    if not callable(predictor) or isinstance(predictor, type):
        came = predictor.__name__ if isinstance(predictor, type) else type(predictor).__name__
        raise expected("predictor", "one function of a prompt", came)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="predictor .* its numbers say nothing")
        usable = validate_predictor(predictor, task, key=key)
    try:
        positions = forbidden_positions(usable, task, key=key)
    except (TypeError, ValueError) as error:
        if isinstance(error, IclError):
            raise
        message = (str(error).splitlines() or [""])[0]
        came = f"{_name(predictor)}, {type(error).__name__}: {message}"
        raise expected("predictor", "a predictor for prompts of this task", came) from error
    if positions:
        complaint = describe_look_ahead(positions)
        raise InputError(f"predictor: expected a causal predictor, got {_name(predictor)}, which {complaint}")


def forbidden_positions(predictor: Predictor, task: AbstractTask, *, key: PRNGKeyArray) -> list[int]:
    """Positions at which exchanging the target and all later entries changes a prediction up to that position.

    The test covers all positions of a short prompt, and sixteen of a longer one, including the first and the last.
    """
    of_prompt, of_other = jax.random.split(key)
    prompt, replacement = task.sample(key=of_prompt), task.sample(key=of_other)
    last = prompt.positions - 1
    answers_all = declared(predictor, "positions") == "every"
    positions = sorted({round(i) for i in np.linspace(0, last, min(last + 1, _LARGEST))}) if answers_all else [last]
    changed_prompts = _exchange(prompt, replacement, tuple(positions))
    if declared(predictor, "traceable"):
        before, after = _answer_both(predictor, prompt, changed_prompts)
    else:
        before = predictor(prompt)
        after = [predictor(jax.tree.map(lambda leaf, i=i: leaf[i], changed_prompts)) for i in range(len(positions))]
    reference, variants = np.asarray(before), [np.asarray(answer) for answer in after]
    if len(reference) not in (1, prompt.positions):
        return []  # the task's loss raises the error
    # A predictor of the last position has one answer, whatever the position.
    until = [i + 1 if answers_all else len(reference) for i in positions]
    return [
        i
        for i, answer, end in zip(positions, variants, until, strict=True)
        if not np.array_equal(reference[:end], answer[:end], equal_nan=True)
    ]


def describe_look_ahead(positions: list[int]) -> str:
    """Describe what a predictor does at forbidden positions."""
    listing = ", ".join(map(str, positions[:_LISTED])) + (", ..." if len(positions) > _LISTED else "")
    return f"looks at its own target or at later entries (at positions {listing})"


@eqx.filter_jit
def _exchange(prompt: Prompt, replacement: Prompt, positions: tuple[int, ...]) -> Prompt:
    prompts = [prompt.replaced_after(position, replacement) for position in positions]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *prompts)


@eqx.filter_jit
def _answer_both(predictor: Predictor, prompt: Prompt, variants: Prompt) -> tuple[Array, Array]:
    """Answers to all prompts by one program, prompt by prompt, so that equal prompts give equal bits."""
    prompts = jax.tree.map(lambda item, many: jnp.concatenate([item[None], many]), prompt, variants)
    answers = jax.lax.map(lambda item: _array(predictor(item)), prompts)
    return answers[0], answers[1:]


def _array(answer: Any) -> Any:
    if isinstance(answer, list | tuple):
        raise TypeError(f"a {type(answer).__name__}, where an array is expected")
    return answer


def _validate(name: str, predictor: Any, task: AbstractTask, key: PRNGKeyArray, level: int) -> Any:
    of_library = _home(predictor).startswith("icllab.") and not any(map(_holds_user_code, _parts(predictor)))
    if isinstance(predictor, type) or of_library:
        return predictor
    variants = [predictor] if declared(predictor, "traceable") else []
    for variant in (*variants, predictor if isinstance(predictor, OnHost) else OnHost(predictor)):
        try:
            positions = forbidden_positions(variant, task, key=key)
        except Exception as error:
            failure = error
            continue
        if positions:
            complaint = describe_look_ahead(positions)
            warnings.warn(f"predictor {name!r} {complaint}: its numbers say nothing", stacklevel=level)
        return variant
    if isinstance(failure, IclError):
        raise failure
    message = (str(failure).splitlines() or [""])[0]
    hint = "; traceable = False keeps a function of NumPy on the host" if isinstance(failure, JAXTypeError) else ""
    came = f"{type(failure).__name__}: {message}{hint}"
    wish = "an array of answers to a prompt of the task"
    raise InputError(f"predictor {name!r}: expected {wish}, got {came}") from failure


def _member(predictors: Run | Ensemble | Trajectory) -> Any:
    """One member, or None if there is none."""
    if isinstance(predictors, Trajectory):
        return predictors.at(predictors.steps[0]).member(0) if len(predictors) else None
    members = predictors.members if isinstance(predictors, Run) else predictors
    return members.member(0) if isinstance(members, Ensemble) else None


def _holds_user_code(value: Any) -> bool:
    """Whether a value is a callable of the user's, or holds one."""
    if isinstance(value, type):
        return False
    if callable(value) and _home(value).partition(".")[0] not in _LIBRARIES:
        return True
    return any(map(_holds_user_code, _parts(value)))


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


def _name(predictor: Any) -> str:
    return getattr(predictor, "__name__", None) or type(predictor).__name__
