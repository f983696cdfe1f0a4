"""Is the map of a context a step of gradient descent on that context?"""

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
from icllab.core.protocols import AbstractTask, Predictor, declared
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.diagnostics.contexts import nulls
from icllab.diagnostics.contexts.distances import divergence, kind_of
from icllab.diagnostics.contexts.map_tests import fitted_map
from icllab.diagnostics.contexts.queries import answers_alone, queries_for, require_answer
from icllab.diagnostics.contexts.solvers import Fit, MapSolver, unfelt
from icllab.diagnostics.contexts.subspaces import Where, chosen, difference, inner, norm, with_parameters

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
    others: int = 8,
    solver: MapSolver | None = None,
) -> xr.Dataset:
    r"""The change of weights that a context amounts to, beside gradient steps on the context.

    .. math:: \cos\big(f_c(w) - w,\; -g\big), \qquad
              \min_{\eta \ge 0} \frac{D_c(w, w - \eta P g)}{D_c(w, w)}

    for three gradients g of the task's loss in the subspace: of the last ``answer`` of the context given all before it,
    which is a step of next-token training; of every answer of the context as one ``sequence``; and of its ``examples``,
    each asked alone. A high cosine may be generic: the same numbers are measured for the gradients of ``others``, other
    contexts from the task.

    Args:
        model: Model at its weights w.
        task: Task that owns the loss, and samples queries and other contexts.
        context: Prompt whose examples before its last query are the context.
        subspace: Weights that may move; see :func:`~icllab.diagnostics.contexts.maps.context_map`.
        key: Key of queries and other contexts.
        queries: Number of queries that are fitted, on which the step is also chosen, and of those held out; or prompts
            stacked on a leading axis, of which half are fitted.
        query_length: Number of positions of a query.
        others: Number of other contexts, at least 2.
        solver: How the map is fitted.

    Returns:
        Over ``gradient``: ``cosine``; ``best_step_gap`` with its ``_error`` over held-out queries, and ``best_step``,
        :math:`\eta`. The first two of the other contexts over ``draw`` too, with the prefix ``other_``. ``gap`` of the
        map itself, ``random_cosine``, the standard deviation of the cosine of a random direction, and ``converged``.

    Raises:
        InputError: As ``context_map``.

    Source: the question [SLT22]; examples asked alone [vonOswald23].
    Derived: docs/context-map.md, A gradient step.
    """
    require_key(key)
    require_integer("others", others, least=2)
    how = MapSolver() if solver is None else solver
    mask = chosen(model, subspace)
    asked = queries_for(context, task, count=queries, size=query_length, key=jax.random.fold_in(key, 0))
    kind = kind_of(task, require_answer(model, context, asked))
    case = nulls.own(model, mask, context, asked, kind)
    unfelt(case.fit, query_length)
    found = fitted_map(case, how)
    change = difference(found.solution.free, case.fit.free)
    prompts = _like(context, task, others, jax.random.fold_in(key, 1))
    contexts = [context, *(jax.tree.map(lambda leaf, i=i: leaf[i], prompts) for i in range(others))]

    held_out = eqx.tree_at(lambda fit: (fit.queries, fit.targets), case.fit, (asked.held_out, case.held_out))
    cosines, gaps, errors, steps = (np.empty((len(GRADIENTS), len(contexts))) for _ in range(4))
    for j, one in enumerate(contexts):
        slopes = gradients(model, mask, task, one)
        for i, name in enumerate(GRADIENTS):
            down = jax.tree.map(jnp.negative, slopes[name])
            size = norm(down) * norm(change)
            cosines[i, j] = inner(down, change) / size if size > 0 else np.nan
            steps[i, j] = _best_step(case.fit, down, norm(change))
            gaps[i, j], errors[i, j] = _gap(held_out, down, steps[i, j])
    count = sum(leaf.size for leaf in jax.tree.leaves(change))
    gap = _left(held_out, found.solution.free)
    variables = {
        "cosine": ("gradient", cosines[:, 0]),
        "best_step_gap": ("gradient", gaps[:, 0]),
        "best_step_gap_error": ("gradient", errors[:, 0]),
        "best_step": ("gradient", steps[:, 0]),
        "other_cosine": (("gradient", "draw"), cosines[:, 1:]),
        "other_best_step_gap": (("gradient", "draw"), gaps[:, 1:]),
        "gap": float(gap.mean() / _left(held_out, case.fit.free).mean()),
        "random_cosine": count**-0.5,
        "converged": found.converged,
    }
    attributes = asked.description | {"method": found.method}
    return xr.Dataset(variables, coords={"gradient": list(GRADIENTS), "draw": np.arange(others)}, attrs=attributes)


