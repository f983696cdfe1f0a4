"""Networks that are trained on programs, one of which begins at a hidden step, and what detectors see of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from iclbook.claims.routing import _detection, _small_transformers
from icllab.diagnostics.curves import detection
from icllab.tasks.string_programs import power_law

VERSION = 3

OPTIMIZER = optax.adam(5e-3)
UNIT = 0.05  # of a rise: levels are multiples of it
ONSET = (0.3, 0.6)  # of the run: when the data of the last program begin


def frequencies(point, kind, onset):
    """Frequencies at every update: a power law, and the last's: ``point.last`` always, its own from its onset, or 0."""
    steps = np.arange(point.updates)
    share = {"never": 0.0 * steps, "start": point.last + 0.0 * steps}.get(kind)
    share = float(kind) * (steps >= onset) if share is None else share
    law = power_law(len(point.program) - 1, point.zipf_exponent)
    return np.concatenate([(1 - share)[:, None] * law, share[:, None]], axis=1)


def measure(point, *, key, noisier=0.0):
    """When the detectors of every seed's runs first pass each level. Runs of a seed differ in frequencies alone.

    ``noisier``: probability that a label is replaced once more, from the hidden step on, in the odd seeds.
    """
    of_networks, of_batches = (jax.random.fold_in(key, i) for i in range(2))
    _, family = _small_transformers.sample_family(point.seed, point, key=of_networks)
    digits = np.asarray(jax.random.key_data(of_batches)).ravel().tolist()

    def of_kind(kind):
        rngs = [np.random.default_rng([seed, *digits]) for seed in point.seed]
        onsets = [rng.uniform(*ONSET) * point.updates for rng in rngs]
        batches = []
        for seed, onset, rng in zip(point.seed, onsets, rngs, strict=True):
            shares = frequencies(point, kind, onset)
            of_seed = _small_transformers.Batches.from_frequencies(shares, family, batch=point.batch, rng=rng)
            if seed % 2 == 1:
                of_seed = replaced(of_seed, onset, noisier, family.symbols, rng)
            batches.append(of_seed)
        return monitored(point, family, batches), onsets

    runs = [of_kind(str(kind)) for kind in point.kind]
    rows = np.stack([series for series, _ in runs])
    return {
        "first_passage": (
            ("kind", "seed", "series", "rule", "level"),
            first_passages(rows, point),
        ),
        "onset": (("kind", "seed"), np.array([onsets for _, onsets in runs])),
    }


def first_passages(series, point):
    """First passages [..., series, rule, level] of the cell's rules and levels, for series [..., record, series]."""
    rows = np.moveaxis(series, -1, -2)
    steps = point.every * np.arange(1, rows.shape[-1] + 1)
    quiet = steps < _detection.QUIET * steps[-1]
    values = {"score": np.abs(detection.scores(rows)), "rise": detection.rises(rows) / UNIT}
    stacked = np.stack([np.where(quiet, 0.0, values[str(rule)]) for rule in point.rule], axis=-2)
    return detection.first_passages(stacked, steps, np.asarray(point.level))


def replaced(batches, onset, probability, symbols, rng):
    """The batches with labels replaced by random ones, with a probability, from a step on."""
    shape = batches.wrong.shape
    again = (rng.random(shape) < probability) & (np.arange(shape[0]) >= onset)[:, None, None]
    wrong = np.where(again, rng.integers(symbols, size=shape), batches.wrong)
    return eqx.tree_at(lambda batches: batches.wrong, batches, jnp.asarray(wrong, jnp.int32))


def monitored(point, family, batches):
    """Series of the minibatches since the last record, [seed, record, series], along training."""
    path = _small_transformers.descent(family, batches, optimizer=OPTIMIZER, every=point.every)
    resolution = jnp.asarray(point.resolution)
    sizes = [
        _small_transformers.response_sizes(family, path.weights[i], family.prompts[i], batches[i], resolution)
        for i in range(len(batches))
    ]
    return np.stack([path.loss, path.slope, jnp.stack(sizes)], axis=-1)
