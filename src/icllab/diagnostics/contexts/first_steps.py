"""Comparison of the map of a context with a step of gradient descent on that context."""

from numbers import Integral
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.calls import moved
from icllab.core.errors import expected, require_integer, require_key
from icllab.core.prompt import Prompt
from icllab.core.protocols import AbstractTask, Predictor, declared, position_losses
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.diagnostics.contexts import nulls
from icllab.diagnostics.contexts.distances import divergence
from icllab.diagnostics.contexts.map_tests import fit_map, ratio_of_means
from icllab.diagnostics.contexts.queries import QUERY_LENGTH, QuerySource, answers_alone, unpadded
from icllab.diagnostics.contexts.solvers import MapFit, MapSolver, unused_parameters
from icllab.diagnostics.contexts.subspaces import Where, subtract, with_parameters
from icllab.models.pretrained.ignored_fields import names_ignored

GRADIENTS = ("answer", "sequence", "examples")
GOLDEN = (5**0.5 - 1) / 2
SECTIONS = 40  # after which an interval is 4e-9 of what it was


@moved(query_length=QUERY_LENGTH)
@names_ignored
def gradient_step_comparison(
    model: Predictor,
    task: AbstractTask,
    context: Prompt,
    *,
    subspace: Where | None,
    key: PRNGKeyArray,
    queries: int | Any = 256,
    draws: int | Any = 8,
    solver: MapSolver | None = None,
) -> xr.Dataset:
    r"""Compare the weight change of a context map with gradient steps on the context.

    .. math:: \cos\big(f_c(w) - w,\; -g\big), \qquad
              \min_{\eta \ge 0} \frac{D_c(w, w - \eta P g)}{D_c(w, w)}

    for three gradients g of the task's loss in the subspace: of the last ``answer`` of the context given all before it,
    which is a step of next-token training; of all answers of the context as one ``sequence``; and of its ``examples``,
    each without the others. A high cosine may be generic, so that the same numbers are measured for the gradients of
    ``draws`` other contexts from the task.

    Args:
        model: Model at its weights w.
        task: Task that owns the loss, and samples queries and other contexts.
        context: Prompt whose examples before its last query are the context.
        subspace: Weights that may move; see :func:`~icllab.diagnostics.contexts.maps.context_map`.
        key: Key of queries and other contexts.
        queries: Number of queries for the fit and the choice of the step, and the same number held out; or prompts
            stacked on a leading axis, half of them for the fit; or a
            :class:`~icllab.diagnostics.contexts.queries.QuerySource`.
        draws: Number of other contexts, at least 2; or other contexts, as prompts stacked on a leading axis.
        solver: Options of the fit.

    Returns:
        Over ``gradient``: ``cosine``; ``best_step_gap`` with its ``_error`` over held-out queries, and ``best_step``,
        :math:`\eta`. The first two for the other contexts, over ``draw`` too, with the prefix ``other_``. ``gap`` of
        the map; ``random_cosine``, the standard deviation of the cosine of a random direction; ``converged``.

    Raises:
        InputError: As ``context_map``.

    Source: the question [SLT22]; examples asked alone [vonOswald23].
    Derived: docs/context-map.md, A gradient step.
    """
    require_key(key)
    map_solver, context, source = MapSolver() if solver is None else solver, unpadded(context), QuerySource.of(queries)
    case, query_set = nulls.context_case(
        model, task, context, subspace=subspace, queries=source.prompts, size=source.length, key=key
    )
    unused_parameters(case.fit, source.length)
    others = _other_contexts(context, task, draws, jax.random.fold_in(key, 1))
    own_map = fit_map(case, map_solver)
    change = subtract(own_map.solution.free, case.fit.free)
    held_out = eqx.tree_at(lambda fit: (fit.queries, fit.targets), case.fit, (query_set.held_out, case.held_out))
    own = gradients(model, case.fit.mask, task, context)
    slopes = jax.tree.map(
        lambda first, rest: jnp.concatenate([first[None], rest]),
        own,
        _stacked_gradients(model, case.fit.mask, task, others),
    )
    before, after_map = (np.asarray(_divergences(held_out, free)) for free in (case.fit.free, own_map.solution.free))

    rows: dict[str, list[Any]] = {"cosine": [], "best_step_gap": [], "best_step": []}
    errors = []
    for name in GRADIENTS:
        cosines, steps, after = map(np.asarray, _along(case.fit, held_out, change, slopes[name]))
        gaps = np.array([ratio_of_means(row, before) for row in after])
        for row, values in zip(rows.values(), (cosines, gaps[:, 0], steps), strict=True):
            row.append(values.astype(float))
        errors.append(gaps[0, 1])
    tables = {name: np.array(values) for name, values in rows.items()}
    count = sum(leaf.size for leaf in jax.tree.leaves(change))
    variables = {
        **{name: ("gradient", table[:, 0]) for name, table in tables.items()},
        "best_step_gap_error": ("gradient", np.array(errors)),
        "other_cosine": (("gradient", "draw"), tables["cosine"][:, 1:]),
        "other_best_step_gap": (("gradient", "draw"), tables["best_step_gap"][:, 1:]),
        "gap": float(after_map.mean() / before.mean()),
        "random_cosine": count**-0.5,
        "converged": own_map.converged,
    }
    attributes = query_set.description | {"method": own_map.method}
    draw = np.arange(tables["cosine"].shape[1] - 1)
    return xr.Dataset(variables, coords={"gradient": list(GRADIENTS), "draw": draw}, attrs=attributes)


