r"""Fits of a candidate algorithm's parameters to the answers of a network.

.. math:: \hat\theta = \arg\min_\theta \sum_{\text{prompts}} \bigl(f - r_\theta\bigr)^2

An algorithm with a step size or a ridge is a family, and the network may run any member of it. The fit of a few
parameters is a Gauss-Newton method with a trust region, and deterministic.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import least_squares

from icllab.core.errors import expected
from icllab.core.protocols import Predictor, declared
from icllab.diagnostics.identification.responses import ResponseQuestion
from icllab.training.sweeps import attribute

_PER_PARAMETER = 10  # smallest number of answers for each fitted parameter
_FACTOR = math.log(10.0)
_EVALUATIONS = 100


@dataclass(frozen=True)
class Fitted:
    """A candidate some of whose attributes are fitted to the network.

    Attributes:
        predictor: The candidate; the fit starts from its attributes.
        attributes: Names of the attributes, floating-point arrays.
    """

    predictor: Predictor
    attributes: Sequence[str]


class FittedParameters(NamedTuple):
    """Layout of the fitted parameters of a candidate."""

    paths: tuple[str, ...]  # dotted paths of arrays
    shapes: tuple[tuple[int, ...], ...]
    logarithms: tuple[bool, ...]  # whether the logarithm of an array is fitted
    start: Float[np.ndarray, " parameter"]  # all arrays as one vector

    @classmethod
    def from_paths(cls, name: str, candidate: Predictor, paths: Sequence[str]) -> "FittedParameters":
        """Layout of the arrays at ``paths`` of a candidate; an array of positive numbers stays positive."""
        shapes, logarithms, start = [], [], []
        for path in paths:
            leaf = attribute(candidate, path, name)
            if not eqx.is_inexact_array(leaf):
                raise expected(f"rivals[{name!r}]", "names of floating-point arrays", path)
            values = np.asarray(leaf, dtype=float)
            # Perturb equal numbers, which would stay equal by symmetry.
            values = values * (1 + 0.1 * np.linspace(-1, 1, values.size).reshape(values.shape) * (values.size > 1))
            positive = bool(np.all(values > 0))
            shapes.append(values.shape)
            logarithms.append(positive)
            start.append((np.log(values) if positive else values).ravel())
        return cls(tuple(paths), tuple(shapes), tuple(logarithms), np.concatenate(start))

    def starts(self) -> list[Float[np.ndarray, " parameter"]]:
        """The start, and starts with all positive arrays ten times smaller and larger."""
        sizes = [math.prod(shape) for shape in self.shapes]
        is_logarithm = np.repeat(np.asarray(self.logarithms, float), sizes)
        return [
            self.start + shift * is_logarithm for shift in ((0.0, -_FACTOR, _FACTOR) if is_logarithm.any() else (0.0,))
        ]

    def put(self, candidate: Any, numbers: Array) -> Any:
        """Replace the arrays of a candidate by these numbers."""
        offset = 0
        for path, shape, logarithm in zip(self.paths, self.shapes, self.logarithms, strict=True):
            values = numbers[offset : offset + math.prod(shape)].reshape(shape)
            offset += math.prod(shape)
            select = _getter(path)
            array = (jnp.exp(values) if logarithm else values).astype(select(candidate).dtype)
            candidate = eqx.tree_at(select, candidate, array)
        return candidate

    def values(self, candidate: Any) -> dict[str, Any]:
        """Values of a candidate's arrays by path, as lists."""
        return {path: np.asarray(_getter(path)(candidate)).tolist() for path in self.paths}


def fitted_parameters(
    candidates: Mapping[str, Predictor], paths_by_name: Mapping[str, Sequence[str]], *, answers: int
) -> dict[str, FittedParameters]:
    """Layouts of the fitted parameters, by name of the candidate.

    Raises:
        InputError: A path leads to no floating-point array, a candidate cannot be traced, or there
            are fewer than ten ``answers`` for each parameter.
    """
    parameters = {}
    for name, paths in paths_by_name.items():
        if isinstance(paths, str) or not paths:
            raise expected(f"rivals[{name!r}]", "a sequence of names", paths)
        if not declared(candidates[name], "traceable"):
            came = getattr(candidates[name], "__name__", type(candidates[name]).__name__)
            raise expected(f"rivals[{name!r}]", "a candidate that can be traced", came)
        parameters[name] = FittedParameters.from_paths(name, candidates[name], paths)
        if answers < _PER_PARAMETER * parameters[name].start.size:
            requirement = (
                f"at least {_PER_PARAMETER} answers for each of {parameters[name].start.size} parameters of {name!r}"
            )
            raise expected("fitting", requirement, answers, "take more prompts, or fit fewer parameters")
    return parameters


def fit_candidate(
    candidate: Predictor,
    parameters: FittedParameters,
    prompts: Any,
    answers: Float[np.ndarray, "prompt position"],
    positions: tuple[int, ...],
) -> Predictor:
    r"""Fit the member of a candidate's family to given answers, in mean square.

    An array that starts positive is fitted by its logarithm. The result is the best of three local minima, from three
    starts. A step to answers with infinite derivatives is not taken.

    Derived: docs/identification.md, Fitted parameters.
    """
    if not np.isfinite(answers).all():
        return candidate
    target = jnp.asarray(answers)
    dtype = target.dtype
    layout = (parameters.paths, parameters.shapes, parameters.logarithms)

    @functools.lru_cache(maxsize=2)
    def residuals_and_jacobian(numbers: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
        at = jnp.asarray(numbers, dtype)
        jacobian, residuals = _jacobian_and_residuals(at, candidate, layout, prompts, target, positions)
        return np.asarray(residuals, float), np.asarray(jacobian, float)

    def residuals(numbers: np.ndarray) -> np.ndarray:
        """The search shortens a step to residuals that are not finite; from infinite derivatives it cannot go on."""
        values, jacobian = residuals_and_jacobian(tuple(numbers))
        return values if np.isfinite(jacobian).all() else np.full_like(values, np.nan)

    starts = [start for start in parameters.starts() if np.isfinite(residuals_and_jacobian(tuple(start))[0]).all()]
    usable = [start for start in starts if np.isfinite(residuals(start)).all()]
    if starts and not usable:
        raise ValueError("derivatives are infinite at every start")
    # The search stops at a relative accuracy of 1e-12 of the parameters.
    best, lowest_cost = parameters.start, math.inf
    for start in usable:
        result = least_squares(
            residuals,
            start,
            jac=lambda numbers: residuals_and_jacobian(tuple(numbers))[1],  # pyright: ignore[reportArgumentType]
            ftol=1e-15,
            xtol=1e-12,
            gtol=1e-15,
            max_nfev=_EVALUATIONS,
        )
        if result.cost < lowest_cost:
            best, lowest_cost = result.x, float(result.cost)
    return parameters.put(candidate, jnp.asarray(best, dtype))


def _residuals(
    numbers: Array, candidate: Any, layout: tuple, prompts: Any, target: Array, positions: tuple[int, ...]
) -> tuple[Array, Array]:
    member = FittedParameters(*layout, start=np.zeros(0)).put(candidate, numbers)
    question = ResponseQuestion(positions, False)
    residuals = (jax.vmap(lambda prompt: question.evaluate(member, prompt)[0])(prompts) - target).reshape(-1)
    return residuals, residuals


# One program: there are few parameters.
_jacobian_and_residuals = eqx.filter_jit(jax.jacfwd(_residuals, has_aux=True))


def _getter(path: str) -> Callable[[Any], Any]:
    return lambda tree: attribute(tree, path, path)
