"""Networks that are trained on contexts, one of which begins at a hidden step, and what blind detectors see of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.claims.routing._detection import DETECTORS
from icllab.diagnostics import LinearResponse, effective_dimension, susceptibility
from icllab.diagnostics.curvature.products import GaussNewton

VERSION = 1

OTHER = {"loss": "response", "response": "dimension", "dimension": "loss"}


class Weighted(eqx.Module):
    """Half the squared distance of the answers of two linear layers from their targets, a weighted mean of contexts."""

    weights: jax.Array
    targets: jax.Array  # [context, output]

    def __call__(self, w):
        """Loss of the weights of both layers."""
        return jnp.sum(self.weights * jnp.sum((answers(w) - self.targets) ** 2, axis=1)) / 2


def answers(w, _=None):
    """Answers to all contexts, [context, output]."""
    return w["a"] @ w["b"]


def squared(predictions, data):
    """The mean over contexts of half the squared error."""
    return jnp.mean(jnp.sum((predictions - data) ** 2, axis=1)) / 2


def frequencies(count, kind, after_onset, last):
    """Frequencies of contexts: 1/rank, and ``last`` for the last one from its onset, the start, or never."""
    law = 1 / np.arange(1.0, count)
    share = last if kind == "start" or (kind == "planted" and after_onset) else 0.0
    return np.append((1 - share) * law / law.sum(), share)


def trained(point, kind, onset, rng):
    """Weights after the recorded steps of stochastic gradient descent on noisy labels, [step, ...], and the targets."""
    count, steps = point.contexts, int(point.step[-1])
    targets = np.linalg.qr(rng.normal(size=(count, count)))[0]
    start = {name: jnp.asarray(point.start_scale * rng.normal(size=(count, count))) for name in ("a", "b")}
    laws = np.cumsum([frequencies(count, kind, after_onset, point.last) for after_onset in (False, True)], axis=1)
    law = laws[(np.arange(steps) >= onset).astype(int)][:, None]
    contexts = (rng.random((steps, point.batch))[:, :, None] > law[..., :-1]).sum(2)
    labels = targets[contexts] + point.label_noise * rng.normal(size=(steps, point.batch, count))
    path = _descended(start, jnp.asarray(contexts), jnp.asarray(labels), jnp.asarray(point.rate))
    return {name: np.asarray(leaf)[np.asarray(point.step) - 1] for name, leaf in path.items()}, targets


@jax.jit
def _descended(w, contexts, labels, rate):
    def step(w, batch):
        rows, y = batch

        def mean(w):
            return jnp.mean(jnp.sum((w["a"][rows] @ w["b"] - y) ** 2, axis=1)) / 2

        w = jax.tree.map(lambda leaf, slope: leaf - rate * slope, w, jax.grad(mean)(w))
        return w, w

    return jax.lax.scan(step, w, (contexts, labels))[1]


def monitored(point, weights, targets, rng):
    """Loss, effective dimension and size of the response to random tilts at every record, [step, detector]."""
    count, target = len(targets), jnp.asarray(targets)
    plain = Weighted(jnp.full(count, 1 / count), target)
    draws = rng.dirichlet(np.ones(count), size=point.tilts)
    tilts = {str(i): Weighted(jnp.asarray(row), target) for i, row in enumerate(draws)}
    options = {"tilted": tilts, "observables": {"loss": plain}, "nbeta": point.nbeta, "key": jax.random.key(0)}
    rows = []
    for i in range(len(point.step)):
        w = {name: jnp.asarray(leaf[i]) for name, leaf in weights.items()}
        route = LinearResponse(curvature=GaussNewton(squared, w, target, outputs=answers))
        response = susceptibility(plain, w, localization=point.resolution * point.nbeta, route=route, **options)
        size = float(np.sqrt(np.mean(response["susceptibility"].values ** 2)))
        dimension = effective_dimension(plain, w, resolution=point.resolution, key=options["key"]).value
        rows.append((float(plain(w)), dimension, size))
    return np.array(rows)


def falls(point, rng):
    """Sums of three smooth falls with noise, as a loss; of nothing else is anything seen."""
    t = np.log(np.asarray(point.step, float))
    middles, widths = rng.uniform(t[0], t[-1], 3), rng.uniform(0.2, 1.0, 3)
    values = 0.1 + rng.dirichlet(np.ones(3)) @ (1 / (1 + np.exp((t - middles[:, None]) / widths[:, None])))
    loss = values * np.exp(0.01 * rng.normal(size=t.shape))
    return np.stack([loss, np.full_like(t, np.nan), np.full_like(t, np.nan)], axis=1)


def measure(point, *, key, silent=False, exchanged=False):
    """One cell: the series of every seed.

    ``silent``: the data that are to begin do not. ``exchanged``: every detector has the series of the :data:`OTHER`.
    """
    rows, onsets = [], []
    for seed in point.seed:
        rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(key)).ravel().tolist()])
        onset = rng.uniform(*(share * point.step[-1] for share in (0.3, 0.6)))
        onsets.append(onset)
        if point.kind == "falls":
            rows.append(falls(point, rng))
            continue
        kind = "never" if silent and point.kind == "planted" else point.kind
        weights, targets = trained(point, kind, onset, rng)
        rows.append(monitored(point, weights, targets, rng))
    order = [DETECTORS.index(OTHER[name] if exchanged else name) for name in DETECTORS]
    return {
        "monitored": (("seed", "step", "detector"), np.stack(rows)[..., order]),
        "onset": (("seed",), np.array(onsets)),
    }
