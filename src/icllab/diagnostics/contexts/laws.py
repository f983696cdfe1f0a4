r"""Tests of a law for contexts: how much of what contexts do to a network do weights carry?

With the map :math:`f_c(w)` of a context c (see :mod:`~icllab.diagnostics.contexts.maps`), three fractions are left on
held-out queries. A law leaves none of them:

.. math:: \rho_c &= E\,\mathrm{div}(T_w(c, x), T_{f_c(w)}(x)) / E\,\mathrm{div}(T_w(c, x), T_w(x)) &&\text{(effect)} \\
          \tau_c &= E\,|\partial_d T_w(c, x) - \partial_{Df_c d} T_{f_c(w)}(x)|^2
                    / E\,|\partial_d T_w(c, x)|^2 &&\text{(change)} \\
          \kappa_c &= E\,|T_{f_{c_1c_2}(w)}(x) - T_{f_{c_2}(f_{c_1}(w))}(x)|^2
                      / E\,|T_w(c, x) - T_w(x)|^2 &&\text{(composition)}

None of them suffices. A fit has a small gap because weights exist for most functions of a query; it then changes as
these do. A network without any map composes, since nothing moves. Every fraction is measured in three worlds:

* *own*: the context's own map;
* *other*: the map of another context (in the composition, of another context's earlier half) in its place: the null;
* *planted*: an exact law at the same size in the same network. The target is :math:`T_{w + \delta}(x)` for a random
  change :math:`\delta = \delta_1 + \delta_2` of the subspace, scaled to the divergence of the context's effect. What
  is left of it is what these queries, this solver and the choice among equivalent weights leave of a law.

Derived: docs/context-map.md, Is there a law?
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from icllab.core.calls import moved
from icllab.core.errors import expected, require_integer, require_key
from icllab.core.prompt import Prompt
from icllab.core.protocols import AbstractTask, Predictor
from icllab.diagnostics.behaviour.answers import LOGITS
from icllab.diagnostics.contexts.distances import divergence, divergence_kind, squared_size
from icllab.diagnostics.contexts.queries import (
    QUERY_LENGTH,
    Queries,
    QuerySource,
    answers_after,
    answers_alone,
    halve_context,
    queries_for,
    require_answer,
    unpadded,
)
from icllab.diagnostics.contexts.solvers import (
    MapFit,
    MapSolver,
    along,
    answer_changes,
    carried_step,
    gauss_newton,
    unused_parameters,
)
from icllab.diagnostics.contexts.subspaces import Where, parameter_mask, parameters
from icllab.models.pretrained.ignored_fields import names_ignored

WORLDS = ("own", "other", "planted")
TESTS = ("effect", "change", "composition")
SOLVER = MapSolver(method="dense")
AWAY = (0.5, 1.0, 1.5)  # of the root mean square of an array of weights: how far the other starts of a fit are, in turn
MET, BETTER = (
    1e-4,
    0.1,
)  # of a target: where a fit needs no other start; of what the first start leaves: what another has
HALVINGS = 40  # of the interval for the size of a planted change


class Fractions(NamedTuple):
    """Fractions left in every world and test, and whether all of their fits have converged."""

    left: Float[Array, "context world test"]
    converged: Bool[Array, "context world test"]


class LawProblem(eqx.Module):
    """A network, the weights that may move, and how they are fitted."""

    model: Any
    mask: Any
    solver: MapSolver = eqx.field(static=True)
    kind: str = eqx.field(static=True)
    in_turn: bool = eqx.field(static=True, default=False)

    @property
    def each(self) -> Callable[..., Any]:
        """``jax.vmap``; or a loop outside of ``jit``, with few programs and the memory of one call."""
        return _in_turn if self.in_turn else jax.vmap

    @property
    def free(self) -> Any:
        """The weights that may move."""
        return eqx.filter(self.model, self.mask)

    def network(self, free: Any) -> Any:
        """The network with these weights in the place of its own."""
        return eqx.combine(free, self.model)

    def fit(self, start: Any, queries: Any, targets: Array) -> tuple[Any, Array]:
        """Weights with these answers to queries, and whether the fit has converged.

        While a fit leaves more than ``MET`` of the target, another starts from a random point about ``start``, and
        counts if it has converged and leaves less than a tenth.
        """

        def solved(begin: Any) -> tuple[Any, Array, Array]:
            solution = gauss_newton(MapFit(self.network(begin), self.mask, queries, targets, self.kind), self.solver)
            return solution.free, solution.divergence, solution.gradient <= self.solver.tolerance

        whole = self.divergence(targets, answers_alone(self.network(start), queries))
        distances = jnp.asarray(AWAY, whole.dtype)

        def unmet(state: Any) -> Array:
            number, (_, left, _) = state
            return (number < self.solver.starts) & (left > MET * whole)

        def another(state: Any) -> Any:
            number, best = state
            away = normal_like(start, jax.random.fold_in(jax.random.key(0), number))  # the same about every start
            distance = distances[number % len(AWAY)]
            solution = solved(jax.tree.map(lambda w, d: w + (distance * d).astype(w.dtype), start, away))
            better = solution[2] & (solution[1] < BETTER * best[1])
            return number + 1, jax.tree.map(lambda new, old: jnp.where(better, new, old), solution, best)

        _, (free, _, converged) = jax.lax.while_loop(unmet, another, (jnp.asarray(1), solved(start)))
        return free, converged

    def carried(self, free: Any, queries: Any, targets: Array, direction: Any, change: Array) -> Any:
        """:math:`Df_c d - d` of the map with weights ``free``, which only these have."""
        fit = MapFit(self.network(free), self.mask, queries, targets, self.kind)
        return carried_step(fit, direction, change, self.solver)[0]

    def divergence(self, target: Array, answers: Array) -> Array:
        """Mean divergence of answers from a target."""
        return jnp.mean(divergence(self.kind, target, answers))

    def size(self, target: Array, change: Array) -> Array:
        """Mean square of a change of answers, in the metric of the divergence."""
        return jnp.mean(squared_size(self.kind, target, change))


def normal_like(params: Any, key: PRNGKeyArray) -> Any:
    """Normal numbers with the root mean square of every array; of the whole tree if an array is zero."""
    leaves, structure = jax.tree.flatten(params)
    count = sum(leaf.size for leaf in leaves)
    whole = jnp.sqrt(sum((jnp.sum(leaf**2) for leaf in leaves), jnp.zeros(())) / count)

    def normal(leaf: Array, number: int) -> Array:
        size = jnp.sqrt(jnp.mean(leaf**2)) if leaf.size else whole
        drawn = jax.random.normal(jax.random.fold_in(key, number), leaf.shape, leaf.dtype)
        return jnp.where(size > 0, size, whole).astype(leaf.dtype) * drawn

    return structure.unflatten([normal(leaf, i) for i, leaf in enumerate(leaves)])


def fractions_left(
    problem: LawProblem, contexts: Any, queries: Queries, *, directions: int, key: PRNGKeyArray
) -> Fractions:
    """Fractions left of stacked contexts with their stacked queries; a pure function that can be jitted and mapped.

    The map of context i - 1 stands for another context's. Directions are shared by contexts.
    """
    of_directions, of_plants = jax.random.split(key)
    count = len(jax.tree.leaves(contexts)[0])
    each = problem.each

    def rolled(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.roll(leaf, 1, axis=0), tree)

    fitted = each(lambda *case: _fit_maps(problem, *case))
    maps = fitted(contexts, queries.fitted, jax.random.split(of_plants, count))
    others = rolled((maps.own, maps.half, maps.converged))

    def changes(direction_key: Array) -> Any:
        way = normal_like(parameters(problem.model), direction_key)
        steps = each(lambda *case: _carried(problem, way, *case))(contexts, queries.fitted, maps)
        compared = each(lambda *case: _changes(problem, way, *case))
        return compared(contexts, queries.held_out, maps, others[0], steps, rolled(steps[0]))

    left, whole = (jnp.sum(part, axis=0) for part in each(changes)(jax.random.split(of_directions, directions)))
    change = left / whole
    compared = each(lambda *case: _compare(problem, *case))
    return Fractions(*compared(contexts, queries.fitted, queries.held_out, maps, others, change))


def _in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
    """``jax.vmap`` of a function as a loop."""
    return lambda *rows: _stack(*(function(*_at(rows, i)) for i in range(len(jax.tree.leaves(rows)[0]))))


class _Maps(NamedTuple):
    """Weights of the maps of a context, and their targets."""

    own: Any
    half: Any
    planted: Any
    planted_half: Any
    parts: tuple[Any, Any]  # the planted changes of both halves
    targets: Array  # of own and planted
    converged: Array  # of own, half, planted, planted half


def _plus(left: Any, right: Any) -> Any:
    return jax.tree.map(jnp.add, left, right)


def _fit_maps(problem: LawProblem, context: Any, fitted: Any, key: PRNGKeyArray) -> _Maps:
    """The maps of a context, of its earlier half, and of a planted change of the same size and its first part."""
    model, free = problem.model, problem.free
    target, base = answers_after(model, context, fitted), answers_alone(model, fitted)
    first, second = (normal_like(free, part) for part in jax.random.split(key))
    scale = _scale_of_plant(problem, _plus(first, second), fitted, base, problem.divergence(target, base))
    parts = tuple(jax.tree.map(lambda leaf: scale.astype(leaf.dtype) * leaf, part) for part in (first, second))
    whole = problem.network(_plus(free, _plus(*parts)))
    targets = jnp.stack(
        [
            target,
            answers_after(model, halve_context(context)[0], fitted),
            answers_alone(whole, fitted),
            answers_alone(problem.network(_plus(free, parts[0])), fitted),
        ]
    )
    solutions, converged = jax.vmap(lambda t: problem.fit(free, fitted, t))(targets)
    own, half, planted, planted_half = (_at(solutions, i) for i in range(4))
    return _Maps(own, half, planted, planted_half, parts, targets[::2], converged)


def _planted(problem: LawProblem, maps: _Maps) -> Any:
    """The network with both planted changes."""
    return problem.network(_plus(problem.free, _plus(*maps.parts)))


def _carried(problem: LawProblem, way: Any, context: Any, fitted: Any, maps: _Maps) -> tuple[Any, Any]:
    """Steps of the own and of the planted map that a change of all weights causes."""
    targets = (
        answer_changes(problem.model, fitted, way, context),
        answer_changes(_planted(problem, maps), fitted, way),
    )
    steps = jax.vmap(lambda end, t, change: problem.carried(end, fitted, t, way, change))(
        _stack(maps.own, maps.planted), maps.targets, jnp.stack(targets)
    )
    return _at(steps, 0), _at(steps, 1)


def _changes(
    problem: LawProblem, way: Any, context: Any, held_out: Any, maps: _Maps, other: Any, steps: Any, other_step: Any
) -> tuple[Array, Array]:
    """Squared residuals [world] of the changes of answers along a direction, and squared changes."""
    model, planted = problem.model, _planted(problem, maps)
    own, of_plant = answer_changes(model, held_out, way, context), answer_changes(planted, held_out, way)
    after, moved = answers_after(model, context, held_out), answers_alone(planted, held_out)
    targets, changes = jnp.stack([after, after, moved]), jnp.stack([own, own, of_plant])

    def mapped(free: Any, step: Any) -> Array:
        return answer_changes(problem.network(free), held_out, along(way, step))

    ends = _stack(maps.own, other, maps.planted), _stack(steps[0], other_step, steps[1])
    left = changes - jax.vmap(mapped)(*ends)
    return jax.vmap(problem.size)(targets, left), jax.vmap(problem.size)(targets, changes)


def _stack(*trees: Any) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _at(tree: Any, index: int | Array) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


@eqx.filter_jit
def _scale_of_plant(problem: LawProblem, change: Any, queries: Any, base: Array, wanted: Array) -> Array:
    """Factor on a change of weights that changes answers by the wanted divergence, by bisection of its logarithm."""

    def size(exponent: Array) -> Array:
        moved = jax.tree.map(lambda w, d: w + jnp.exp(exponent).astype(w.dtype) * d, problem.free, change)
        return problem.divergence(base, answers_alone(problem.network(moved), queries))

    def narrower(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = (ends[0] + ends[1]) / 2
        small = size(middle) < wanted
        return jnp.where(small, middle, ends[0]), jnp.where(small, ends[1], middle)

    ends = jnp.asarray(-20.0, base.dtype), jnp.asarray(10.0, base.dtype)
    return jnp.exp(jax.lax.fori_loop(0, HALVINGS, narrower, ends)[0])


def _compare(
    problem: LawProblem, context: Any, fitted: Any, held_out: Any, maps: _Maps, others: Any, change: Array
) -> tuple[Array, Array]:
    """Fractions [world, test] that are left of a context, and whether their fits have converged."""
    model, later = problem.model, halve_context(context)[1]
    other, other_half, other_converged = others
    halves = _stack(maps.half, other_half, maps.planted_half)
    own_ends, other_ends = (answers_after(problem.network(half), later, fitted) for half in (maps.half, other_half))
    planted_end = answers_alone(problem.network(_plus(maps.planted_half, maps.parts[1])), fitted)
    composed, composed_converged = jax.vmap(lambda start, target: problem.fit(start, fitted, target))(
        halves, jnp.stack([own_ends, other_ends, planted_end])
    )
    start, after = answers_alone(model, held_out), answers_after(model, context, held_out)
    targets = jnp.stack([after, after, answers_alone(_planted(problem, maps), held_out)])
    candidates = _stack(maps.own, other, maps.planted)
    ends = jax.vmap(lambda free: answers_alone(problem.network(free), held_out))(candidates)
    at_once = ends[jnp.asarray([0, 0, 2])]
    in_steps = jax.vmap(lambda free: answers_alone(problem.network(free), held_out))(composed)
    effect = jax.vmap(problem.divergence)(targets, ends) / jax.vmap(lambda t: problem.divergence(t, start))(targets)
    composition = jax.vmap(problem.size)(targets, at_once - in_steps) / jax.vmap(problem.size)(
        targets, targets - start[None]
    )
    left = jnp.stack([effect, change, composition], axis=1)
    own, half, plant, half_plant = maps.converged
    converged = jnp.stack([own, other_converged[0], plant])
    composes = composed_converged & jnp.stack([half, other_converged[1], half_plant]) & jnp.stack([own, own, plant])
    return left, jnp.stack([converged, converged, composes], axis=1)


@eqx.filter_jit
def _fractions_left(
    problem: LawProblem, contexts: Any, queries: Queries, *, directions: int, key: PRNGKeyArray
) -> Fractions:
    return fractions_left(problem, contexts, queries, directions=directions, key=key)


@moved(query_length=QUERY_LENGTH)
@names_ignored
def context_law(
    model: Predictor,
    task: AbstractTask,
    contexts: Sequence[Prompt],
    *,
    subspace: Where | None,
    key: PRNGKeyArray,
    queries: int | Sequence[Any] | QuerySource = 256,
    directions: int = 4,
    solver: MapSolver = SOLVER,
) -> xr.Dataset:
    """Measure how much of what contexts do to a network weights carry; :func:`~.verdicts.law` judges it.

    Args:
        model: Model at its weights w.
        task: Task that owns the loss, and samples the queries.
        contexts: Prompts of one shape, whose examples before the last query are the contexts: two or more, of two
            examples or more, and unrelated to each other. The null of each is the map of the one before it.
        subspace: Weights that may change, as ``where`` of ``equinox.tree_at``; None: all.
        key: Key of queries, directions and planted changes.
        queries: Number of queries for the fits of a context, and the same number held out; or for every context
            prompts stacked on a leading axis, half of them for the fit; or a
            :class:`~icllab.diagnostics.contexts.queries.QuerySource`.
        directions: Number of random directions of the weights.
        solver: Options of the fits; always Gauss-Newton.

    Returns:
        ``left``, the fraction left, over ``context``, ``world`` (``own``, ``other``, ``planted``) and ``test``
        (``effect``, ``change``, ``composition``); ``converged`` over the same axes. Datasets of several networks are
        joined by ``xr.concat(..., "network")``.

    Raises:
        InputError: Contexts are too few, too short or of several shapes; the subspace affects no query; or a context
            or an argument is none that :func:`~.maps.context_map` takes.

    Source: the hypothesis [SLT22].
    Derived: docs/context-map.md, Is there a law?
    """
    require_key(key)
    require_integer("directions", directions)
    if len(contexts) < 2:
        raise expected("contexts", "at least two contexts", len(contexts), "each is the null of another")
    contexts = [unpadded(context) for context in contexts]
    source = QuerySource.of(queries)
    counts = source.prompts if isinstance(source.prompts, Sequence) else [source.prompts] * len(contexts)
    if len(counts) != len(contexts):
        raise expected("queries", f"stacked prompts for each of {len(contexts)} contexts", len(counts))
    of_queries, of_tests = jax.random.split(key)
    sets = [
        queries_for(context, task, count=count, size=source.length, key=jax.random.fold_in(of_queries, i))
        for i, (context, count) in enumerate(zip(contexts, counts, strict=True))
    ]
    if min(context.length for context in contexts) < 2:
        raise expected("contexts", "at least two examples", 1, "a context of one example cannot be cut in two")
    if len({tuple(leaf.shape for leaf in jax.tree.leaves(case)) for case in zip(contexts, sets, strict=True)}) > 1:
        raise expected("contexts", "contexts and queries of one shape", "several")
    mask = parameter_mask(model, subspace)
    kind = divergence_kind(task, require_answer(model, contexts[0], sets[0]))
    base = answers_alone(model, sets[0].fitted)
    weights = sum(leaf.size for leaf in jax.tree.leaves(parameters(model)))
    in_turn = max(4 * len(contexts) * base.size, directions * weights) > LOGITS  # of four fits; of all directions
    problem = LawProblem(model, mask, solver, kind, in_turn)
    unused_parameters(MapFit(model, mask, sets[0].fitted, base, kind), source.length)
    measure = fractions_left if in_turn else _fractions_left
    left, converged = measure(problem, _stack(*contexts), _stack(*sets), directions=directions, key=of_tests)
    dims = ("context", "world", "test")
    variables = {"left": (dims, np.asarray(left, np.float64)), "converged": (dims, np.asarray(converged))}
    coordinates = {"context": np.arange(len(contexts)), "world": list(WORLDS), "test": list(TESTS)}
    return xr.Dataset(variables, coordinates, sets[0].description | {"directions": directions, "head": kind})
