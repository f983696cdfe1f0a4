"""Races of memorising and context in runs that differ in nothing but their seed."""

import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.induction import _race
from iclbook.claims.induction.bimodal_at_the_threshold.claim import FEWEST, MOST

VERSION = 1
EVERY = 4  # steps of a record


def measure(point, *, key, common=False, ratio=None, mirrored=False):
    """One cell, of one number of classes. ``common``: items, labels and weights at the start are those of seed 0.

    ``ratio``: another number of classes for each pair, in all cells. ``mirrored``: the product of the fewest and most
    over the cell's.
    """
    sizes = _race.Sizes(point.pairs, point.dim, point.hidden, point.batch, point.rate, point.std)
    keys = jnp.stack([jax.random.fold_in(key, seed) for seed in point.seed])
    starts = jnp.stack([jax.random.fold_in(key, 0)] * len(keys)) if common else None
    per_pair = ratio or (FEWEST * MOST / point.classes_per_pair if mirrored else point.classes_per_pair)
    classes = np.full(len(keys), round(per_pair * point.pairs), np.int32)
    steps = round(point.race * point.pairs / point.rate) // EVERY * EVERY
    records = _race.train(classes, keys, starts=starts, sizes=sizes, parts=_race.Parts(), steps=steps, every=EVERY)
    value, match = (np.asarray(records[name], float) for name in ("value", "match"))
    copy = _race.copy_logit(value, match, point.pairs)[:, -1]
    return {
        "copy_probability": (("seed",), 1 / (1 + np.exp(-copy))),
        "start_match": (("seed",), match[:, 0]),
        "race_loss": (("seed",), np.asarray(records["loss"], float)[:, -5:].mean(axis=-1)),
    }
