"""Arguments of formulas: numbers of a stated domain, broadcast to one shape.

Every public formula reads its arguments here first. So an impossible argument raises an error with its name
before it becomes a NaN, and a scalar question gets a Python float for an answer.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from icllab.core.domains import NON_NEGATIVE, POSITIVE, POSITIVE_OR_INF, Domain
from icllab.core.errors import InputError, expected, require_integer

Numbers = Any  # numbers or arrays of them: `read` names everything else better than a type could
Array = npt.NDArray[np.float64]
Floats = Array | np.float64  # NumPy turns the 0-d arrays of a scalar question into scalars
Number = float | Array


def read(**parameters: tuple[object, Domain]) -> list[Array]:
    """The values of ``name=(value, domain)`` as float64 arrays of one common shape, in the order of the arguments.

    Raises:
        InputError: A value is no real number or lies outside its domain (the message names the parameter, the first
            such value, its place and the domain), or the shapes do not broadcast together.
    """
    arrays = {name: domain.read(name, value) for name, (value, domain) in parameters.items()}
    try:
        return list(np.broadcast_arrays(*arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items() if array.ndim)
        message = f"{', '.join(arrays)}: expected shapes that broadcast together, got {shapes}"
        raise InputError(message) from None


def scalings(hint: str, tau: Numbers, alpha: Numbers, kappa: Numbers, rho: Numbers, ridge: Numbers) -> dict[str, Any]:
    """Arguments of :func:`read` for the ratios of a pretrained linear attention; ``hint`` is for infinite contexts."""
    return {
        "tau": (tau, POSITIVE_OR_INF),
        "alpha": (alpha, replace(POSITIVE, hint=hint)),
        "kappa": (kappa, POSITIVE_OR_INF),
        "rho": (rho, NON_NEGATIVE),
        "ridge": (ridge, NON_NEGATIVE),
    }


def require_pairs(pairs: int, labels: int) -> None:
    """Raise unless ``pairs`` and ``labels`` are integers with 1 <= pairs <= labels."""
    require_integer("pairs", pairs)
    require_integer("labels", labels)
    if labels < pairs:
        raise expected("labels", f"at least {pairs}, one for each pair", labels)


def plain(values: Floats) -> Number:
    """A Python float for an array of shape (), any other array unchanged."""
    return float(values) if np.ndim(values) == 0 else np.asarray(values)
