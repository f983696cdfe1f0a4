r"""Fits of weights, in a subspace, whose answers without a context match given answers.

.. math:: \theta^* = \arg\min_\theta\; D(\theta) + \frac\mu2 \lVert \theta \rVert^2, \qquad
          D(\theta) = \frac1n \sum_i \mathrm{div}\big(t_i, T_{w + P\theta}(x_i)\big)

from :math:`\theta = 0`. Gauss-Newton steps are damped (Levenberg-Marquardt) and solved by conjugate gradients, so that
only products with the Gauss-Newton matrix are needed. Weights that affect no query do not change.

The derivative of the map :math:`f_c(w) = w + P\theta^*` follows by implicit differentiation. The gradient of D still
vanishes after a change d of all weights if

.. math:: (D_{\theta\theta} + \mu)\, d\theta = -D_{\theta w}\, d, \qquad Df_c\, d = d + P\, d\theta

with the Gauss-Newton matrix for :math:`D_{\theta\theta}`, which is exact if D = 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float

from icllab.core.domains import PROPER_FRACTION, Domain
from icllab.core.errors import expected, require_integer, unknown
from icllab.core.progress import in_stretches
from icllab.diagnostics.contexts.distances import divergence, metric_root
from icllab.diagnostics.contexts.queries import answers_after, answers_alone, last_answer
from icllab.diagnostics.contexts.subspaces import parameters

METHODS = ("auto", "gauss_newton", "dense", "adam")
FIRST_DAMPING = 0.1  # over the curvature along the first gradient
IDLE = {True: 12, False: 4}  # steps without a gain before it stops: exact ones, which the damping may shorten; others


@dataclass(frozen=True, kw_only=True)
class MapSolver:
    r"""Options of the fit of a map and of the linear system of its derivative.

    Attributes:
        method: ``"gauss_newton"``, with steps by conjugate gradients; ``"dense"``, with exact steps, whose memory is
            queries times outputs times weights; ``"adam"``; or ``"auto"``: Adam continues if Gauss-Newton has not
            converged.
        steps: Largest number of Gauss-Newton steps.
        products: Largest number of products with the Gauss-Newton matrix for one step; a derivative may take twice as
            many.
        adam_steps: Number of steps of Adam.
        tolerance: Final gradient norm of a converged fit over that at the start.
        ridge: :math:`\mu` over the curvature along the first gradient; None: ten units of rounding. A larger
            ridge generalises better from few queries.
        starts: Largest number of points from which a fit of :func:`~.laws.context_law` starts: w, then random ones.

    Raises:
        InputError: A name is unknown, or a number is out of range.
    """

    method: str = "auto"
    steps: int = 50
    products: int = 100
    adam_steps: int = 2000
    tolerance: float = 1e-3
    ridge: float | None = None
    starts: int = 7

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown("method", self.method, METHODS)
        for name in ("steps", "products", "adam_steps", "starts"):
            require_integer(name, getattr(self, name))
        PROPER_FRACTION.require("tolerance", self.tolerance)
        if self.ridge is not None:
            Domain(least=0, most=1, text="a number from 0 to 1, or None").require("ridge", self.ridge)

    def ridge_of(self, dtype: Any) -> float:
        """The ridge for numbers of a type."""
        return 10 * float(jnp.finfo(dtype).eps) if self.ridge is None else self.ridge


class MapFit(eqx.Module):
    """Problem of a fit: a model, a mask of its free weights, and target answers to queries."""

    model: Any
    mask: Any
    queries: Any
    targets: Float[Array, "query output"]
    kind: str = eqx.field(static=True)

    @property
    def free(self) -> Any:
        """The free weights of the model."""
        return eqx.filter(self.model, self.mask)

    def outputs(self, free: Any, data: Any) -> Float[Array, "query output"]:
        """Answers of the model with these free weights."""
        model = eqx.combine(free, self.model)
        return jax.vmap(lambda query: last_answer(model, query))(data[0])

    def loss(self, outputs: Float[Array, "query output"], data: Any) -> Float[Array, ""]:
        """Mean divergence from the targets."""
        return jnp.mean(divergence(self.kind, data[1], outputs))

    def curvature(self, free: Any) -> Callable[[Array], Array]:
        """Products with the Gauss-Newton matrix of the ravelled free weights; the answers are linearised once."""
        begin, unravel = ravel_pytree(free)
        data = (self.queries, self.targets)
        answers, pushed = jax.linearize(lambda w: self.outputs(unravel(w), data), begin)
        pulled = jax.linear_transpose(pushed, begin)
        slopes = jax.grad(lambda z: self.loss(z, data))
        return lambda v: pulled(jax.jvp(slopes, (answers,), (pushed(v),))[1])[0]

    def divergence_of(self, free: Any) -> Float[Array, ""]:
        """D of these free weights."""
        data = (self.queries, self.targets)
        return self.loss(self.outputs(free, data), data)

    def exact_step(self, free: Any, slopes: Float[Array, "query output"], shift: Array) -> Float[Array, " free"]:
        r"""Solve :math:`(G + s)\, m = -J^\top g` for ravelled weights m, g being slopes with respect to answers.

        With the singular values :math:`\sigma` of :math:`R J`, :math:`R^\top R` the metric of the answers and
        :math:`G = J^\top R^\top R J / n`. Directions without a singular value do not move.
        """
        begin, unravel = ravel_pytree(free)

        def answer(w: Array, query: Any) -> Array:
            return last_answer(eqx.combine(unravel(w), self.model), query)

        answers = jax.vmap(lambda query: answer(begin, query))(self.queries)
        slots = jax.vmap(lambda query: jax.jacrev(answer)(begin, query))(self.queries)
        rows = jax.vmap(lambda z, v: metric_root(self.kind, z, v))(answers, slots).reshape(-1, begin.size)
        root = jnp.ones_like(answers) if self.kind == "squares" else jnp.sqrt(jax.nn.softmax(answers))
        left, sizes, right = jnp.linalg.svd(rows / len(answers) ** 0.5, full_matrices=False)
        # The slopes are R^T y with y = slopes / root, since those of logits sum to zero.
        y = left.T @ (slopes / root).reshape(-1) * len(answers) ** 0.5
        return -right.T @ (sizes / (sizes**2 + shift) * y)


class Solution(NamedTuple):
    """Solution of a fit."""

    free: Any
    divergence: Float[Array, ""]  # D at the solution
    start: Float[Array, ""]  # D at theta = 0
    gradient: Float[Array, ""]  # final gradient norm over that at the start
    steps: Array


def solve(fit: MapFit, solver: MapSolver) -> tuple[Solution, str]:
    """Solve a fit; also return the name of the method."""
    if solver.method == "adam":
        return adam(fit, solver), "adam"
    origin = _origin(fit)
    state = in_stretches(
        lambda state, first, end: _gauss_newton_steps(fit, solver, origin, state, jnp.asarray(end)),
        _gauss_newton_start(fit, origin),
        solver.steps,
        shown=False,
    )
    solution = _solution(fit, origin, state[0], state[2], state[4])
    if solver.method != "auto" or float(solution.gradient) <= solver.tolerance:
        return solution, "dense" if solver.method == "dense" else "gauss_newton"
    return _continue_with_adam(fit, solution, solver), "adam"


def _continue_with_adam(fit: MapFit, solution: Solution, solver: MapSolver) -> Solution:
    """Continue with Adam from a Gauss-Newton solution, and keep the better of the two."""
    continuation = adam(eqx.tree_at(lambda f: f.model, fit, eqx.combine(solution.free, fit.model)), solver)
    if not float(continuation.divergence) < float(solution.divergence):
        return solution
    return continuation._replace(start=solution.start, gradient=continuation.gradient * solution.gradient)


@eqx.filter_jit
def gauss_newton(fit: MapFit, solver: MapSolver) -> Solution:
    """Damped Gauss-Newton steps from the model's weights, as one program."""
    origin = _origin(fit)
    begin = _gauss_newton_start(fit, origin)
    w, _, slope, _, count, _ = _gauss_newton_steps(fit, solver, origin, begin, jnp.asarray(solver.steps))
    return _solution(fit, origin, w, slope, count)


