"""Optimisers compared by value, so that two calls of ``optax.adam(1e-3)`` are one program.

An optimiser is a pair of functions, and the program of a training run is kept under them. Functions are equal if their
code, their defaults and the values that they close over are, recursively. A function that reads global names is only
known by its code where these names belong to a library; another may read a number that has changed since.
"""

import dis
import functools
import hashlib
import types
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from icllab.training.fingerprints import array_data

_LIBRARIES = frozenset({"builtins", "jax", "jaxlib", "math", "numpy", "optax"})  # their global names do not change
_PLAIN = frozenset({type(None), type(...), bool, int, float, complex, str, bytes})
_READS = frozenset({"IMPORT_NAME", "LOAD_GLOBAL", "LOAD_NAME"})


class Optimizer:
    """An optimiser that equals every other optimiser with equal functions."""

    def __init__(self, value: Any, functions: Any) -> None:
        self.value, self._functions, self._hash = value, functions, hash(functions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Optimizer) and self._functions == other._functions

    def __hash__(self) -> int:
        return self._hash


class _UnknownError(Exception):
    """A function holds a value whose equality cannot be decided."""


def comparable(optimizer: Any) -> Any:
    """The optimiser as an :class:`Optimizer`, or unchanged if a part of it cannot be compared by value."""
    try:
        return Optimizer(optimizer, _identity(optimizer, ()))
    except _UnknownError:
        return optimizer


def _identity(value: Any, within: tuple[int, ...]) -> Any:
    """A hashable value, equal for equal values; ``within`` lists the functions and containers around it."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, repr(value)  # 0.0 and -0.0 differ, and so do 1 and True
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(value)
    if id(value) in within:
        return "within", within.index(id(value))  # a function that calls itself

    def parts(*values: Any) -> tuple[Any, ...]:
        return tuple(_identity(part, (*within, id(value))) for part in values)

    if isinstance(value, types.FunctionType):
        name = value.__globals__.get("__name__", "")
        if not _in_library(name) and _reads_globals(value.__code__):
            raise _UnknownError
        try:
            cells = tuple(cell.cell_contents for cell in value.__closure__ or ())
        except ValueError:  # a variable without a value yet
            raise _UnknownError from None
        return name, value.__code__, *parts(value.__defaults__, value.__kwdefaults__, cells, vars(value))
    if isinstance(value, types.MethodType):
        return kind, *parts(value.__func__, value.__self__)
    if kind is functools.partial:
        return kind, *parts(value.func, value.args, value.keywords)
    if kind is dict:
        return kind, *(parts(*entry) for entry in value.items())
    if kind in (set, frozenset):
        return kind, frozenset(parts(*value))
    if kind in (tuple, list) or (isinstance(value, tuple) and _in_library(kind.__module__)):
        return kind, *parts(*value)
    if isinstance(value, np.dtype):
        return kind, value
    if kind.__module__.startswith("optax.") and hasattr(value, "__dict__"):
        return kind, *parts(vars(value))
    if callable(value) and _in_library(getattr(value, "__module__", None) or ""):
        return kind, _Same(value)  # a class, a compiled function, a function in C
    raise _UnknownError


class _Same:
    """An object that equals only itself."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _array(value: Any) -> Any:
    if isinstance(value, Tracer) or value.dtype == object:
        raise _UnknownError
    content = hashlib.sha256(np.asarray(array_data(value)).tobytes()).digest()
    place = (getattr(value, "weak_type", False), value.sharding) if isinstance(value, jax.Array) else ()
    return type(value), str(value.dtype), value.shape, content, place


def _in_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


def _reads_globals(code: types.CodeType) -> bool:
    """Test whether a function, or a function defined in it, reads a global name or imports a module."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return any(step.opname in _READS for step in dis.get_instructions(code)) or any(map(_reads_globals, inner))