@eqx.filter_jit
def gradients(model: Any, mask: Any, task: AbstractTask, context: Any) -> dict[str, Any]:
    """The three gradients of the loss on a context, each over the chosen weights."""
    last = context.length - 1
    whole = context.alone(last, size=last + 1)

    def at(there: Any, prompt: Any) -> Array:
        return task.loss(there(prompt), prompt)[-1]

    def sequence(there: Any) -> Float[Array, ""]:
        if declared(model, "positions") == "every":
            return jnp.sum(task.loss(there(whole), whole))
        return jnp.sum(jnp.stack([at(there, context.alone(i, size=i + 1)) for i in range(last + 1)]))

    def examples(there: Any) -> Float[Array, ""]:
        return jnp.sum(jnp.stack([at(there, context.alone(i)) for i in range(last + 1)]))

    losses = {"answer": lambda there: at(there, whole), "sequence": sequence, "examples": examples}
    free = eqx.filter(model, mask)
    return {name: jax.grad(lambda f, loss=loss: loss(eqx.combine(f, model)))(free) for name, loss in losses.items()}


def _like(context: Any, task: AbstractTask, count: int, key: PRNGKeyArray) -> Any:
    """Other contexts from the task, as long as this one where the task's prompts are long enough."""
    prompts = sample_prompts(task, key=key, prompts=count)
    one = jax.tree.map(lambda leaf: leaf[0], prompts)
    size = min(context.positions, one.positions)
    return jax.vmap(lambda prompt: prompt.alone(prompt.positions - 1, size=size))(prompts)


def _best_step(fit: Fit, down: Any, scale: float) -> float:
    """The step at which least is left on the fitted queries; 0 where every step makes it worse."""
    size = norm(down)
    if not (size > 0 and scale > 0):
        return 0.0
    unit = scale / size

    def left(step: float) -> float:
        return float(_moved(fit, down, jnp.asarray(step * unit, fit.targets.dtype)).mean())

    grid = np.concatenate([[0.0], 2.0 ** np.arange(-10, 4.5, 0.5)])
    values = [left(step) for step in grid]
    best = int(np.nanargmin(values))
    if best == 0:
        return 0.0
    low, high = grid[best - 1], grid[min(best + 1, len(grid) - 1)]
    finer = minimize_scalar(left, bounds=(low, high), method="bounded", options={"xatol": 1e-9 * high})
    return unit * float(finer.x if finer.fun < values[best] else grid[best])  # pyright: ignore[reportAttributeAccessIssue]


def _gap(held_out: Fit, down: Any, step: float) -> tuple[float, float]:
    """What a step leaves of the divergence, and the standard error of that ratio."""
    left = np.asarray(_moved(held_out, down, jnp.asarray(step, held_out.targets.dtype)), np.float64)
    start = _left(held_out, held_out.free)
    ratio = left.mean() / start.mean()
    return ratio, (left - ratio * start).std(ddof=1) / np.sqrt(len(left)) / start.mean()


def _left(fit: Fit, free: Any) -> np.ndarray:
    answers = answers_alone(with_parameters(fit.model, free), fit.queries)
    return np.asarray(divergence(fit.kind, fit.targets, answers), np.float64)


@eqx.filter_jit
def _moved(fit: Fit, down: Any, step: Array) -> Float[Array, " query"]:
    """The divergence of every query after a step."""
    free = jax.tree.map(lambda leaf, d: leaf + step * d, fit.free, down)
    return divergence(fit.kind, fit.targets, fit.outputs(free, (fit.queries, fit.targets)))
