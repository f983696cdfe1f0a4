"""Long races of memorising and context whose attention decays."""

import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.induction import _race

VERSION = 1


def measure(point, *, key, decay=None, frozen=False, reshuffled=False):
    """One cell, of one decay. ``decay``: another, in all cells; the others are those of :class:`_race.Parts`."""
    used = point.decay if decay is None else decay
    sizes = _race.Sizes(point.pairs, point.dim, point.hidden, point.batch, point.rate, point.std, float(used))
    keys = jnp.stack([jax.random.fold_in(key, seed) for seed in point.seed])
    parts = _race.Parts(frozen=frozen, reshuffled=reshuffled)
    (every,) = {*np.diff([0, *point.step]).tolist()}  # a record is the mean over the steps since the one before
    classes = np.full(len(keys), point.number, np.int32)
    records = _race.train(classes, keys, sizes=sizes, parts=parts, steps=max(point.step), every=every)
    value, match, loss = (np.asarray(records[name], float) for name in ("value", "match", "loss"))
    return {
        "copy_logit": (("seed", "step"), _race.copy_logit(value, match, point.pairs)),
        "race_loss": (("seed", "step"), loss),
    }
