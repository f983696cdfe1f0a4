r"""The weights whose answers without a context are nearest to given answers, in a subspace of the weights.

.. math:: \theta^* = \arg\min_\theta\; D(\theta) + \frac\mu2 \lVert \theta \rVert^2, \qquad
          D(\theta) = \frac1n \sum_i \mathrm{div}\big(t_i, T_{w + P\theta}(x_i)\big)

from :math:`\theta = 0`. Gauss-Newton steps are damped (Levenberg-Marquardt) and solved by conjugate gradients, so that
only products with the Gauss-Newton matrix are needed; what no query feels is not moved.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float

from icllab.core.errors import expected, require_integer, require_number, unknown
from icllab.diagnostics.contexts.distances import divergence
from icllab.diagnostics.contexts.queries import last_answer
from icllab.diagnostics.curvature.products import GaussNewton

METHODS = ("auto", "gauss_newton", "adam")
FIRST_DAMPING = 0.1  # of Gauss-Newton, over the curvature along the first gradient
IDLE = 4  # steps without a gain after which Gauss-Newton ends


@dataclass(frozen=True, kw_only=True)
class MapSolver:
    r"""How a map is fitted, and its derivative solved for.

    Attributes:
        method: ``"gauss_newton"``, ``"adam"``, or ``"auto"``: Adam goes on where Gauss-Newton has not converged.
        steps: Largest number of Gauss-Newton steps.
        products: Largest number of products with the Gauss-Newton matrix for one step; of a derivative, twice that.
        adam_steps: Number of steps of Adam.
        tolerance: Gradient norm over that at the start at which a fit has converged.
        ridge: :math:`\mu` over the curvature along the first gradient; None: ten units of rounding. A larger one
            answers held-out queries better where queries are few.

    Raises:
        InputError: A name is unknown, or a number does not fit.
    """

    method: str = "auto"
    steps: int = 50
    products: int = 100
    adam_steps: int = 2000
    tolerance: float = 1e-3
    ridge: float | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown("method", self.method, METHODS)
        for name in ("steps", "products", "adam_steps"):
            require_integer(name, getattr(self, name))
        require_number("tolerance", self.tolerance, "a number between 0 and 1", lambda v: 0 < v < 1)
        if self.ridge is not None:
            require_number("ridge", self.ridge, "a number from 0 to 1, or None", lambda v: 0 <= v <= 1)

    def ridge_of(self, dtype: Any) -> float:
        """The ridge in numbers of a type."""
        return 10 * float(jnp.finfo(dtype).eps) if self.ridge is None else self.ridge


class Fit(eqx.Module):
    """What a map is fitted to: a model, which of its weights may move, and the answers that queries should get."""

    model: Any
    mask: Any
    queries: Any
    targets: Float[Array, "query output"]
    kind: str = eqx.field(static=True)

    @property
    def free(self) -> Any:
        """The weights that may move, as they are."""
        return eqx.filter(self.model, self.mask)

    def outputs(self, free: Any, data: Any) -> Float[Array, "query output"]:
        """The answers with these weights in their places."""
        model = eqx.combine(free, self.model)
        return jax.vmap(lambda query: last_answer(model, query))(data[0])

    def loss(self, outputs: Float[Array, "query output"], data: Any) -> Float[Array, ""]:
        """Mean divergence from the targets."""
        return jnp.mean(divergence(self.kind, data[1], outputs))

    def curvature(self, free: Any) -> GaussNewton:
        """Products with the Gauss-Newton matrix of the weights that may move."""
        return GaussNewton(self.loss, free, (self.queries, self.targets), outputs=self.outputs)

    def divergence_of(self, free: Any) -> Float[Array, ""]:
        """D with these weights."""
        data = (self.queries, self.targets)
        return self.loss(self.outputs(free, data), data)


class Solution(NamedTuple):
    """Where a fit ended."""

    free: Any
    divergence: Float[Array, ""]  # D there
    start: Float[Array, ""]  # D at theta = 0
    gradient: Float[Array, ""]  # gradient norm over that at the start
    steps: Array


def solved(fit: Fit, how: MapSolver) -> tuple[Solution, str]:
    """The solution, and the name of the method that found it."""
    if how.method == "adam":
        return adam(fit, how), "adam"
    found = gauss_newton(fit, how)
    if how.method == "gauss_newton" or float(found.gradient) <= how.tolerance:
        return found, "gauss_newton"
    return _better(fit, found, how), "adam"


def _better(fit: Fit, found: Solution, how: MapSolver) -> Solution:
    """Adam from where Gauss-Newton ended, if that is lower; the gradient is over that at the first start."""
    again = adam(eqx.tree_at(lambda f: f.model, fit, eqx.combine(found.free, fit.model)), how)
    if not float(again.divergence) < float(found.divergence):
        return found
    return again._replace(start=found.start, gradient=again.gradient * found.gradient)


@eqx.filter_jit
def gauss_newton(fit: Fit, how: MapSolver) -> Solution:
    """Damped Gauss-Newton steps from where the weights are."""
    begin, unravel = ravel_pytree(fit.free)
    value_of, slope_of, stiffness, first = _objective(fit, begin, unravel, how)
    tiny = jnp.asarray(jnp.finfo(begin.dtype).tiny, begin.dtype)
    least, precise = 1e-3 * how.tolerance * jnp.linalg.norm(first), float(jnp.finfo(begin.dtype).eps) ** 0.5

    def running(state: Any) -> Array:
        _, _, slope, _, count, idle = state
        return (count < how.steps) & (jnp.linalg.norm(slope) > least) & (idle < IDLE)

    def step(state: Any) -> Any:
        w, value, slope, damping, count, idle = state
        curvature = fit.curvature(unravel(w))
        lifted = how.ridge_of(begin.dtype) * stiffness + damping
        move = cg(lambda v: curvature(v) + lifted * v, -slope, tol=precise, maxiter=how.products)[0]
        after = value_of(w + move)
        promised = (damping * jnp.sum(move**2) - jnp.sum(slope * move)) / 2
        ratio = (value - after) / jnp.maximum(promised, tiny)
        # A step that gains much less than promised may end where nothing has a gradient, as among dead units.
        better = (after < value) & (ratio > 0.25)
        damping = jnp.where(better & (ratio > 0.75), damping / 8, jnp.where(better, damping, damping * 8))
        w = jnp.where(better, w + move, w)
        idle = jnp.where(value - after > precise * value, 0, idle + 1)
        return w, jnp.where(better, after, value), slope_of(w), damping, count + 1, idle

    zero = jnp.asarray(0)
    state = (begin, value_of(begin), first, FIRST_DAMPING * stiffness, zero, zero)
    w, _, slope, _, count, _ = jax.lax.while_loop(running, step, state)
    return _solution(fit, unravel, w, slope, first, count)


@eqx.filter_jit
def adam(fit: Fit, how: MapSolver) -> Solution:
    """Adam with a rate that falls to zero along a cosine, from a hundredth of the weights' root mean square."""
    begin, unravel = ravel_pytree(fit.free)
    _, slope_of, _, first = _objective(fit, begin, unravel, how)
    size = jnp.sqrt(jnp.mean(begin**2))
    rate = 0.01 * jnp.where(size > 0, size, jnp.ones_like(size))
    optimizer = optax.scale_by_adam()

    def step(state: Any, i: Array) -> tuple[Any, None]:
        w, memory = state
        with jax.numpy_dtype_promotion("standard"):
            move, memory = optimizer.update(slope_of(w), memory)
        share = (1 + jnp.cos(jnp.pi * i.astype(w.dtype) / how.adam_steps)) / 2
        return (w - rate * share * jnp.asarray(move), memory), None

    (w, _), _ = jax.lax.scan(step, (begin, optimizer.init(begin)), jnp.arange(how.adam_steps))
    return _solution(fit, unravel, w, slope_of(w), first, jnp.asarray(how.adam_steps))


