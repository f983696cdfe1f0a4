r"""Measurements of a map of a context to weights and of its nulls."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from icllab.core.errors import require_integer
from icllab.diagnostics.contexts.distances import divergence, squared_size
from icllab.diagnostics.contexts.nulls import MapCase, Untrained
from icllab.diagnostics.contexts.queries import Queries, answers_after, answers_alone, halve_context
from icllab.diagnostics.contexts.solvers import MapFit, MapSolver, Solution, answer_changes, carry, solve
from icllab.diagnostics.contexts.subspaces import norm, parameters, random_direction, subtract, with_parameters


class FittedMap(eqx.Module):
    """A case with the solution of its fit."""

    case: MapCase
    model: Any
    solution: Solution
    method: str = eqx.field(static=True)
    tolerance: float = eqx.field(static=True)

    @property
    def fit(self) -> MapFit:
        """The fit with its solution as the model."""
        return eqx.tree_at(lambda fit: fit.model, self.case.fit, self.model)

    @property
    def converged(self) -> bool:
        """True if the final gradient is at most the solver's tolerance."""
        return float(self.solution.gradient) <= self.tolerance


def fit_map(case: MapCase, solver: MapSolver) -> FittedMap:
    """Solve the fit of a case."""
    solution, method = solve(case.fit, solver)
    return FittedMap(case, with_parameters(case.fit.model, solution.free), solution, method, solver.tolerance)


@dataclass(frozen=True, kw_only=True)
class MapTests:
    """Sizes of the tests of a context's map.

    Attributes:
        directions: Number of random directions of the derivative test, at least 2.
        draws: Number of networks of each null, at least 2.
        untrained: Function of a key that samples an untrained network; None: permute every array of the model.

    Raises:
        InputError: A number is out of range.
    """

    directions: int = 4
    draws: int = 3
    untrained: Untrained | None = None

    def __post_init__(self) -> None:
        require_integer("directions", self.directions, least=2)
        require_integer("draws", self.draws, least=2)


