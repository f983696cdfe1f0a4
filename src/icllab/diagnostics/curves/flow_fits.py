r"""Fits of a preconditioned gradient flow of the reduced model of an induction head to measured losses.

.. math:: \dot w_i = -\rho_i\,\partial_i\mathcal L(w), \qquad w(0) = w_0, \qquad
          \min_{\rho, w_0}\ \frac1T\sum_t\bigl(\mathcal L(w(t)) - v_t\bigr)^2

over the logarithms of the rates and the start, by the Levenberg-Marquardt method from many starts. A good fit may
determine its parameters badly: a profile fixes one parameter and fits all others again.

The loss is written in JAX, since fits differentiate through the flow.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

SUBSTEPS = 8  # Runge-Kutta steps between two records
TOGETHER = 48  # fits in parallel
LARGEST = 60.0  # bound of the strengths, whose products are exponentiated


class FlowFit(NamedTuple):
    """Parameters and misfit of a fitted flow."""

    rates: np.ndarray  # per unit of time
    start: np.ndarray  # strengths at the first time
    rmse: float  # root mean square misfit, in nats


def landscape_loss(w: Float[Array, " strength"], pairs: int, labels: int) -> Float[Array, ""]:
    """Loss of the reduced model at strengths beta, alpha, xi and, optionally, beta2."""
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
    """Losses along the flow at the given times; ``start`` belongs to the first."""

    def velocity(w: Array) -> Array:
        return -rates * jax.grad(landscape_loss)(w, pairs, labels)

    def substep(w: Array, h: Array) -> tuple[Array, None]:
        first = velocity(w)
        second = velocity(w + h / 2 * first)
        third = velocity(w + h / 2 * second)
        last = velocity(w + h * third)
        return jnp.clip(w + h / 6 * (first + 2 * second + 2 * third + last), -LARGEST, LARGEST), None

    def advance(w: Array, span: Array) -> tuple[Array, Array]:
        w, _ = jax.lax.scan(substep, w, jnp.full(SUBSTEPS, 1.0) * span / SUBSTEPS)
        return w, landscape_loss(w, pairs, labels)

    _, later = jax.lax.scan(advance, start, jnp.asarray(np.diff(times)))
    return jnp.append(landscape_loss(start, pairs, labels), later)


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
) -> list[FlowFit]:
    """Fit flows to measured losses, [fit, time], in parallel.

    A row of ``starts`` holds the logarithms of the n rates, then the n strengths at the first time; ``free`` marks the
    fitted ones. ``tied`` gives all strengths the first rate. A step that does not lower the misfit is repeated with
    more damping.
    """
    count, strengths = len(starts), starts.shape[1] // 2
    # The compiled program takes a fixed number of fits: the last batch is padded with copies.
    rows = np.minimum(np.arange(count + -count % TOGETHER), count - 1).reshape(-1, TOGETHER)
    static_times = tuple(np.asarray(times, float).tolist())
    batches = [
        _fit_batch(
            *(jnp.asarray(part[batch], float) for part in (values, starts, free)),
            times=static_times,
            pairs=pairs,
            labels=labels,
            tied=tied,
            iterations=iterations,
        )
        for batch in rows
    ]
    theta, cost = (np.concatenate(parts)[:count] for parts in zip(*batches, strict=True))
    rates = np.exp(theta[:, :1] + np.zeros(strengths) if tied else theta[:, :strengths])
    rmse = np.sqrt(cost / len(times))
    return [FlowFit(r, w, float(misfit)) for r, w, misfit in zip(rates, theta[:, strengths:], rmse, strict=True)]


@functools.partial(jax.jit, static_argnames=("times", "pairs", "labels", "tied", "iterations"))
def _fit_batch(
    values: Array,
    starts: Array,
    free: Array,
    *,
    times: tuple[float, ...],
    pairs: int,
    labels: int,
    tied: bool,
    iterations: int,
) -> tuple[Array, Array]:
    strengths = starts.shape[1] // 2

    def fit_curve(curve: Array, theta: Array, mask: Array) -> tuple[Array, Array]:
        def residuals(theta: Array) -> Array:
            rates = jnp.exp(theta[:1] + jnp.zeros(strengths) if tied else theta[:strengths])
            return flow_losses(rates, theta[strengths:], np.asarray(times), pairs, labels) - curve

        def improve(state: Any, _: None) -> tuple[Any, None]:
            theta, damping, cost = state
            misfits, slopes = residuals(theta), jax.jacfwd(residuals)(theta) * mask[None]
            curvature = slopes.T @ slopes
            scale = jnp.diag(jnp.diagonal(curvature) + 1e-9)
            step = -jnp.linalg.solve(curvature + damping * scale, slopes.T @ misfits) * mask
            trial = theta + jnp.clip(step, -2.0, 2.0)
            trial_cost = jnp.sum(residuals(trial) ** 2)
            better = trial_cost < cost
            damping = damping * jnp.where(better, 1 / 3, 4)
            return (jnp.where(better, trial, theta), damping, jnp.where(better, trial_cost, cost)), None

        state = (theta, jnp.asarray(0.1), jnp.sum(residuals(theta) ** 2))
        state, _ = jax.lax.scan(improve, state, None, length=iterations)
        return state[0], state[2]

    return jax.vmap(fit_curve)(values, starts, free)


def best(candidates: list[FlowFit]) -> FlowFit:
    """The fit of least misfit."""
    return min(candidates, key=lambda fit: fit.rmse if np.isfinite(fit.rmse) else np.inf)
