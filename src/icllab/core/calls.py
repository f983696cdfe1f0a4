"""Checked calls of public functions: NumPy integers become int, and a wrong argument name is corrected in the error."""

import functools
import inspect
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

from icllab.core.errors import InputError, unknown

_PLAIN = frozenset({bool, float, int, str, type(None)})


class ArgumentError(InputError, TypeError):
    """A call has an argument that the function does not take, or lacks a required one."""


def moved(**spellings: str) -> Callable[[Any], Any]:
    """Decorate a function that lost arguments in this version: the name of each -> its new spelling, for the error."""

    def decorate(function: Any) -> Any:
        function.moved_arguments = spellings
        return function

    return decorate


def checked(value: Any) -> Any:
    """Wrap a function so that its calls are checked; wrap a class's constructor and public methods in place."""
    if isinstance(value, types.FunctionType):
        return _checked(value)
    if isinstance(value, type) and not issubclass(value, BaseException):
        for base in value.__mro__:
            if base.__module__.partition(".")[0] == value.__module__.partition(".")[0]:
                _check_methods(base)
    return value


def _check_methods(cls: type) -> None:
    for name, method in list(vars(cls).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if _is_function(method):
            setattr(cls, name, _checked(method, bound=True))
        elif isinstance(method, classmethod | staticmethod) and _is_function(method.__func__):
            bound = isinstance(method, classmethod)
            setattr(cls, name, type(method)(_checked(method.__func__, bound=bound)))


def _is_function(value: Any) -> bool:
    """True for a function, compiled or not, whose every call binds its arguments anew."""
    return isinstance(value, types.FunctionType) or (callable(value) and hasattr(value, "__wrapped__"))


def _checked(function: Callable[..., Any], *, bound: bool = False) -> Any:
    if hasattr(function, "__checked__"):
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if _PLAIN.issuperset(map(type, args)) and _PLAIN.issuperset(map(type, kwargs.values())):
                return function(*args, **kwargs)
            return function(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()})
        except TypeError:
            if error := _argument_error(function, args, kwargs, bound=bound):
                raise error from None
            raise

    call.__checked__ = True  # pyright: ignore[reportAttributeAccessIssue]
    return call


def plain(value: Any) -> Any:
    """Convert NumPy integers to int, also in tuples and lists, because shapes and static fields need int."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple or kind is list:
        parts = [plain(part) for part in value]
        return value if all(map(operator.is_, parts, value)) else kind(parts)
    if kind.__module__ == "numpy" and isinstance(value, Integral) and value.dtype.kind in "iu":  # pyright: ignore[reportAttributeAccessIssue]
        return int(value)
    return value


def _argument_error(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, bound: bool
) -> ArgumentError | None:
    """The error for arguments that do not fit the function's signature; None if they fit."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        reason = str(error)
    else:
        return None
    title = function.__qualname__.removesuffix(".__init__").rpartition("<locals>.")[2]
    parameters = list(signature.parameters.values())
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)][bound:]
    free = [name for name in named if name not in {*kwargs, *positional[: len(args)]}]
    for name, spelling in getattr(function, "moved_arguments", {}).items():
        if name in kwargs:
            return ArgumentError(f"{title}: {name}= is {'' if spelling.startswith('gone') else 'now '}{spelling}")
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name in kwargs:
            if name not in named:
                message = str(unknown(f"argument of {title}:", name, free))
                return ArgumentError(message.replace(f"{len(free)} are known", f"known: {', '.join(sorted(free))}"))
    if len(args) > len(positional) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        most = len(positional) - bound
        required = [name for name in free if signature.parameters[name].default is inspect.Parameter.empty]
        advice = ", ".join(f"{name}=..." for name in required or free) or "leave it out"
        count, plural = len(args) - bound, "s" * (most != 1)
        return ArgumentError(f"{title}: expected {most or 'no'} positional argument{plural}, got {count}; try {advice}")
    return ArgumentError(f"{title}: {reason}; known: {', '.join(named)}")