@dataclass(frozen=True)
class MapMeasurements:
    """Measurements that are the same for every map."""

    context: Any
    queries: Queries
    mask: Any
    kind: str
    solver: MapSolver
    directions: int
    key: PRNGKeyArray

    def measure(self, result: FittedMap, *, reference: FittedMap, partner: FittedMap) -> dict[str, np.ndarray]:
        """Gap, derivative, composition and norm; ``reference`` and ``partner`` are the maps of the composition test."""
        case, held_out, kind = result.case, self.queries.held_out, self.kind
        residual = np.asarray(divergence(kind, case.held_out, answers_alone(result.model, held_out)))
        start = np.asarray(divergence(kind, case.held_out, answers_alone(case.fit.model, held_out)))
        size = norm(eqx.filter(case.fit.model, self.mask))
        away = norm(subtract(result.solution.free, case.fit.free)) / (size if size > 0 else 1.0)
        derivative, unmoved, solve_residual = self._derivative(result)
        return {
            "gap": ratio_of_means(residual, start),
            "derivative": derivative,
            "unmoved": unmoved,
            "solve": np.array([solve_residual, np.nan]),
            "composition": self._composition(reference, partner),
            "norm": np.array([away, np.nan]),
        }

    def _derivative(self, result: FittedMap) -> tuple[np.ndarray, np.ndarray, float]:
        """Unexplained fractions of the changes along random directions, for the map and for w itself.

        Each has its error over directions. The last value is the largest residual of the linear systems.
        """
        parts, residuals = [], []
        params = parameters(result.case.fit.model)
        for i in range(self.directions):
            direction = random_direction(params, jax.random.fold_in(self.key, i))
            fitted_change, held_out = result.case.changes(self.context, self.queries, direction)
            change = carry(result.fit, direction, fitted_change, self.solver)
            map_change = answer_changes(result.model, self.queries.held_out, change.direction)
            own_change = answer_changes(result.case.fit.model, self.queries.held_out, direction)
            changes = (held_out - map_change, held_out - own_change, held_out)
            parts.append([_mean_size(self.kind, result.case.held_out, part) for part in changes])
            residuals.append(float(change.residual))
        map_sizes, own_sizes, sizes = np.array(parts).T
        return ratio_of_means(map_sizes, sizes), ratio_of_means(own_sizes, sizes), max(residuals)

    def _composition(self, reference: FittedMap, partner: FittedMap) -> np.ndarray:
        r"""Distance of :math:`f_{c_2}`, after the map of the earlier half, from ``reference``, the map of the whole.

        If ``partner`` is not ``reference``, it takes the place of the map of the earlier half: weights as far away.
        """
        if self.context.length < 2:
            return np.full(2, np.nan)
        earlier, later = halve_context(self.context)
        halfway = partner if partner is not reference else self._map_of(reference.case.fit.model, earlier)
        composition = self._map_of(halfway.model, later)
        target, held_out = reference.case.held_out, self.queries.held_out
        networks = (reference.model, composition.model, reference.case.fit.model)
        whole, in_steps, start = (answers_alone(network, held_out) for network in networks)
        sizes = [np.asarray(squared_size(self.kind, target, v)) for v in (whole - in_steps, target - start)]
        return ratio_of_means(*sizes)

    def _map_of(self, model: Any, context: Any) -> FittedMap:
        targets = answers_after(model, context, self.queries.fitted)
        fit = MapFit(model, self.mask, self.queries.fitted, targets, self.kind)
        return fit_map(MapCase(fit, targets, model, None), self.solver)

    def rank_curve(self, result: FittedMap) -> tuple[list[int], np.ndarray]:
        """Ranks 0, 1, 2, 4, ... and the gap with all matrices of the change truncated to them."""
        change = subtract(result.solution.free, result.case.fit.free)
        shapes = [leaf.shape for leaf in jax.tree.leaves(change) if leaf.ndim > 1 and leaf.size]
        largest = max((min(_rows(shape), int(np.prod(shape)) // _rows(shape)) for shape in shapes), default=0)
        ranks = sorted({0, *(2**i for i in range(largest.bit_length())), largest})
        kind, held_out = self.kind, self.queries.held_out
        start = float(jnp.mean(divergence(kind, result.case.held_out, answers_alone(result.case.fit.model, held_out))))
        gaps = []
        for rank in ranks:
            cut = jax.tree.map(lambda a, d, r=rank: a + _cut(d, r), result.case.fit.free, change)
            answers = answers_alone(with_parameters(result.model, cut), held_out)
            gaps.append(float(jnp.mean(divergence(kind, result.case.held_out, answers))) / start)
        return ranks, np.array(gaps)


def _rows(shape: tuple[int, ...]) -> int:
    """Number of rows of an array as a matrix whose shape is as square as possible."""
    whole = np.prod(shape)
    return min(np.cumprod(shape)[:-1].tolist(), key=lambda rows: abs(np.log(rows**2 / whole)))


def _cut(change: Array, rank: int) -> Array:
    """Nearest matrix of a rank; vectors are not changed."""
    if change.ndim < 2:
        return change
    u, s, v = np.linalg.svd(np.asarray(change, np.float64).reshape(_rows(change.shape), -1), full_matrices=False)
    return jnp.asarray(((u[:, :rank] * s[:rank]) @ v[:rank]).reshape(change.shape), change.dtype)


def _mean_size(kind: str, target: Array, change: Array) -> float:
    return float(jnp.mean(squared_size(kind, target, change)))


def ratio_of_means(above: Any, below: Any) -> np.ndarray:
    """Ratio of two means over the same rows, and its standard error."""
    above, below = np.asarray(above, np.float64), np.asarray(below, np.float64)
    if not below.mean() > 0:
        return np.full(2, np.nan)
    ratio = above.mean() / below.mean()
    spread = (above - ratio * below).std(ddof=1) / np.sqrt(len(above)) if len(above) > 1 else np.nan
    return np.array([ratio, spread / below.mean()])