class _Origin(NamedTuple):
    """The objective at the model's weights: its gradient, and the curvature along it."""

    stiffness: Array
    gradient: Array


@eqx.filter_jit
def _origin(fit: MapFit) -> _Origin:
    begin, unravel = ravel_pytree(fit.free)
    gradient = jax.grad(lambda w: fit.divergence_of(unravel(w)))(begin)
    return _Origin(curvature_along(fit.curvature(unravel(begin)), gradient), gradient)


@eqx.filter_jit
def _gauss_newton_start(fit: MapFit, origin: _Origin) -> Any:
    """Weights, objective, its gradient, damping, number of steps, and of steps without a gain."""
    zero, divergence = jnp.asarray(0), fit.divergence_of(fit.free)
    return ravel_pytree(fit.free)[0], divergence, origin.gradient, FIRST_DAMPING * origin.stiffness, zero, zero


@eqx.filter_jit
def _gauss_newton_steps(fit: MapFit, solver: MapSolver, origin: _Origin, state: Any, end: Array) -> Any:
    """The state after at most ``end`` steps in all."""
    begin, unravel = ravel_pytree(fit.free)
    stiffness, first = origin
    value_of, slope_of = _objective(fit, solver, stiffness)
    tiny = jnp.asarray(jnp.finfo(begin.dtype).tiny, begin.dtype)
    smallest, accuracy = 1e-3 * solver.tolerance * jnp.linalg.norm(first), float(jnp.finfo(begin.dtype).eps) ** 0.5

    def running(state: Any) -> Array:
        _, _, slope, _, count, idle = state
        return (count < end) & (jnp.linalg.norm(slope) > smallest) & (idle < IDLE[solver.method == "dense"])

    def step(state: Any) -> Any:
        w, value, slope, damping, count, idle = state
        curvature = fit.curvature(unravel(w))
        shift = solver.ridge_of(begin.dtype) * stiffness + damping
        if solver.method == "dense":
            answers = fit.outputs(unravel(w), (fit.queries, fit.targets))
            slopes = jax.grad(lambda z: fit.loss(z, (fit.queries, fit.targets)))(answers)
            move = fit.exact_step(unravel(w), slopes, shift)
        else:
            move = cg(lambda v: curvature(v) + shift * v, -slope, tol=accuracy, maxiter=solver.products)[0]
        after = value_of(w + move)
        predicted_gain = (damping * jnp.sum(move**2) - jnp.sum(slope * move)) / 2
        ratio = (value - after) / jnp.maximum(predicted_gain, tiny)
        # A step that gains much less than predicted may end at zero gradient, for example among dead units.
        better = (after < value) & (ratio > 0.25)
        damping = jnp.where(better & (ratio > 0.75), damping / 8, jnp.where(better, damping, damping * 8))
        w = jnp.where(better, w + move, w)
        idle = jnp.where(value - after > accuracy * value, 0, idle + 1)
        return w, jnp.where(better, after, value), slope_of(w), damping, count + 1, idle

    return jax.lax.while_loop(running, step, state)


