"""Runs of memorising alone, of the context alone, and of both together."""

import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.induction import _race
from iclbook.claims.induction.race_of_memorising.claim import ACQUIRED, MEMORISED

VERSION = 1
EVERY = 4  # steps of a record


def measure(point, *, key, weights="mlp", frozen=False, reshuffled=False):
    """One cell, of one length. ``weights``: ``table`` has one number for each class; see :class:`_race.Parts`."""
    sizes = _race.Sizes(point.pairs, point.dim, point.hidden, point.batch, point.rate, point.std)
    seeds = point.seed
    parts = _race.Parts(weights, frozen=frozen, reshuffled=reshuffled)

    def curves(classes, parts, time):
        """Curves [classes, seed, record], and the times at the middle of the records."""
        steps = round(time / point.rate) // EVERY * EVERY
        repeated = np.repeat(np.asarray(classes, np.int32), len(seeds))
        stacked = jnp.stack([jax.random.fold_in(key, seed) for _ in classes for seed in seeds])  # one start a seed
        records = _race.train(repeated, stacked, sizes=sizes, parts=parts, steps=steps, every=EVERY)
        times = point.rate * (EVERY * np.arange(steps // EVERY) + (EVERY - 1) / 2)
        shape = len(classes), len(seeds), -1
        return times, {name: np.asarray(values, float).reshape(shape) for name, values in records.items()}

    def crossings(times, values, level):
        rows = [[_race.crossing(times, curve, level) for curve in row] for row in values]
        return np.minimum(np.array(rows), times[-1])

    time, alone = curves(point.classes, parts._replace(context=False), point.longest)
    memorised = crossings(time, -alone["loss"], -MEMORISED)
    drive = np.cumsum(alone["remaining"], axis=-1) * EVERY * point.rate
    ends = zip(memorised.ravel(), drive.reshape(memorised.size, -1), strict=True)
    drives = np.reshape([np.interp(end, time, curve) for end, curve in ends], memorised.shape)
    time, fresh = curves([point.classes[0]], parts._replace(weights="none", reshuffled=False), 6.0 * point.pairs)
    needed = crossings(time, _race.copy_logit(fresh["value"], fresh["match"], point.pairs), ACQUIRED)[0]
    together = [round(ratio * point.pairs) for ratio in point.classes_per_pair]
    _, race = curves(together, parts, point.race * point.pairs)
    copy = _race.copy_logit(race["value"], race["match"], point.pairs)[:, :, -1]
    return {
        "memorising_time": (("classes", "seed"), memorised),
        "memorising_drive": (("classes", "seed"), drives),
        "context_time": (("seed",), needed),
        "start_value": (("seed",), fresh["value"][0, :, 0]),
        "start_match": (("seed",), fresh["match"][0, :, 0]),
        "copy_logit": (("classes_per_pair", "seed"), copy),
        "race_loss": (("classes_per_pair", "seed"), race["loss"][:, :, -5:].mean(axis=-1)),
    }
