"""Run as a program, on eight devices made of a processor; prints what the tests compare as one JSON object.

Its arguments are a store, for the tests of every day, or none, for the slow ones.

A process has as many devices as it began with, and the suite's has one.
"""

import json
import sys
import warnings

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

from icllab.training import cache_compilations, compile_quickly, split_processor  # noqa: E402

compile_quickly()
cache_compilations()
split_processor(8)

import equinox as eqx  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from predictors import Rooted, prompts, slope, task  # noqa: E402

import icllab as icl  # noqa: E402
from icllab.core.errors import InputError  # noqa: E402
from icllab.training import Fixed, Fresh, Record, Sweep  # noqa: E402

ADAM, SGD = optax.adam(0.1), optax.sgd(0.1)
KEY = jax.random.key(1)


class Drawn(eqx.Module):
    """A task that draws the numbers of all prompts in one call."""

    inner: object

    def sample(self, *, key):
        return self.inner.sample(key=key)

    def sample_many(self, count, *, key):
        one = self.inner.sample(key=key)
        x = jax.random.normal(key, (count, *one.x.shape))
        return eqx.tree_at(lambda prompt: (prompt.x, prompt.y), one, (x, x.sum(-1)))

    def loss(self, prediction, prompt):
        return self.inner.loss(prediction, prompt)


def apart(one, other):
    """The largest difference of trained arrays and of recorded losses."""
    arrays = zip(jax.tree.leaves(one.members.stacked), jax.tree.leaves(other.members.stacked), strict=True)
    losses = np.abs(one.dataset.training_loss.values - other.dataset.training_loss.values)
    return [max(float(jnp.abs(a - b).max()) for a, b in arrays), float(np.nanmax(losses))]


def refused(call):
    """The message with which a call is refused."""
    try:
        call()
    except InputError as error:
        return str(error)
    return None


SOURCES = {
    "fresh": (task(), Fresh()),
    "epochs": (task(), Fixed(prompts(40))),
    "reused": (task(), Fresh(reuse=2)),
    "full": (task(), Fixed(prompts(16))),
    "drawn at once": (Drawn(task()), Fresh()),
}


def batches(*names):
    """Differences after one step from a run on one device, with some sources of prompts."""
    start, found = slope(key=jax.random.key(0)), {}
    for name in names:
        asked, source = SOURCES[name]
        how = {"steps": 1, "key": KEY, "batch": 16, "optimizer": SGD, "data": source}  # Adam's first step has no scale
        found[name] = apart(icl.fit(start, asked, **how), icl.fit(start, asked, devices=8, **how))
    return found


def members(mode):
    """Three members and two rates, six in all, over four devices: two are computed twice."""
    start = icl.ensemble(slope, seeds=3, key=jax.random.key(0))
    sweep = Sweep({"optimizer.learning_rate": [0.1, 0.3]}, mode=mode)
    how = {"steps": 20, "key": KEY, "batch": 6, "optimizer": optax.adam, "sweep": sweep, "record": "every"}
    how["data"] = 12
    run = icl.fit(start, task(), devices=4, **how)
    arrays, losses = apart(icl.fit(start, task(), **how), run)
    found = {"arrays": arrays, "losses": losses, "division": run.header["division"]}
    found["seeds"] = run.dataset.seed.values.tolist()
    found["devices"] = len(jax.tree.leaves(run.members.stacked)[0].devices())
    return found


def ended():
    """Members whose parameters stop being numbers, at another step each."""
    start = icl.ensemble(lambda *, key, shift: Rooted(shift), seeds=1, key=jax.random.key(0), shift=[0.0, 1.0, 4.0])
    how = {"data": prompts(8), "steps": 12, "key": KEY, "batch": None, "optimizer": optax.sgd(0.5), "record": "every"}
    how["sweep"] = Sweep(mode="map")
    one, run = icl.fit(start, task(), **how), icl.fit(start, task(), devices=2, **how)
    same = {name: bool(np.array_equal(one.dataset[name], run.dataset[name])) for name in ("status", "ended")}
    return {**same, "statuses": sorted(set(run.status)), "apart": apart(one, run)}


def resumed(store):
    """A run that was cut keeps its devices, and its bits."""
    start, record = slope(key=jax.random.key(0)), Record(held_out=5, keep=[2])
    how = {"key": KEY, "batch": 16, "optimizer": ADAM}
    whole = icl.fit(start, task(), devices=2, steps=9, record=record, **how)
    icl.fit(start, task(), devices=2, steps=4, record=record, store=store, **how)
    run = icl.fit(start, task(), devices=2, steps=9, record=record, store=store, **how)
    found = {"apart": apart(whole, run), "division": run.header["division"], "resumed_at": run.header["resumed_at"]}
    found["kept"] = float(jnp.abs(whole.trajectory.at(2).stacked.w - run.trajectory.at(2).stacked.w).max())
    one = icl.fit(start, task(), steps=9, record=record, **how)
    found["held_out"] = float(np.abs(one.dataset.held_out_loss.values - run.dataset.held_out_loss.values).max())
    found["loaded"] = icl.load(store).header["division"]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        undivided = icl.fit(start, task(), steps=10, record=record, store=store, **how)
    found["undivided"] = [str(one.message) for one in said], undivided.header["division"]
    return found


def main(store=None):
    if store is None:
        print(json.dumps({"batches": batches("reused", "full", "drawn at once"), "members": members("vmap")}))
        return
    start = slope(key=jax.random.key(0))
    how = {"steps": 1, "key": KEY, "batch": 12, "optimizer": ADAM}
    two = icl.ensemble(slope, seeds=2, key=jax.random.key(0))
    found = {
        "batches": batches("fresh", "epochs"),
        "members": members("map"),
        "ended": ended(),
        "resumed": resumed(store),
        "batch": refused(lambda: icl.fit(start, task(), devices=8, **how)),
        "few": refused(lambda: icl.fit(two, task(), devices=4, **how)),
    }
    icl.fit(start, task(), devices=4, store=store + "-again", **(how | {"batch": 16, "steps": 20}))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