def _objective(fit: Fit, begin: Array, unravel: Any, how: MapSolver) -> tuple[Any, Any, Array, Array]:
    """D and the ridge, its gradient, the curvature along the first gradient, and that."""
    first = jax.grad(lambda w: fit.divergence_of(unravel(w)))(begin)
    stiffness = along(fit.curvature(unravel(begin)), first)

    def value_of(w: Array) -> Array:
        return fit.divergence_of(unravel(w)) + how.ridge_of(begin.dtype) * stiffness / 2 * jnp.sum((w - begin) ** 2)

    return value_of, jax.grad(value_of), stiffness, first


def along(curvature: GaussNewton, v: Array) -> Array:
    """The curvature along a vector; 1 where there is none."""
    bend = jnp.sum(v * curvature(v))
    return jnp.where(bend > 0, bend / jnp.maximum(jnp.sum(v**2), jnp.finfo(v.dtype).tiny), jnp.ones_like(bend))


def _solution(fit: Fit, unravel: Any, w: Array, slope: Array, first: Array, count: Array) -> Solution:
    size = jnp.linalg.norm(first)
    ratio = jnp.linalg.norm(slope) / jnp.where(size > 0, size, jnp.ones_like(size))
    free = unravel(w)
    return Solution(free, fit.divergence_of(free), fit.divergence_of(fit.free), ratio, count)


@eqx.filter_jit
def _felt(fit: Fit) -> Any:
    """Of every weight array whether the answers have a gradient there that is not zero."""
    data = (fit.queries, fit.targets)
    answers, back = jax.vjp(lambda free: fit.outputs(free, data), fit.free)
    # Irrational weights: no accidental cancellation between answers.
    weights = jnp.cos(jnp.arange(answers.size, dtype=answers.dtype) + 1).reshape(answers.shape)
    return jax.tree.map(lambda leaf: jnp.any(leaf != 0), back(weights)[0])


def unfelt(fit: Fit, query_length: int) -> list[str]:
    """A sentence that names the arrays which no query feels, if there are; refused where it is all of them."""
    leaves = jax.tree_util.tree_leaves_with_path(_felt(fit))
    felt = {jax.tree_util.keystr(path).lstrip("."): bool(there) for path, there in leaves}
    names = [name for name, there in felt.items() if not there]
    if len(names) == len(felt):
        hint = "a query of one token attends to itself alone: query_length=3" if query_length == 1 else ""
        raise expected("subspace", "weights that a query feels", "gradients that are exactly 0", hint)
    return [f"no query feels {', '.join(names)}"] if names else []
