"""A training run as a process of its own: ``python training_process.py STORE STEPS CACHE [WHERE COUNT]``.

It says where it begins and, at the end, what came out. With ``WHERE`` it kills itself at the ``COUNT``-th time that a
checkpoint is about to be fsynced (``fsync``), moved (``replace``), has been moved (``replaced``), or is half written
(``write``).
"""

import hashlib
import io
import os
import pathlib
import signal
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from icllab.core.protocols import AbstractPredictor
from icllab.tasks import LinearRegression
from icllab.training import CheckpointStore, Record, Sweep, cache_compilations, ensemble, fit


class Slope(AbstractPredictor):
    """The query times one vector."""

    w: jax.Array

    def __call__(self, prompt):
        return prompt.x @ self.w


def die_at(where, count):
    """Kill this process by signal 9 in the middle of a write."""
    left = [count]

    def due():
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    fsync, replace, opened = os.fsync, pathlib.Path.replace, pathlib.Path.open

    def before_fsync(number):
        due()
        return fsync(number)

    def around_replace(self, target):
        if where == "replace":
            due()
        moved = replace(self, target)
        if where == "replaced":
            due()
        return moved

    class Halved(io.FileIO):
        def write(self, content):
            super().write(content[: len(content) // 2])
            due()
            return super().write(content[len(content) // 2 :])

    def open_halved(self, mode="r", *more, **named):
        if mode == "wb" and self.suffix == ".partial":
            return Halved(self, "w")
        return opened(self, mode, *more, **named)

    if where == "fsync":
        os.fsync = before_fsync
    elif where == "write":
        pathlib.Path.open = open_halved
    else:
        pathlib.Path.replace = around_replace


def main(store, steps, cache, where="", count="0"):
    """Train, and print where it began and a digest of all that came out."""
    cache_compilations(cache)
    if where:
        die_at(where, int(count))
    start = ensemble(lambda *, key: Slope(jax.random.normal(key, (3,))), seeds=2, key=jax.random.key(0))
    run = fit(
        start,
        LinearRegression.convention("raventos", dim=3, length=4),
        steps=int(steps),
        key=jax.random.key(1),
        batch=4,
        data=50,
        optimizer=optax.adam(1e-2),
        sweep=Sweep(mode="map"),
        record=Record(keep=[100]),
        store=CheckpointStore(store, seconds=0.0),
    )
    found = hashlib.sha256(np.asarray(run.members.stacked.w).tobytes())
    for name in sorted(run.dataset.variables):
        found.update(run.dataset[name].values.tobytes())
    found.update(run.trajectory.stacked(1).w.tobytes())
    assert jnp.isfinite(run.members.stacked.w).all()
    print(run.header["resumed_at"], found.hexdigest())


if __name__ == "__main__":
    main(*sys.argv[1:])
