"""Comparison of the map of a context with a step of gradient descent on that context."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.optimize import minimize_scalar

from icllab.core.errors import require_integer, require_key
from icllab.core.prompt import Prompt
from icllab.core.protocols import AbstractTask, Predictor, declared, position_losses
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.diagnostics.contexts import nulls
from icllab.diagnostics.contexts.distances import divergence
from icllab.diagnostics.contexts.map_tests import fit_map, ratio_of_means
from icllab.diagnostics.contexts.queries import answers_alone
from icllab.diagnostics.contexts.solvers import MapFit, MapSolver, unused_parameters
from icllab.diagnostics.contexts.subspaces import Where, inner, norm, subtract, with_parameters

GRADIENTS = ("answer", "sequence", "examples")


def gradient_step_comparison(
    model: Predictor,
    task: AbstractTask,
    context: Prompt,
    *,
    subspace: Where | None,
    key: PRNGKeyArray,
    queries: int | Any = 256,
    query_length: int = 1,
    draws: int = 8,
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
            stacked on a leading axis, half of them for the fit.
        query_length: Number of positions of a query.
        draws: Number of other contexts, at least 2.
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
    require_integer("draws", draws, least=2)
    map_solver = MapSolver() if solver is None else solver
    case, query_set = nulls.context_case(
        model, task, context, subspace=subspace, queries=queries, size=query_length, key=key
    )
    unused_parameters(case.fit, query_length)
    own_map = fit_map(case, map_solver)
    change = subtract(own_map.solution.free, case.fit.free)
    prompts = _other_contexts(context, task, draws, jax.random.fold_in(key, 1))
    contexts = [context, *(jax.tree.map(lambda leaf, i=i: leaf[i], prompts) for i in range(draws))]

    held_out = eqx.tree_at(lambda fit: (fit.queries, fit.targets), case.fit, (query_set.held_out, case.held_out))
    before = _divergences(held_out, case.fit.free)
    cosines, gaps, errors, steps = (np.empty((len(GRADIENTS), len(contexts))) for _ in range(4))
    for j, prompt in enumerate(contexts):
        slopes = gradients(model, case.fit.mask, task, prompt)
        for i, name in enumerate(GRADIENTS):
            down = jax.tree.map(jnp.negative, slopes[name])
            size = norm(down) * norm(change)
            cosines[i, j] = inner(down, change) / size if size > 0 else np.nan
            steps[i, j] = _best_step(case.fit, down, norm(change))
            after = _divergences_after_step(held_out, down, jnp.asarray(steps[i, j], held_out.targets.dtype))
            gaps[i, j], errors[i, j] = ratio_of_means(after, before)
    count = sum(leaf.size for leaf in jax.tree.leaves(change))
    gap = _divergences(held_out, own_map.solution.free)
    variables = {
        "cosine": ("gradient", cosines[:, 0]),
        "best_step_gap": ("gradient", gaps[:, 0]),
        "best_step_gap_error": ("gradient", errors[:, 0]),
        "best_step": ("gradient", steps[:, 0]),
        "other_cosine": (("gradient", "draw"), cosines[:, 1:]),
        "other_best_step_gap": (("gradient", "draw"), gaps[:, 1:]),
        "gap": float(gap.mean() / before.mean()),
        "random_cosine": count**-0.5,
        "converged": own_map.converged,
    }
    attributes = query_set.description | {"method": own_map.method}
    return xr.Dataset(variables, coords={"gradient": list(GRADIENTS), "draw": np.arange(draws)}, attrs=attributes)


@eqx.filter_jit
def gradients(model: Any, mask: Any, task: AbstractTask, context: Any) -> dict[str, Any]:
    """The three gradients of the loss on a context with respect to the chosen weights."""
    last = context.length - 1
    whole = context.alone(last, size=last + 1)

    def at(network: Any, prompt: Any) -> Array:
        return position_losses(task, network(prompt), prompt)[-1]

    def sequence(network: Any) -> Float[Array, ""]:
        if declared(model, "positions") == "every":
            return jnp.sum(position_losses(task, network(whole), whole))
        return jnp.sum(jnp.stack([at(network, context.alone(i, size=i + 1)) for i in range(last + 1)]))

    def examples(network: Any) -> Float[Array, ""]:
        return jnp.sum(jnp.stack([at(network, context.alone(i)) for i in range(last + 1)]))

    losses = {"answer": lambda network: at(network, whole), "sequence": sequence, "examples": examples}
    free = eqx.filter(model, mask)
    return {name: jax.grad(lambda f, loss=loss: loss(eqx.combine(f, model)))(free) for name, loss in losses.items()}


def _other_contexts(context: Any, task: AbstractTask, count: int, key: PRNGKeyArray) -> Any:
    """Other contexts from the task, of the same length if the task's prompts are long enough."""
    prompts = sample_prompts(task, key=key, prompts=count)
    prompt = jax.tree.map(lambda leaf: leaf[0], prompts)
    size = min(context.positions, prompt.positions)
    return jax.vmap(lambda prompt: prompt.alone(prompt.positions - 1, size=size))(prompts)


def _best_step(fit: MapFit, down: Any, scale: float) -> float:
    """The step of least divergence on the fitted queries; 0 if every step increases it."""
    size = norm(down)
    if not (size > 0 and scale > 0):
        return 0.0
    unit = scale / size

    def mean_divergence(step: float) -> float:
        return float(_divergences_after_step(fit, down, jnp.asarray(step * unit, fit.targets.dtype)).mean())

    grid = np.concatenate([[0.0], 2.0 ** np.arange(-10, 4.5, 0.5)])
    values = [mean_divergence(step) for step in grid]
    best = int(np.nanargmin(values))
    if best == 0:
        return 0.0
    low, high = grid[best - 1], grid[min(best + 1, len(grid) - 1)]
    finer = minimize_scalar(mean_divergence, bounds=(low, high), method="bounded", options={"xatol": 1e-9 * high})
    return unit * float(finer.x if finer.fun < values[best] else grid[best])  # pyright: ignore[reportAttributeAccessIssue]


def _divergences(fit: MapFit, free: Any) -> np.ndarray:
    answers = answers_alone(with_parameters(fit.model, free), fit.queries)
    return np.asarray(divergence(fit.kind, fit.targets, answers), np.float64)


@eqx.filter_jit
def _divergences_after_step(fit: MapFit, down: Any, step: Array) -> Float[Array, " query"]:
    """Divergence of every query after a step."""
    free = jax.tree.map(lambda leaf, d: leaf + step * d, fit.free, down)
    return divergence(fit.kind, fit.targets, fit.outputs(free, (fit.queries, fit.targets)))
