r"""Fits of a preconditioned gradient flow of the reduced model of an induction head to a measured loss curve.

.. math:: \dot w_i = -\rho_i\,\partial_i\mathcal L(w), \qquad w(0) = w_0, \qquad
          \min_{\rho, w_0}\ \frac1T\sum_t\bigl(\mathcal L(w(t)) - v_t\bigr)^2

over the logarithms of the rates and the start, by Levenberg and Marquardt's method from many starts. A good fit may
still determine its parameters badly: a profile holds one of them at another value and fits all others again.

The loss is written out here in JAX, since fits differentiate through the flow.
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
    """One fit."""

    rates: np.ndarray  # in units of one over that of the times
    start: np.ndarray  # strengths at the first time
    rmse: float  # root mean square of what is left, in nats


def loss(w: Float[Array, " strength"], pairs: int, labels: int) -> Float[Array, ""]:
    """The loss of the reduced model at beta, alpha, xi and, if it is there, beta2."""
    beta, alpha, xi, beta2 = (*w, jnp.zeros_like(w[0])) if len(w) == 3 else w
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
        first = velocity(w)
        second = velocity(w + h / 2 * first)
        third = velocity(w + h / 2 * second)
        last = velocity(w + h * third)
        return jnp.clip(w + h / 6 * (first + 2 * second + 2 * third + last), -LARGEST, LARGEST), None

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
    """Fits of measured losses, [fit, time], many at once.

    A row of ``starts`` has the logarithms of the n rates, then the n strengths at the first time; ``free`` says which
    of these are fitted. ``tied`` gives all strengths the first rate. A step that does not lower the misfit is tried
    again, shorter.
    """
    count, strengths = len(starts), starts.shape[1] // 2
    # What is compiled is one number of fits: the last are filled up with copies.
    rows = np.minimum(np.arange(count + -count % TOGETHER), count - 1).reshape(-1, TOGETHER)
    how = (tuple(np.asarray(times, float).tolist()), pairs, labels, tied, iterations)
    found = [_fitted(*(jnp.asarray(part[some], float) for part in (values, starts, free)), how) for some in rows]
    theta, cost = (np.concatenate(parts)[:count] for parts in zip(*found, strict=True))
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
            damping = damping * jnp.where(better, 1 / 3, 4)
            return (jnp.where(better, trial, theta), damping, jnp.where(better, reached, cost)), None

        state = (theta, jnp.asarray(0.1), jnp.sum(residuals(theta) ** 2))
        state, _ = jax.lax.scan(improved, state, None, length=iterations)
        return state[0], state[2]

    return jax.vmap(one)(values, starts, free)


def best(found: list[Fit]) -> Fit:
    """The fit that leaves least."""
    return min(found, key=lambda fit: fit.rmse if np.isfinite(fit.rmse) else np.inf)