def adam(fit: MapFit, solver: MapSolver) -> Solution:
    """Adam with a rate that falls along a cosine from a hundredth of the weights' root mean square to zero."""
    origin, begin = _origin(fit), ravel_pytree(fit.free)[0]
    state = in_stretches(
        lambda state, first, end: _adam_steps(fit, solver, origin, state, jnp.asarray(first), jnp.asarray(end)),
        (begin, optax.scale_by_adam().init(begin)),
        solver.adam_steps,
        shown=False,
    )
    slope = _slope(fit, solver, origin, state[0])
    return _solution(fit, origin, state[0], slope, jnp.asarray(solver.adam_steps))


@eqx.filter_jit
def _adam_steps(fit: MapFit, solver: MapSolver, origin: _Origin, state: Any, first: Array, end: Array) -> Any:
    """The weights and the optimiser's memory after the steps from ``first`` to ``end``."""
    begin, slope_of = ravel_pytree(fit.free)[0], _objective(fit, solver, origin.stiffness)[1]
    size = jnp.sqrt(jnp.mean(begin**2))
    rate = 0.01 * jnp.where(size > 0, size, jnp.ones_like(size))
    optimizer = optax.scale_by_adam()

    def step(i: Array, state: Any) -> Any:
        w, memory = state
        with jax.numpy_dtype_promotion("standard"):
            move, memory = optimizer.update(slope_of(w), memory)
        share = (1 + jnp.cos(jnp.pi * i.astype(w.dtype) / solver.adam_steps)) / 2
        return w - rate * share * jnp.asarray(move), memory

    return jax.lax.fori_loop(first, end, step, state)


@eqx.filter_jit
def _slope(fit: MapFit, solver: MapSolver, origin: _Origin, w: Array) -> Array:
    return _objective(fit, solver, origin.stiffness)[1](w)


class CarriedChange(NamedTuple):
    """Change of the map's weights for a change of all weights."""

    direction: Any  # Df_c d, of all weights
    residual: Float[Array, ""]  # relative, of the linear system


@eqx.filter_jit
def answer_changes(model: Any, queries: Any, direction: Any, context: Any = None) -> Float[Array, "query output"]:
    """Directional derivative of answers with respect to the weights, after a context or (None) without one."""

    def answers(params: Any) -> Array:
        network = eqx.combine(params, model)
        return answers_alone(network, queries) if context is None else answers_after(network, context, queries)

    return jax.jvp(answers, (parameters(model),), (direction,))[1]


