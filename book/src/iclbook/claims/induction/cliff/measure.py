"""Gradient descent of an induction head of three strengths, token by token, with exact losses and Euler's steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.induction.cliff.claim import STRENGTHS

VERSION = 1

FLOOR = 0.02  # of ln N: where descent may end
STILL = 1e-15  # a slope that is nothing but rounding


def measure(point, *, key, formed=0.0, held=False):
    """Descent from all starts at all step sizes.

    ``formed``: the strength with which both attentions begin besides. ``held``: both attentions stay as they begin.
    """
    del key  # nothing is random: the loss is exact
    pairs, finest = point.pairs, int(np.argmin(point.rate))
    kind = (point.attention == "causal", float(point.label_count))
    until = point.horizon if point.label_count > pairs else point.saddle_horizon
    starts = np.asarray(point.start)[:, None] + formed * np.array([1.0, 1.0, 0.0])
    crossings, curves = descended(
        starts,
        np.asarray(point.rate),
        np.asarray(point.time, float),
        np.asarray(point.loss_level),
        until,
        np.array([0.0, 0.0, 1.0]) if held else np.ones(3),
        *kind,
        pairs=pairs,
    )
    columns = np.array([STRENGTHS.index(name) for name in point.strength])
    return {
        "origin_gradient": (("strength",), jax.grad(loss)(jnp.zeros(3), *kind, pairs=pairs)[columns]),
        "crossing_time": (("start", "rate", "loss_level"), crossings),
        "strength_curve": (("start", "time", "strength"), curves[:, finest][..., columns]),
        "label_loss": (("start", "time"), curves[:, finest, :, 3]),
    }


@functools.partial(jax.jit, static_argnames="pairs")
def loss(w, causal, labels, *, pairs):
    """Cross-entropy of the query's label, averaged over the query; those not in the context share a logit of zero."""
    beta, alpha, xi = w
    tokens, query = 2 * pairs + 1, np.arange(pairs)
    # Of each query: the tokens whose content it is, the last among them; and the token of its label.
    matches, right = np.zeros((2, pairs, tokens))
    matches[query, 2 * query], matches[:, -1], right[query, 2 * query + 1] = 1.0, 1.0, 1.0
    sees = np.tril(np.ones((tokens, tokens))) > 0
    pattern = jax.nn.softmax(jnp.where(sees, beta * np.eye(tokens, k=-1), -jnp.inf), axis=1)
    even = jax.nn.softmax(beta * np.eye(1, pairs + 1)[0])[0] * right
    buffers = jnp.where(causal, matches @ pattern.T, even)  # what tokens have stored of each query
    attention = jax.nn.softmax(alpha * buffers, axis=1)
    logits = jnp.pad(xi * attention[:, 1::2], ((0, 0), (0, 1)))
    counts = jnp.append(jnp.ones(pairs), labels - pairs)
    return jnp.mean(jax.nn.logsumexp(logits, axis=1, b=counts[None]) - jnp.diagonal(logits))


@functools.partial(jax.jit, static_argnames="pairs")
def descended(starts, rates, grid, levels, until, free, causal, labels, *, pairs):
    """Times at which the loss falls through fractions of ln N, [start, rate, level]; strengths and loss on a grid of
    times, [start, rate, time, 4]. ``free``: 1 for the strengths that are trained, else 0."""
    heights, spacing = levels * np.log(pairs), grid[1] - grid[0]

    def one(start, rate):
        def goes_on(state):
            i, _, value, slope_size, _, _ = state
            return (i.astype(float) * rate < until) & (value > FLOOR * np.log(pairs)) & (slope_size > STILL)

        def step(state):
            i, w, before, _, crossings, curve = state
            value, slope = jax.value_and_grad(loss)(w, causal, labels, pairs=pairs)
            t = i.astype(float) * rate
            at = t - rate * (heights - value) / (before - value)
            crossings = jnp.where((before > heights) & (value <= heights) & jnp.isnan(crossings), at, crossings)
            place = jnp.round(t / spacing).astype(int)
            place = jnp.where(jnp.abs(t - place.astype(float) * spacing) < rate / 2, place, len(grid))
            curve = curve.at[place].set(jnp.append(w, value), mode="drop")
            return i + 1, w - rate * free * slope, value, jnp.max(jnp.abs(slope)), crossings, curve

        missing = jnp.full((len(grid), 4), jnp.nan), jnp.full(len(levels), jnp.nan)
        state = (jnp.asarray(0), start, jnp.inf, jnp.inf, missing[1], missing[0])
        *_, crossings, curve = jax.lax.while_loop(goes_on, step, state)
        return crossings, curve

    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(starts, rates)
