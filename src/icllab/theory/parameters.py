"""What a formula may be asked: numbers within a stated range, broadcast to one shape.

Every public formula reads its arguments here first, so that an impossible one is refused by name
before it can become a NaN, and a scalar question gets a Python float for an answer.
"""

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from icllab.core.errors import InputError, expected, require_integer

Numbers = Any  # numbers or arrays of them, as given: all else `read` refuses by name, better than a type could
Array = npt.NDArray[np.float64]
Floats = Array | np.float64  # NumPy turns the 0-d arrays of a scalar question into scalars
Number = float | Array


@dataclass(frozen=True)
class Range:
    """The values a parameter may take: ``holds`` elementwise, ``wanted`` in words, ``hint`` on what to try."""

    wanted: str
    holds: Callable[[Array], npt.NDArray[np.bool_]]
    hint: str = ""


POSITIVE = Range("a finite number > 0", lambda x: (x > 0) & np.isfinite(x))
POSITIVE_OR_INF = Range("a number > 0 (inf is allowed)", lambda x: x > 0)
NON_NEGATIVE = Range("a finite number >= 0", lambda x: (x >= 0) & np.isfinite(x))
FINITE = Range("a finite number", np.isfinite)


def read(**parameters: tuple[object, Range]) -> list[Array]:
    """The values of ``name=(value, range)`` as float64 arrays of one common shape, in the order given.

    Raises:
        InputError: A value is no real number or lies outside its range (the message names the
            parameter, the first offending value, where it stands, and the range), or the shapes do
            not broadcast together.
    """
    arrays = {name: _array(name, value, allowed) for name, (value, allowed) in parameters.items()}
    try:
        return list(np.broadcast_arrays(*arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items() if array.ndim)
        message = f"{', '.join(arrays)}: expected shapes that broadcast together, got {shapes}"
        raise InputError(message) from None


def scalings(hint: str, tau: Numbers, alpha: Numbers, kappa: Numbers, rho: Numbers, ridge: Numbers) -> dict[str, Any]:
    """What :func:`read` takes of the ratios of a pretrained linear attention; ``hint`` is for infinite contexts."""
    length = Range(POSITIVE.wanted, POSITIVE.holds, hint)
    known = {"tau": (tau, POSITIVE_OR_INF), "alpha": (alpha, length), "kappa": (kappa, POSITIVE_OR_INF)}
    return {**known, "rho": (rho, NON_NEGATIVE), "ridge": (ridge, NON_NEGATIVE)}


def require_pairs(pairs: int, labels: int) -> None:
    """Refuse fewer labels than pairs, and what is no positive integer."""
    require_integer("pairs", pairs)
    require_integer("labels", labels)
    if labels < pairs:
        raise expected("labels", f"at least {pairs}, one for each pair", labels)


def plain(values: Floats) -> Number:
    """A Python float where the question was scalar, the array otherwise."""
    return float(values) if np.ndim(values) == 0 else np.asarray(values)


def _array(name: str, value: object, allowed: Range) -> Array:
    try:
        given = np.asarray(value)
    except ValueError:  # a ragged list
        raise expected(name, f"{allowed.wanted}, or a rectangular array of such", value) from None
    if given.dtype.kind in "iuf":
        values = given.astype(np.float64)
    else:  # Python's own large integers and fractions come as objects, and so does what is no number
        values = np.array([_float(x) for x in given.ravel().tolist()], np.float64).reshape(given.shape)
    wrong = ~allowed.holds(values)
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        place = f"element {list(where)} of shape {given.shape}" if where else ""
        came = given[where]
        came = came.item() if isinstance(came, np.generic) else came
        raise expected(name, allowed.wanted, came, "; ".join(part for part in (place, allowed.hint) if part))
    return values


def _float(value: object) -> float:
    """A real number as a float, anything else (bool, complex, text, too large) as NaN, which no range allows."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return np.nan
    try:
        return float(value)
    except OverflowError:
        return np.nan
