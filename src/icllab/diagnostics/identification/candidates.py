r"""The parameters of a candidate algorithm, fitted to what a network answers.

.. math:: \hat\theta = \arg\min_\theta \sum_{\text{prompts}} \bigl(f - r_\theta\bigr)^2

An algorithm with a step size or a ridge is a family, and the network may run any member of it. A few parameters are
fitted, by Gauss and Newton's method with a trust region: the same start gives the same numbers.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import least_squares

from icllab.core.errors import expected, unknown
from icllab.core.protocols import Predictor, declared
from icllab.diagnostics.identification.responses import Response
from icllab.training.sweeps import attribute

_PER_PARAMETER = 10  # answers that a fitted parameter needs at least
_FACTOR = math.log(10.0)
_EVALUATIONS = 100


class FittedParameters(NamedTuple):
    """Which parameters of a candidate are fitted."""

    paths: tuple[str, ...]  # dotted attributes, each an array
    shapes: tuple[tuple[int, ...], ...]
    logarithms: tuple[bool, ...]  # whether each array is fitted by its logarithm
    start: Float[np.ndarray, " parameter"]  # all in a row, as they are fitted

    @classmethod
    def of(cls, name: str, candidate: Predictor, paths: Sequence[str]) -> "FittedParameters":
        """The arrays at ``paths`` of a candidate; one whose numbers are all positive stays so."""
        shapes, logarithms, start = [], [], []
        for path in paths:
            leaf = attribute(candidate, path, name)
            if not eqx.is_inexact_array(leaf):
                raise expected(f"fitted[{name!r}]", "names of floating-point arrays", path)
            values = np.asarray(leaf, dtype=float)
            # Numbers that start equal and play the same part would stay equal.
            values = values * (1 + 0.1 * np.linspace(-1, 1, values.size).reshape(values.shape) * (values.size > 1))
            positive = bool(np.all(values > 0))
            shapes.append(values.shape)
            logarithms.append(positive)
            start.append((np.log(values) if positive else values).ravel())
        return cls(tuple(paths), tuple(shapes), tuple(logarithms), np.concatenate(start))

    def starts(self) -> list[Float[np.ndarray, " parameter"]]:
        """The start, and the same with all positive arrays ten times smaller and larger."""
        sizes = [math.prod(shape) for shape in self.shapes]
        moved = np.repeat(np.asarray(self.logarithms, float), sizes)
        return [self.start + shift * moved for shift in ((0.0, -_FACTOR, _FACTOR) if moved.any() else (0.0,))]

    def put(self, candidate: Any, numbers: Array) -> Any:
        """The candidate with these numbers."""
        first = 0
        for path, shape, logarithm in zip(self.paths, self.shapes, self.logarithms, strict=True):
            values = numbers[first : first + math.prod(shape)].reshape(shape)
            first += math.prod(shape)
            where = _getter(path)
            put = (jnp.exp(values) if logarithm else values).astype(where(candidate).dtype)
            candidate = eqx.tree_at(where, candidate, put)
        return candidate

    def values(self, candidate: Any) -> dict[str, Any]:
        """path -> the numbers a candidate has there, as lists."""
        return {path: np.asarray(_getter(path)(candidate)).tolist() for path in self.paths}


def fitted_parameters(
    candidates: Mapping[str, Predictor], fitted: Mapping[str, Sequence[str]], *, answers: int
) -> dict[str, FittedParameters]:
    """Name of a candidate -> its fitted parameters, for those that have some.

    Raises:
        InputError: A name is unknown or names no floating-point array; a candidate cannot be traced; or there are
            fewer than ten ``answers`` for each parameter.
    """
    found = {}
    for name, paths in fitted.items():
        if name not in candidates:
            raise unknown("candidate", name, candidates)
        if isinstance(paths, str) or not paths:
            raise expected(f"fitted[{name!r}]", "a sequence of names", paths)
        if not declared(candidates[name], "traceable"):
            came = getattr(candidates[name], "__name__", type(candidates[name]).__name__)
            raise expected(f"fitted[{name!r}]", "a candidate that can be traced", came)
        found[name] = FittedParameters.of(name, candidates[name], paths)
        if answers < _PER_PARAMETER * found[name].start.size:
            wanted = f"at least {_PER_PARAMETER} answers for each of {found[name].start.size} parameters of {name!r}"
            raise expected("fitting", wanted, answers, "take more prompts, or fit fewer parameters")
    return found


def fitted_candidate(
    candidate: Predictor,
    fitted: FittedParameters,
    prompts: Any,
    answers: Float[np.ndarray, "prompt position"],
    positions: tuple[int, ...],
) -> Predictor:
    r"""The member of a candidate's family whose answers are nearest to those given, in mean square.

    An array that starts positive is fitted by its logarithm. The least of the results of three starts is taken: a
    minimum near them, which need not be the least of all.

    Derived: docs/identification.md, Fitted parameters.
    """
    if not np.isfinite(answers).all():
        return candidate
    target = jnp.asarray(answers)
    dtype = target.dtype
    parts = (fitted.paths, fitted.shapes, fitted.logarithms)

    @functools.lru_cache(maxsize=2)
    def both(numbers: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
        at = jnp.asarray(numbers, dtype)
        slopes, off = _slopes_and_residuals(at, candidate, parts, prompts, target, positions)
        return np.asarray(off, float), np.asarray(slopes, float)

    # Twelve digits of the numbers, or a step that changes nothing, end the search.
    how: Any = {"ftol": 1e-15, "xtol": 1e-12, "gtol": 1e-15, "max_nfev": _EVALUATIONS}
    how["jac"] = lambda numbers: both(tuple(numbers))[1]
    best, least = fitted.start, math.inf
    for start in fitted.starts():
        if not np.isfinite(both(tuple(start))[0]).all():
            continue
        found = least_squares(lambda numbers: both(tuple(numbers))[0], start, **how)
        if found.cost < least:
            best, least = found.x, float(found.cost)
    return fitted.put(candidate, jnp.asarray(best, dtype))


def _off(
    numbers: Array, candidate: Any, parts: tuple, prompts: Any, target: Array, positions: tuple[int, ...]
) -> tuple[Array, Array]:
    member = FittedParameters(*parts, start=np.zeros(0)).put(candidate, numbers)
    question = Response(positions, False)
    off = (jax.vmap(lambda prompt: question.of(member, prompt)[0])(prompts) - target).reshape(-1)
    return off, off


# Together: parameters are few, and one program is compiled.
_slopes_and_residuals = eqx.filter_jit(jax.jacfwd(_off, has_aux=True))


def _getter(path: str) -> Callable[[Any], Any]:
    return lambda tree: attribute(tree, path, path)
