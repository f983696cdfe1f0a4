"""Networks that are trained on programs, one of which begins at a hidden step, and what blind detectors see of them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from icllab.claims.routing import _small_transformers
from icllab.tasks.string_programs import power_law

VERSION = 1

OPTIMIZER = optax.adam(5e-3)
ONSET = (0.3, 0.6)  # of the run: when the data of the last program begin


def frequencies(point, kind, onset):
    """Frequencies at every update: a power law, and ``last`` for the last from its onset, the start, or never."""
    steps = np.arange(point.step[-1])
    share = {"planted": steps >= onset, "never": steps < 0, "start": steps >= 0}[kind] * point.last
    law = power_law(len(point.program) - 1, point.zipf_exponent)
    return np.concatenate([(1 - share)[:, None] * law, share[:, None]], axis=1)


def measure(point, *, key, silent=False):
    """The series of every seed and kind of run. ``silent``: the data that are to begin do not.

    Runs of a seed differ in nothing but the frequencies of programs.
    """
    of_networks, of_batches = (jax.random.fold_in(key, i) for i in range(2))
    _, family = _small_transformers.sample_family(point.seed, point, key=of_networks)
    digits = np.asarray(jax.random.key_data(of_batches)).ravel().tolist()
    count = len(point.program)

    def of_kind(kind):
        rngs = [np.random.default_rng([seed, *digits]) for seed in point.seed]
        onsets = [rng.uniform(*ONSET) * point.step[-1] for rng in rngs]
        tilts = [rng.dirichlet(np.ones(count), size=point.tilts) for rng in rngs]
        kind = "never" if silent and kind == "planted" else kind
        batches = [
            _small_transformers.Batches.from_frequencies(
                frequencies(point, kind, onset), family, batch=point.batch, rng=rng
            )
            for onset, rng in zip(onsets, rngs, strict=True)
        ]
        path = _small_transformers.descended(family, batches, optimizer=OPTIMIZER, every=point.step[0])
        return np.stack([monitored(point, family, path[i], i, rows) for i, rows in enumerate(tilts)]), onsets

    runs = [of_kind(kind) for kind in point.kind]
    return {
        "monitored": (("kind", "seed", "step", "detector"), np.stack([series for series, _ in runs])),
        "onset": (("kind", "seed"), np.array([onsets for _, onsets in runs])),
    }


def monitored(point, family, ways, i, tilts):
    """Loss, effective dimension and size of the response to random tilts at every record, [step, detector]."""
    even = np.full(len(point.program), 1 / len(point.program))
    resolution = jnp.asarray(point.resolution)
    records = _small_transformers.seen(family, ways, family.prompts[i], jnp.asarray(even), resolution)
    to_tilts = np.einsum("rot,o,kt->rk", np.asarray(records.response), even, tilts)
    size = np.sqrt(np.mean(to_tilts**2, axis=1))
    return np.stack([np.asarray(records.losses) @ even, np.asarray(records.dimension), size], axis=1)