@eqx.filter_jit
def gradients(model: Any, mask: Any, task: AbstractTask, context: Any) -> dict[str, Any]:
    """The three gradients of the loss on a context with respect to the chosen weights."""
    last = context.length - 1
    whole = context.alone(last, size=last + 1)
    each = jax.tree.map(lambda *rows: jnp.stack(rows), *(context.alone(i) for i in range(last + 1)))

    def at(network: Any, prompt: Any) -> Array:
        return position_losses(task, network(prompt), prompt)[-1]

    def sequence(network: Any) -> Float[Array, ""]:
        if declared(model, "positions") == "every":
            return jnp.sum(position_losses(task, network(whole), whole))
        return jnp.sum(jnp.stack([at(network, context.alone(i, size=i + 1)) for i in range(last + 1)]))

    def examples(network: Any) -> Float[Array, ""]:
        return jnp.sum(jax.vmap(lambda prompt: at(network, prompt))(each))

    losses = {"answer": lambda network: at(network, whole), "sequence": sequence, "examples": examples}
    free = eqx.filter(model, mask)
    return {name: jax.grad(lambda f, loss=loss: loss(eqx.combine(f, model)))(free) for name, loss in losses.items()}


@eqx.filter_jit
def _stacked_gradients(model: Any, mask: Any, task: AbstractTask, contexts: Any) -> dict[str, Any]:
    return jax.lax.map(lambda context: gradients(model, mask, task, context), contexts)


def _other_contexts(context: Any, task: AbstractTask, count: int | Any, key: PRNGKeyArray) -> Any:
    """Other contexts, stacked: given, or from the task, of the same length if its prompts are long enough."""
    if not isinstance(count, Integral):
        if not isinstance(count, type(context)):
            raise expected("draws", f"stacked {type(context).__name__}s, or their number", type(count).__name__)
        require_integer("draws", len(jax.tree.leaves(count)[0]), least=2)
        return count
    require_integer("draws", count, least=2)
    prompts = sample_prompts(task, key=key, prompts=int(count))
    prompt = jax.tree.map(lambda leaf: leaf[0], prompts)
    size = min(context.positions, prompt.positions)
    return jax.vmap(lambda prompt: prompt.alone(prompt.positions - 1, size=size))(prompts)


@eqx.filter_jit
def _along(fit: MapFit, held_out: MapFit, change: Any, slopes: Any) -> tuple[Array, Array, Array]:
    """Cosine with the change, best step, and held-out divergences after it, of descent along each of several slopes."""
    change_norm = _norm(change)

    def along(slope: Any) -> tuple[Array, Array, Array]:
        down = jax.tree.map(jnp.negative, slope)
        size = _norm(down)
        moves = (size > 0) & (change_norm > 0)
        product = sum(jnp.sum(a * b) for a, b in zip(jax.tree.leaves(down), jax.tree.leaves(change), strict=True))
        cosine = jnp.where(moves, product / jnp.where(moves, size * change_norm, 1), jnp.nan)
        step = jnp.where(moves, _best_step(fit, down, change_norm / jnp.where(moves, size, 1)), 0)
        return cosine, step, _divergences_after_step(held_out, down, step)

    return jax.lax.map(along, slopes)


def _best_step(fit: MapFit, down: Any, unit: Array) -> Array:
    """The step of least divergence on the fitted queries: the best of a grid, then golden sections; 0 if none helps."""

    def mean_divergence(step: Array) -> Array:
        return jnp.mean(_divergences_after_step(fit, down, step * unit))

    grid = jnp.asarray(np.concatenate([[0.0], 2.0 ** np.arange(-10, 4.5, 0.5)]), fit.targets.dtype)
    values = jax.lax.map(mean_divergence, grid)
    best = jnp.nanargmin(values)

    def narrower(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        nearer = mean_divergence(left) < mean_divergence(right)
        return jnp.where(nearer, low, left), jnp.where(nearer, right, high)

    ends = grid[jnp.maximum(best - 1, 0)], grid[jnp.minimum(best + 1, len(grid) - 1)]
    finer = jnp.mean(jnp.stack(jax.lax.fori_loop(0, SECTIONS, narrower, ends)))
    step = jnp.where(mean_divergence(finer) < values[best], finer, grid[best])
    return unit * jnp.where(best == 0, 0, step)


def _norm(tree: Any) -> Array:
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def _divergences(fit: MapFit, free: Any) -> np.ndarray:
    answers = answers_alone(with_parameters(fit.model, free), fit.queries)
    return np.asarray(divergence(fit.kind, fit.targets, answers), np.float64)


def _divergences_after_step(fit: MapFit, down: Any, step: Array) -> Float[Array, " query"]:
    """Divergence of every query after a step."""
    free = jax.tree.map(lambda leaf, d: leaf + step * d, fit.free, down)
    return divergence(fit.kind, fit.targets, fit.outputs(free, (fit.queries, fit.targets)))
