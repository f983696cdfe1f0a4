"""Iterative linear algebra that reports convergence."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Operator: TypeAlias = Callable[[Array], Array]


class IterativeSolution(NamedTuple):
    """Result of an iterative solve, converged or not.

    Attributes:
        value: Where it converged, the last iterate; otherwise the best: that of the least residual, which may be
            the start. Never one that a breakdown produced.
        iterations: How many steps were taken.
        residual: ``|b - A x| / |b|``, recomputed from ``value``, not the recursion's own estimate.
        converged: Whether ``residual`` is at most the tolerance (a number that is not finite is not).
    """

    value: Array
    iterations: Int[Array, ""]
    residual: Float[Array, ""]
    converged: Bool[Array, ""]


class _State(NamedTuple):
    value: Array
    residual: Array
    direction: Array
    product: Array  # <r, M r> of the step before; infinite where a recursion starts
    exact_residual: Array  # |b - A x| / |b| when it was last recomputed
    best: Array  # the iterate whose residual, by the recursion or recomputed, was least
    least: Array  # that residual, relative
    steps: Array
    going: Array


def conjugate_gradient(
    operator: Operator,
    right: Array,
    *,
    preconditioner: Operator = lambda residual: residual,
    exact: Operator | None = None,
    tolerance: float | Float[Array, ""],
    iterations: int | Int[Array, ""],
) -> IterativeSolution:
    r"""Preconditioned conjugate gradients for :math:`A x = b`, with a symmetric, positive (semi)definite :math:`A`.

    One ``lax.while_loop``: nothing returns to the host between steps. When the recursion believes that
    :math:`|r| \le \mathrm{tol}\,|b|`, the residual is recomputed with ``exact``; if it is still too large the
    recursion restarts from there, and gives up once a restart no longer halves it. So ``operator`` may be cheap
    and rounded (float32 products) while ``residual`` is that of ``exact``: iterative refinement.

    Args:
        operator: :math:`p \mapsto A p`.
        right: :math:`b`, of any shape; its dtype is that of every vector and scalar.
        preconditioner: :math:`r \mapsto M r` with :math:`M \approx A^{-1}` symmetric and positive definite.
        exact: The operator that residuals are recomputed with; ``operator`` by default.
        tolerance: Relative residual at which to stop.
        iterations: At most this many steps.

    Returns:
        A solution that says how it ended. A breakdown (a direction without curvature, a number that is not
        finite) ends the iteration. Residuals of conjugate gradients may grow, and on a singular system without
        a solution they end up far above where they began: one that did not converge has the best iterate.
    """
    system = _System(operator, preconditioner, operator if exact is None else exact, right, tolerance, iterations)
    end = jax.lax.while_loop(lambda state: state.going & (state.steps < system.iterations), system.step, system.start())
    converged = end.exact_residual <= system.tolerance
    value, residual = jax.lax.cond(
        converged, lambda: (end.value, end.exact_residual), lambda: system.better_of_best_and_start(end.best)
    )
    return IterativeSolution(value, end.steps, residual, residual <= system.tolerance)


class _System:
    """A linear system, and one step towards its solution."""

    def __init__(
        self,
        operator: Operator,
        preconditioner: Operator,
        recompute: Operator,
        right: Array,
        tolerance: float | Array,
        iterations: int | Array,
    ) -> None:
        self.operator, self.preconditioner, self.recompute, self.right = operator, preconditioner, recompute, right
        self.tolerance = jnp.asarray(tolerance, right.dtype)
        self.iterations = jnp.asarray(iterations, jnp.int32)
        self.size = jnp.sqrt(jnp.vdot(right, right))
        self.scale = jnp.where(self.size == 0, jnp.ones_like(self.size), self.size)

    def start(self) -> _State:
        """The state at zero."""
        zeros = jnp.zeros_like(self.right)
        relative = self.size / self.scale
        return _State(
            value=zeros,
            residual=self.right,
            direction=zeros,
            product=jnp.full_like(self.size, jnp.inf),
            exact_residual=relative,
            best=zeros,
            least=relative,
            steps=jnp.zeros((), jnp.int32),
            going=relative > self.tolerance,
        )

    def step(self, state: _State) -> _State:
        """The state after one more step."""
        z = self.preconditioner(state.residual)
        product = jnp.vdot(state.residual, z)
        direction = z + product / state.product * state.direction
        image = self.operator(direction)
        curvature = jnp.vdot(direction, image)
        length = product / curvature
        sound = (curvature > 0) & jnp.isfinite(length)
        length = jnp.where(sound, length, jnp.zeros_like(length))
        # What is not sound may hold NaNs, which a length of zero would let through.
        value = jnp.where(sound, state.value + length * direction, state.value)
        residual = state.residual - length * image
        relative = self.relative(residual)
        steps = state.steps + 1
        check = ~(relative > self.tolerance) | ~sound | (steps >= self.iterations)
        residual = jax.lax.cond(check, lambda: self.right - self.recompute(value), lambda: residual)
        exact_residual = jnp.where(check, self.relative(residual), state.exact_residual)
        progress = (exact_residual > self.tolerance) & (exact_residual <= state.exact_residual / 2) & sound
        now = jnp.where(check, exact_residual, relative)
        better = sound & (now < state.least)
        return _State(
            value=value,
            residual=residual,
            direction=direction,
            product=jnp.where(check, jnp.full_like(product, jnp.inf), product),
            exact_residual=exact_residual,
            best=jnp.where(better, value, state.best),
            least=jnp.where(better, now, state.least),
            steps=steps,
            going=~check | progress,
        )

    def relative(self, residual: Array) -> Array:
        """Norm of a residual over that of the right side."""
        return jnp.sqrt(jnp.vdot(residual, residual)) / self.scale

    def better_of_best_and_start(self, best: Array) -> tuple[Array, Array]:
        """The best iterate and its residual; the start if the recursion was mistaken about that iterate."""
        relative, first = self.relative(self.right - self.recompute(best)), self.size / self.scale
        better = relative < first
        return jnp.where(better, best, jnp.zeros_like(self.right)), jnp.where(better, relative, first)
