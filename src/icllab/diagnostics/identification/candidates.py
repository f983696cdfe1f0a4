r"""The free numbers of a rival, fitted to what a network answers.

.. math:: \hat\theta = \arg\min_\theta \sum_{\text{prompts}} \bigl(f - r_\theta\bigr)^2

An algorithm with a step size or a ridge is a family, and the network may run any member of it. Few numbers are
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

_PER_NUMBER = 10  # answers that a free number needs at least
_FACTOR = math.log(10.0)
_EVALUATIONS = 100


class FreeNumbers(NamedTuple):
    """Which numbers of a rival are free.

    Attributes:
        paths: Dotted attributes, each an array.
        shapes: Of the arrays.
        logarithms: Whether an array is fitted by its logarithm.
        start: All numbers in a row, as they are fitted.
    """

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    logarithms: tuple[bool, ...]
    start: Float[np.ndarray, " number"]

    @classmethod
    def of(cls, name: str, rival: Predictor, paths: Sequence[str]) -> "FreeNumbers":
        """The arrays at ``paths`` of a rival; one whose numbers are all positive stays so."""
        shapes, logarithms, start = [], [], []
        for path in paths:
            leaf = attribute(rival, path, name)
            if not eqx.is_inexact_array(leaf):
                raise expected(f"free[{name!r}]", "names of floating-point arrays", path)
            values = np.asarray(leaf, dtype=float)
            # Numbers that start equal and play the same part would stay equal.
            values = values * (1 + 0.1 * np.linspace(-1, 1, values.size).reshape(values.shape) * (values.size > 1))
            positive = bool(np.all(values > 0))
            shapes.append(values.shape)
            logarithms.append(positive)
            start.append((np.log(values) if positive else values).ravel())
        return cls(tuple(paths), tuple(shapes), tuple(logarithms), np.concatenate(start))

    def starts(self) -> list[Float[np.ndarray, " number"]]:
        """The start, and the same with all positive arrays ten times smaller and larger."""
        sizes = [math.prod(shape) for shape in self.shapes]
        moved = np.repeat(np.asarray(self.logarithms, float), sizes)
        return [self.start + shift * moved for shift in ((0.0, -_FACTOR, _FACTOR) if moved.any() else (0.0,))]

    def put(self, rival: Any, numbers: Array) -> Any:
        """The rival with these numbers."""
        first = 0
        for path, shape, logarithm in zip(self.paths, self.shapes, self.logarithms, strict=True):
            values = numbers[first : first + math.prod(shape)].reshape(shape)
            first += math.prod(shape)
            where = _getter(path)
            rival = eqx.tree_at(where, rival, (jnp.exp(values) if logarithm else values).astype(where(rival).dtype))
        return rival

    def values(self, rival: Any) -> dict[str, Any]:
        """path -> the numbers a rival has there, as lists."""
        return {path: np.asarray(_getter(path)(rival)).tolist() for path in self.paths}


def free_numbers(
    rivals: Mapping[str, Predictor], free: Mapping[str, Sequence[str]], *, answers: int
) -> dict[str, FreeNumbers]:
    """name of a rival -> its free numbers, for those that have some.

    Raises:
        InputError: A name is not known or no floating-point array; a rival cannot be traced; or there are fewer than
            ten ``answers`` for each number.
    """
    found = {}
    for name, paths in free.items():
        if name not in rivals:
            raise unknown("rival", name, rivals)
        if isinstance(paths, str) or not paths:
            raise expected(f"free[{name!r}]", "a sequence of names", paths)
        if not declared(rivals[name], "traceable"):
            raise expected(f"free[{name!r}]", "a rival that can be traced", type(rivals[name]).__name__)
        found[name] = FreeNumbers.of(name, rivals[name], paths)
        if answers < _PER_NUMBER * found[name].start.size:
            wanted = f"at least {_PER_NUMBER} answers for each of {found[name].start.size} numbers of {name!r}"
            raise expected("fitting", wanted, answers, "take more prompts, or leave fewer numbers free")
    return found


def fitted_rival(
    rival: Predictor,
    free: FreeNumbers,
    prompts: Any,
    answers: Float[np.ndarray, "prompt position"],
    positions: tuple[int, ...],
) -> Predictor:
    r"""The member of a rival's family whose answers are nearest to those given, in mean square.

    Numbers of an array that starts positive are fitted by their logarithms. The least of the results of three starts is
    taken: a minimum near them, which need not be the least of all.

    Args:
        rival: Where the search starts.
        free: What may change.
        prompts: Stacked on a leading axis.
        answers: Of the network on these prompts.
        positions: Where, counted from 0.

    Derived: docs/identification.md, Free numbers.
    """
    if not np.isfinite(answers).all():
        return rival
    target = jnp.asarray(answers)
    dtype = target.dtype

    free_parts = (free.paths, free.shapes, free.logarithms)

    @functools.lru_cache(maxsize=2)
    def both(numbers: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
        at = jnp.asarray(numbers, dtype)
        slopes, off = _slopes_and_residuals(at, rival, free_parts, prompts, target, positions)
        return np.asarray(off, float), np.asarray(slopes, float)

    def residuals(numbers: np.ndarray) -> np.ndarray:
        return both(tuple(numbers))[0]

    slopes: Any = lambda numbers: both(tuple(numbers))[1]  # noqa: E731 - scipy's stubs know no callable here

    best, least = free.start, math.inf
    for start in free.starts():
        if not np.isfinite(residuals(start)).all():
            continue
        # Twelve digits of the numbers, or a step that changes nothing, end the search.
        found = least_squares(
            residuals, start, slopes, method="trf", ftol=1e-15, xtol=1e-12, gtol=1e-15, max_nfev=_EVALUATIONS
        )
        if found.cost < least:
            best, least = found.x, float(found.cost)
    return free.put(rival, jnp.asarray(best, dtype))


def _off(
    numbers: Array, rival: Any, free: tuple, prompts: Any, target: Array, positions: tuple[int, ...]
) -> tuple[Array, Array]:
    member = FreeNumbers(*free, start=np.zeros(0)).put(rival, numbers)
    question = Response(positions, False)
    off = (jax.vmap(lambda prompt: question.of(member, prompt)[0])(prompts) - target).reshape(-1)
    return off, off


# Together: numbers are few, and one program is compiled.
_slopes_and_residuals = eqx.filter_jit(jax.jacfwd(_off, has_aux=True))


def _getter(path: str) -> Callable[[Any], Any]:
    return lambda tree: attribute(tree, path, path)
