"""Two layers that are trained on contexts, one of which begins at a hidden step, and what detectors see of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.routing import _detection
from iclbook.claims.routing._responses import response_size

VERSION = 2

ONSET = (0.3, 0.6)  # of the run: when the data of the last context begin


def frequencies(count, kind, after_onset, last):
    """Frequencies of contexts: 1/rank, and one for the last: ``last`` from the start, its own from its onset, or 0."""
    law = 1 / np.arange(1.0, count)
    share = last if kind == "start" else float(kind) if kind != "never" and after_onset else 0.0
    return np.append((1 - share) * law / law.sum(), share)


def answers(w):
    """Answers to all contexts, [context, output], of two layers [layer, context, output]."""
    return w[0] @ w[1]


def drawn(point, kind, onset, rng, noise):
    """Weights at the start, and the contexts and labels of all batches; ``noise``: that of labels at every step."""
    count, steps = point.contexts, point.updates
    targets = np.linalg.qr(rng.normal(size=(count, count)))[0]
    start = point.start_scale * rng.normal(size=(2, count, count))
    laws = np.cumsum([frequencies(count, kind, after_onset, point.last) for after_onset in (False, True)], axis=1)
    law = laws[(np.arange(steps) >= onset).astype(int)][:, None]
    contexts = (rng.random((steps, point.batch))[:, :, None] > law[..., :-1]).sum(2)
    labels = targets[contexts] + noise[:, None, None] * rng.normal(size=(steps, point.batch, count))
    return start, contexts, labels


@functools.partial(jax.jit, static_argnames="every")
def monitored(start, contexts, labels, rate, resolution, *, every):
    """Series of the minibatches since the last record, [record, series], along stochastic gradient descent."""
    count = labels.shape[-1]

    def step(w, batch):
        rows, y = batch

        def mean(w):
            return jnp.mean(jnp.sum((answers(w)[rows] - y) ** 2, axis=1)) / 2

        loss, slope = jax.value_and_grad(mean)(w)
        return w - rate * slope, (loss, jnp.sum(slope**2))

    def record(w, data):
        w, (losses, squares) = jax.lax.scan(step, w, data)
        rows, y = data[0].ravel(), data[1].reshape(-1, count)
        jacobian = jax.jacrev(answers)(w).reshape(count, count, -1)
        gradients = jnp.einsum("nop,no->np", jacobian[rows], answers(w)[rows] - y)
        shares = jnp.bincount(rows, length=count) / len(rows)
        factor = (jnp.sqrt(shares)[:, None, None] * jacobian).reshape(count * count, -1)
        size = response_size(gradients, jnp.full(len(rows), 1 / len(rows)), factor, resolution)
        return w, jnp.stack([losses.mean(), jnp.sqrt(squares.mean()), size])

    parts = (part.reshape(-1, every, *part.shape[1:]) for part in (contexts, labels))
    return jax.lax.scan(record, start, tuple(parts))[1]


def measure(point, *, key, silent=False, noisier=1.0):
    """One cell: when the detectors of every seed's run first pass each level.

    ``silent``: the data that are to begin do not. ``noisier``: factor of the labels' noise from the hidden step on, in
    the odd seeds of runs without an onset.
    """
    updates, kind = np.arange(point.updates), str(point.kind)
    numbers = jnp.asarray(point.rate), jnp.asarray(point.resolution)
    series, onsets = [], []
    for seed in point.seed:
        rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(key)).ravel().tolist()])
        onsets.append(rng.uniform(*ONSET) * point.updates)
        disturbed = kind in _detection.NULLS and seed % 2 == 1
        noise = point.label_noise * np.where(disturbed & (updates >= onsets[-1]), noisier, 1.0)
        run = drawn(point, "never" if silent and kind != "start" else kind, onsets[-1], rng, noise)
        series.append(monitored(*map(jnp.asarray, run), *numbers, every=point.every))
    rows = np.stack(series)
    axes = ("seed", "series", "rule", "level")
    return {
        "first_passage": (axes, _detection.first_passages(rows, point.every)),
        "onset": (("seed",), np.array(onsets)),
    }
