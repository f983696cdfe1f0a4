"""Errors of one line: the requirement, the value that was given, and a hint.

Every error of the library carries the exit status the command line ends with.
"""

import difflib
import os
import shlex
import sys
from collections.abc import Iterable
from numbers import Integral
from pathlib import Path
from typing import Any

from icllab.core.spelling import printable


class IclError(Exception):
    """An error with a one-line message for a person and an exit status for a script.

    ``lines`` are lines of code beneath the message, which show what to write instead.
    """

    exit_status = 4
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(printable, (super().__str__(), *self.lines)))


class InputError(IclError, ValueError):
    """A name, value or file given by the user cannot be used (exit status 2)."""

    exit_status = 2


class EnvironmentFault(IclError):
    """The disk, a worker or an installed library failed, not the input (exit status 4)."""


class CellsMissing(IclError):
    """Requested results have not been computed yet (exit status 3)."""

    exit_status = 3


class ResultWarning(UserWarning):
    """A result is not reliable as it stands; its ``attrs["warnings"]`` repeats the sentence."""


def expected(name: str, requirement: str, value: object, hint: str = "") -> InputError:
    """The error ``name: expected <requirement>, got <value>; <hint>``, in one line for any ``repr(value)``."""
    text = repr(value)
    if "\n" in text:
        text = " ".join(text.split())
        text = text if len(text) <= 120 else f"{text[:117]}..."
    return InputError(f"{name}: expected {requirement}, got {text}" + (f"; {hint}" if hint else ""))


def install_command(extra: str) -> str:
    """The shell command that installs an extra of this library into the running environment."""
    root = Path(__file__).parents[3]
    clone = f"{root}[{extra}]" if (root / "pyproject.toml").is_file() else f".[{extra}]"
    where = "" if clone.startswith(str(root)) else " in a clone of icl-lab"
    return f"{shlex.join([sys.executable, '-m', 'pip', 'install', '-e', clone])}{where}"


def require_integer(name: str, value: Any, *, least: int = 1) -> None:
    """Raise unless ``value`` is an int >= ``least``; 2.0, True and "3" are not."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= sys.float_info.max:
        raise expected(name, f"an integer of at least {least}", value)


def require_instance(name: str, value: Any, kind: type, requirement: str) -> None:
    """Raise unless ``value`` is an instance of ``kind``; a class is not an instance of itself."""
    if not isinstance(value, kind):
        raise expected(name, requirement, kind_of(value))


def kind_of(value: Any) -> str:
    """Name of a value's type for an error message; for a class, its own name."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def require_flag(name: str, value: Any) -> None:
    """Raise unless ``value`` is True or False; "no" and 1 are refused."""
    import numpy as np

    if not isinstance(value, bool | np.bool_):
        raise expected(name, "True or False", value)


def require_path(name: str, value: Any, hint: str = "") -> None:
    """Raise unless ``value`` is a string or a path."""
    if not isinstance(value, str | os.PathLike):
        raise expected(name, "a path", value, hint)


def require_key(value: Any) -> None:
    """Raise unless ``value`` is one random key of JAX; a seed is refused."""
    import jax

    is_key = isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)
    if not is_key or value.shape:
        actual = value if isinstance(value, int) else type(value).__name__
        actual = f"{value.dtype.name} of shape {value.shape}" if isinstance(value, jax.Array) else actual
        raise expected("key", "one random key of JAX", actual, "jax.random.key(0) makes one from a seed")


def require_known(kind: str, name: str, names: Iterable[str], hint: str = "") -> None:
    """Raise the error of :func:`unknown` unless ``name`` is one of ``names``."""
    names = list(names)
    if name not in names:
        raise unknown(kind, name, names, hint)


def unknown(kind: str, name: str, names: Iterable[str], hint: str = "") -> InputError:
    """The error for an unknown name, with the nearest valid name (or all of them if they are few)."""
    names = sorted(names)
    near = [] if not isinstance(name, str) else difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    # A claim is often named without its subject: 'double_descent' for 'asymptotics/double_descent'.
    near = near or [k for k in names if k.endswith(f"/{name}")]
    if near:
        advice = f"did you mean {near[0]!r}?"
    elif len(names) <= 12:
        advice = "known: " + (", ".join(names) or "none")
    else:
        advice = f"{len(names)} are known"
    return InputError(f"unknown {kind} {name!r}; {advice}" + (f" {hint}" if hint else ""))