def carry(fit: MapFit, direction: Any, change: Float[Array, "query output"], solver: MapSolver) -> CarriedChange:
    r""":math:`Df_c\,d` of a fit at its solution; ``change`` is the directional derivative of its targets along d."""
    step, residual = carried_step(fit, direction, change, solver)
    return CarriedChange(along(direction, step), residual)


def along(direction: Any, step: Any) -> Any:
    """Add a step of the free weights to a change of all weights."""
    return jax.tree.map(lambda s, d: d if s is None else d + s, step, direction, is_leaf=lambda leaf: leaf is None)


@eqx.filter_jit
def carried_step(fit: MapFit, direction: Any, change: Array, solver: MapSolver) -> tuple[Any, Array]:
    r""":math:`d\theta`, what a change d of all weights adds to the free weights; and the residual of its system."""
    data = (fit.queries, fit.targets)

    def answers(params: Any) -> Array:
        return fit.outputs(params, data)

    outputs, output_changes = jax.jvp(answers, (parameters(fit.model),), (direction,))
    gradient = jax.grad(lambda z, t: jnp.mean(divergence(fit.kind, t, z)))
    gradient_changes = jax.jvp(gradient, (outputs, fit.targets), (output_changes, change))[1]
    pulled_back = jax.vjp(answers, fit.free)[1](gradient_changes)[0]
    right, unravel = ravel_pytree(pulled_back)
    curvature = fit.curvature(fit.free)
    ridge = solver.ridge_of(right.dtype) * curvature_along(curvature, right)

    def product(v: Array) -> Array:
        return curvature(v) + ridge * v

    accuracy = 1e-10 if right.dtype == jnp.float64 else 1e-5
    if solver.method == "dense":
        answer = fit.exact_step(fit.free, gradient_changes, ridge)
    else:
        answer = cg(product, -right, tol=accuracy, maxiter=2 * solver.products)[0]
    size = jnp.linalg.norm(right)
    residual = jnp.linalg.norm(product(answer) + right) / jnp.where(size > 0, size, jnp.ones_like(size))
    return unravel(answer), residual


def _objective(fit: MapFit, solver: MapSolver, stiffness: Array) -> tuple[Any, Any]:
    """Objective D plus ridge, and its gradient."""
    begin, unravel = ravel_pytree(fit.free)

    def value_of(w: Array) -> Array:
        return fit.divergence_of(unravel(w)) + solver.ridge_of(begin.dtype) * stiffness / 2 * jnp.sum((w - begin) ** 2)

    return value_of, jax.grad(value_of)


def curvature_along(curvature: Callable[[Array], Array], v: Array) -> Array:
    """Curvature along a vector; 1 if it is not positive."""
    bend = jnp.sum(v * curvature(v))
    return jnp.where(bend > 0, bend / jnp.maximum(jnp.sum(v**2), jnp.finfo(v.dtype).tiny), jnp.ones_like(bend))


@eqx.filter_jit
def _solution(fit: MapFit, origin: _Origin, w: Array, slope: Array, count: Array) -> Solution:
    size = jnp.linalg.norm(origin.gradient)
    ratio = jnp.linalg.norm(slope) / jnp.where(size > 0, size, jnp.ones_like(size))
    free = ravel_pytree(fit.free)[1](w)
    return Solution(free, fit.divergence_of(free), fit.divergence_of(fit.free), ratio, count)


@eqx.filter_jit
def _used_parameters(fit: MapFit) -> Any:
    """True for each weight array in which the answers have a nonzero gradient."""
    data = (fit.queries, fit.targets)
    answers, back = jax.vjp(lambda free: fit.outputs(free, data), fit.free)
    # Irrational weights avoid accidental cancellation between answers.
    weights = jnp.cos(jnp.arange(answers.size, dtype=answers.dtype) + 1).reshape(answers.shape)
    return jax.tree.map(lambda leaf: jnp.any(leaf != 0), back(weights)[0])


def unused_parameters(fit: MapFit, query_length: int) -> list[str]:
    """A warning that names the arrays without effect on any query; raise if no array has an effect."""
    leaves = jax.tree_util.tree_leaves_with_path(_used_parameters(fit))
    used = {jax.tree_util.keystr(path).lstrip("."): bool(is_used) for path, is_used in leaves}
    names = [name for name, is_used in used.items() if not is_used]
    if len(names) == len(used):
        hint = (
            "a query of one token attends to itself alone: queries=QuerySource(prompts, length=3)"
            if query_length == 1
            else ""
        )
        raise expected("subspace", "weights that a query feels", "gradients that are exactly 0", hint)
    return [f"no query feels {', '.join(names)}"] if names else []
