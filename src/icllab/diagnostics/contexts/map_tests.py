r"""What is measured of a map of a context to weights, and of every null alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from icllab.diagnostics.contexts.derivatives import carried, change_alone
from icllab.diagnostics.contexts.distances import divergence, squared_size
from icllab.diagnostics.contexts.nulls import Case
from icllab.diagnostics.contexts.queries import Queries, answers_after, answers_alone, halves
from icllab.diagnostics.contexts.solvers import Fit, MapSolver, Solution, solved
from icllab.diagnostics.contexts.subspaces import difference, norm, parameters, random_direction, with_parameters


class FittedMap(eqx.Module):
    """A case with its solution."""

    case: Case
    model: Any
    solution: Solution
    method: str = eqx.field(static=True)
    tolerance: float = eqx.field(static=True)

    @property
    def fit(self) -> Fit:
        """The fit at its solution."""
        return eqx.tree_at(lambda fit: fit.model, self.case.fit, self.model)

    @property
    def converged(self) -> bool:
        """Whether the gradient is small enough."""
        return float(self.solution.gradient) <= self.tolerance


def fitted_map(case: Case, how: MapSolver) -> FittedMap:
    """The case solved."""
    solution, method = solved(case.fit, how)
    return FittedMap(case, with_parameters(case.fit.model, solution.free), solution, method, how.tolerance)


@dataclass(frozen=True)
class MapTests:
    """What is measured of every map alike."""

    context: Any
    queries: Queries
    mask: Any
    kind: str
    how: MapSolver
    model: Any
    checkpoints: Sequence[Any]
    directions: int
    key: PRNGKeyArray

    def measured(self, one: FittedMap, *, first: FittedMap, other: FittedMap) -> dict[str, np.ndarray]:
        """Gap, derivative, composition and norm; ``first`` is the map that a composition is compared with."""
        case, held_out, kind = one.case, self.queries.held_out, self.kind
        moved = np.asarray(divergence(kind, case.held_out, answers_alone(one.model, held_out)))
        stayed = np.asarray(divergence(kind, case.held_out, answers_alone(case.fit.model, held_out)))
        size = norm(eqx.filter(case.fit.model, self.mask))
        away = norm(difference(one.solution.free, case.fit.free)) / (size if size > 0 else 1.0)
        derivative, unmoved, unsolved = self._derivative(one)
        return {
            "gap": _ratio(moved, stayed),
            "derivative": derivative,
            "unmoved": unmoved,
            "solve": np.array([unsolved, np.nan]),
            "composition": self._composition(first, other),
            "norm": np.array([away, np.nan]),
            "step_derivative": self._steps(one),
        }

    def _derivative(self, one: FittedMap) -> tuple[np.ndarray, np.ndarray, float]:
        """The fractions of the changes along random directions that the map does not carry, and that w itself does not.

        With their errors over directions, and what is left of the linear systems.
        """
        parts, residuals = [], []
        params = parameters(one.case.fit.model)
        for i in range(self.directions):
            direction = random_direction(params, jax.random.fold_in(self.key, i))
            fitted, held_out = one.case.changes(self.context, self.queries, direction)
            found = carried(one.fit, direction, fitted, self.how)
            there = change_alone(one.model, self.queries.held_out, found.direction)
            stays = change_alone(one.case.fit.model, self.queries.held_out, direction)
            left = (held_out - there, held_out - stays, held_out)
            parts.append([_mean_size(self.kind, one.case.held_out, change) for change in left])
            residuals.append(float(found.residual))
        carried_not, stays_not, whole = np.array(parts).T
        return _ratio(carried_not, whole), _ratio(stays_not, whole), max(residuals)

    def _steps(self, one: FittedMap) -> np.ndarray:
        """Likewise of whole steps to the checkpoints, less what the map leaves at w."""
        rows = []
        for checkpoint in self.checkpoints:
            direction = difference(parameters(checkpoint), parameters(self.model))
            fitted, _ = one.case.changes(self.context, self.queries, direction)
            wanted = one.case.steps(self.context, self.queries, direction)
            found = carried(one.fit, direction, fitted, self.how)
            there = with_parameters(one.model, jax.tree.map(jnp.add, parameters(one.model), found.direction))
            alone = [answers_alone(network, self.queries.held_out) for network in (one.model, there)]
            sizes = [squared_size(self.kind, one.case.held_out, v) for v in (wanted - alone[1] + alone[0], wanted)]
            rows.append(_ratio(*(np.asarray(size) for size in sizes)))
        return np.array(rows).reshape(len(rows), 2)

    def _composition(self, first: FittedMap, other: FittedMap) -> np.ndarray:
        r"""How far :math:`f_{c_2}` after ``other``'s map of the earlier half is from ``first``'s of the whole.

        Where ``other`` is not ``first``, its own map stands for that of the earlier half: weights as far away.
        """
        if self.context.length < 2:
            return np.full(2, np.nan)
        earlier, later = halves(self.context)
        halfway = other if other is not first else self._onward(first.case.fit.model, earlier)
        composed = self._onward(halfway.model, later)
        target, held_out = first.case.held_out, self.queries.held_out
        whole, both, alone = (
            answers_alone(network, held_out) for network in (first.model, composed.model, first.case.fit.model)
        )
        sizes = [np.asarray(squared_size(self.kind, target, v)) for v in (whole - both, target - alone)]
        return _ratio(*sizes)

    def _onward(self, model: Any, context: Any) -> FittedMap:
        targets = answers_after(model, context, self.queries.fitted)
        fit = Fit(model, self.mask, self.queries.fitted, targets, self.kind)
        return fitted_map(Case(fit, targets, model, None), self.how)

    def rank_curve(self, one: FittedMap) -> tuple[list[int], np.ndarray]:
        """The gap with all matrices of the change cut to ranks 0, 1, 2, 4, ..., and its error."""
        change = difference(one.solution.free, one.case.fit.free)
        shapes = [leaf.shape for leaf in jax.tree.leaves(change) if leaf.ndim > 1 and leaf.size]
        largest = max((min(_rows(shape), int(np.prod(shape)) // _rows(shape)) for shape in shapes), default=0)
        ranks = sorted({0, *(2**i for i in range(largest.bit_length())), largest})
        kind, held_out = self.kind, self.queries.held_out
        stayed = float(jnp.mean(divergence(kind, one.case.held_out, answers_alone(one.case.fit.model, held_out))))
        gaps = []
        for rank in ranks:
            cut = jax.tree.map(lambda a, d, r=rank: a + _cut(d, r), one.case.fit.free, change)
            answers = answers_alone(with_parameters(one.model, cut), held_out)
            gaps.append(float(jnp.mean(divergence(kind, one.case.held_out, answers))) / stayed)
        return ranks, np.array(gaps)


def _rows(shape: tuple[int, ...]) -> int:
    """Rows of an array as a matrix: its axes are cut in two where that is most nearly square."""
    whole = np.prod(shape)
    return min(np.cumprod(shape)[:-1].tolist(), key=lambda rows: abs(np.log(rows**2 / whole)))


def _cut(change: Array, rank: int) -> Array:
    """The nearest matrix of a rank; vectors as they are."""
    if change.ndim < 2:
        return change
    u, s, v = np.linalg.svd(np.asarray(change, np.float64).reshape(_rows(change.shape), -1), full_matrices=False)
    return jnp.asarray(((u[:, :rank] * s[:rank]) @ v[:rank]).reshape(change.shape), change.dtype)


def _mean_size(kind: str, target: Array, change: Array) -> float:
    return float(jnp.mean(squared_size(kind, target, change)))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """The ratio of two means over the same rows, and its standard error."""
    above, below = np.asarray(above, np.float64), np.asarray(below, np.float64)
    if not below.mean() > 0:
        return np.full(2, np.nan)
    ratio = above.mean() / below.mean()
    spread = (above - ratio * below).std(ddof=1) / np.sqrt(len(above)) if len(above) > 1 else np.nan
    return np.array([ratio, spread / below.mean()])
