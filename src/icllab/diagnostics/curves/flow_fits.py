r"""Fits of a preconditioned flow on the landscape of an induction head to a measured curve of the loss.

.. math:: \dot w_i = -\rho_i\,\partial_i\mathcal L(w), \qquad w(0) = w_0, \qquad
          \min_{\rho, w_0}\ \frac1T\sum_t\bigl(\mathcal L(w(t)) - v_t\bigr)^2

over the logarithms of the rates and the start, by Levenberg and Marquardt's method from many starts. A fit that is good
may still say little of its numbers: a profile holds one of them at another value and fits all others again.

The landscape is written out here once more, since fits need it differentiated through a flow.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

SUBSTEPS = 8  # of Runge and Kutta's method, between two records
TOGETHER = 48  # fits side by side
LARGEST = 60.0  # of a strength: beyond it exponentials of their product overflow


class Fit(NamedTuple):
    """One fit.

    Attributes:
        rates: In units of one over that of the times; NaN where the flow has none.
        start: Likewise.
        rmse: Root mean square of what is left, in nats.
    """

    rates: np.ndarray
    start: np.ndarray
    rmse: float


def loss(w: Float[Array, " strength"], pairs: int, labels: int) -> Float[Array, ""]:
    """The landscape of beta, alpha, xi and, if it is there, beta2."""
    beta, alpha, xi = w[0], w[1], w[2]
    beta2 = w[3] if len(w) == 4 else jnp.zeros_like(beta)
    y = jax.nn.sigmoid(beta - float(np.log(pairs)))
    counts = jnp.asarray([1.0, pairs - 1.0, pairs + 1.0])
    scores = jnp.stack([alpha * y + beta2, beta2, jnp.zeros_like(beta2)])
    right, other, _ = jnp.exp(scores - jax.nn.logsumexp(scores, b=counts))
    reads = jnp.stack([right, other, jnp.zeros_like(right)])
    return jax.nn.logsumexp(xi * (reads - right), b=jnp.asarray([1.0, pairs - 1.0, float(labels - pairs)]))


def flow_losses(
    rates: Float[Array, " strength"], start: Float[Array, " strength"], times: np.ndarray, pairs: int, labels: int
) -> Float[Array, " time"]:
    """The loss along the flow, at the times; the first is that of the start."""

    def velocity(w: Array) -> Array:
        return -rates * jax.grad(loss)(w, pairs, labels)

    def substep(w: Array, h: Array) -> tuple[Array, None]:
        a = velocity(w)
        b = velocity(w + h / 2 * a)
        c = velocity(w + h / 2 * b)
        d = velocity(w + h * c)
        return jnp.clip(w + h / 6 * (a + 2 * b + 2 * c + d), -LARGEST, LARGEST), None

    def between(w: Array, span: Array) -> tuple[Array, Array]:
        w, _ = jax.lax.scan(substep, w, jnp.full(SUBSTEPS, 1.0) * span / SUBSTEPS)
        return w, loss(w, pairs, labels)

    _, later = jax.lax.scan(between, start, jnp.asarray(np.diff(times)))
    return jnp.append(loss(start, pairs, labels), later)


def fits(
    values: np.ndarray,
    times: np.ndarray,
    starts: np.ndarray,
    free: np.ndarray,
    *,
    pairs: int,
    labels: int,
    tied: bool = False,
    iterations: int = 40,
) -> list[Fit]:
    """Fits from given starts, many at once.

    Args:
        values: The measured loss of each fit, [fit, time].
        times: Ascending, the same for all.
        starts: [fit, 2n]: logarithms of the n rates, then the n strengths at the first time.
        free: Which of these are fitted, [fit, 2n]; the others stay.
        pairs: N.
        labels: L.
        tied: One rate for all: the first.
        iterations: Of the method; a step that does not lower the misfit is tried again, shorter.
    """
    count, strengths = len(starts), starts.shape[1] // 2
    padded = [
        np.concatenate([part, np.repeat(part[-1:], -count % TOGETHER, axis=0)]) for part in (values, starts, free)
    ]
    how = (tuple(np.asarray(times, float).tolist()), pairs, labels, tied, iterations)
    thetas, costs = [], []
    for first in range(0, len(padded[1]), TOGETHER):
        some = (jnp.asarray(part[first : first + TOGETHER], float) for part in padded)
        theta, cost = _fitted(*some, how)
        thetas.append(np.asarray(theta))
        costs.append(np.asarray(cost))
    theta, cost = np.concatenate(thetas)[:count], np.concatenate(costs)[:count]
    rates = np.exp(theta[:, :1] + np.zeros(strengths) if tied else theta[:, :strengths])
    rmse = np.sqrt(cost / len(times))
    return [Fit(r, w, float(left)) for r, w, left in zip(rates, theta[:, strengths:], rmse, strict=True)]


@functools.partial(jax.jit, static_argnums=3)
def _fitted(values: Array, starts: Array, free: Array, how: Any) -> tuple[Array, Array]:
    times, pairs, labels, tied, iterations = how
    strengths = starts.shape[1] // 2

    def one(measured: Array, theta: Array, mask: Array) -> tuple[Array, Array]:
        def residuals(theta: Array) -> Array:
            rates = jnp.exp(theta[:1] + jnp.zeros(strengths) if tied else theta[:strengths])
            return flow_losses(rates, theta[strengths:], np.asarray(times), pairs, labels) - measured

        def improved(state: Any, _: None) -> tuple[Any, None]:
            theta, damping, cost = state
            left, slopes = residuals(theta), jax.jacfwd(residuals)(theta) * mask[None]
            curvature = slopes.T @ slopes
            scale = jnp.diag(jnp.diagonal(curvature) + 1e-9)
            step = -jnp.linalg.solve(curvature + damping * scale, slopes.T @ left) * mask
            trial = theta + jnp.clip(step, -2.0, 2.0)
            reached = jnp.sum(residuals(trial) ** 2)
            better = reached < cost
            after = (
                jnp.where(better, trial, theta),
                damping * jnp.where(better, 1 / 3, 4),
                jnp.where(better, reached, cost),
            )
            return after, None

        state = (theta, jnp.asarray(0.1), jnp.sum(residuals(theta) ** 2))
        state, _ = jax.lax.scan(improved, state, None, length=iterations)
        return state[0], state[2]

    return jax.vmap(one)(values, starts, free)


def best(found: list[Fit]) -> Fit:
    """The one that leaves least."""
    return min(found, key=lambda fit: fit.rmse if np.isfinite(fit.rmse) else np.inf)
