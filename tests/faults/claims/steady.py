"""A claim for tests: its cells take as long, and go wrong in such ways, as the environment says.

``STEADY_LOG``: a file that gets a line ``dim pid`` for each measurement that begins.
``STEADY_PAUSE``: seconds that each takes. ``STEADY_FAULT``: ``raise:4`` or ``shape:4``, at dim 4; ``refuse:0.25``,
at rho 0.25; ``memory:2``, of more seeds than two; ``alone:2``, unless JAX has two processes; ``die:3``, the first
three measurements of the log; ``hang:1``, the first one; ``kill:8``, every one at dim 8.
``STEADY_SCRATCH``: a measurement ends its process after its first checkpoint in the scratch directory, and goes on
from there when it is measured again.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np

from icllab.core.errors import expected
from icllab.lab import checks, estimates
from icllab.lab.claim import Claim, Control


def measure(point, *, key, scratch, raised=0.0):
    import jax

    print("a claim that prints")
    if "STEADY_LOG" in os.environ:
        with open(os.environ["STEADY_LOG"], "a") as log:
            log.write(own := f"{point.dim} {os.getpid()}\n")
    if "STEADY_PAUSE" in os.environ:
        time.sleep(float(os.environ["STEADY_PAUSE"]))
    fault, _, where = os.environ.get("STEADY_FAULT", "").partition(":")
    if fault in ("die", "hang"):
        lines = Path(os.environ["STEADY_LOG"]).read_text().splitlines(keepends=True)
        if lines.index(own) < int(where):
            os.kill(os.getpid(), signal.SIGKILL) if fault == "die" else time.sleep(300)
    if fault == "kill" and int(where) == point.dim:
        os.kill(os.getpid(), signal.SIGKILL)
    if "STEADY_SCRATCH" in os.environ and not (scratch / "checkpoint").exists():
        (scratch / "checkpoint").write_text("one half")
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "refuse" and float(where) == point.rho:
        raise expected("rho", "another number", point.rho)
    if fault == "raise" and int(where) == point.dim:
        raise RuntimeError("no such luck,\nsaid on two lines")
    if fault == "memory" and len(point.seed) > int(where):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate\n9 bytes.")
    if fault == "alone" and jax.process_count() != int(where):
        raise RuntimeError(f"{jax.process_count()} processes")
    entropy = np.asarray(jax.random.key_data(key)).tolist()
    errors = [
        [point.rho + raised + np.random.default_rng([s, *entropy]).normal() / 10] * len(point.ridge) for s in point.seed
    ]
    if fault == "shape" and int(where) == point.dim:
        errors = errors[1:]
    return {"icl_error": (("seed", "ridge"), errors)}


def theory(dataset):
    return dataset.assign(icl_theory=("dim", np.full(dataset.sizes["dim"], 0.5)))


def wrong(dataset):
    return dataset.assign(icl_theory=("dim", np.full(dataset.sizes["dim"], 0.9)))


def check(dataset):
    mean = estimates.mean(dataset["icl_error"].isel(ridge=0, drop=True))
    return checks.agrees("error", "error", mean, dataset["icl_theory"], largest_error=0.3)


def figure(dataset):
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(1, 1))
    axes = drawn.subplots()
    axes.plot(dataset["dim"], dataset["icl_error"].mean("seed"))
    axes.set_axis_off()  # text and its fonts take most of the time of a figure
    return drawn


claim = Claim(
    sentence="What is measured is one half and a little noise.",
    sources=("Lu24",),
    quantities=("icl_error", "icl_theory"),
    static=("dim",),
    sizes={
        "smoke": {"dim": (2, 4), "ridge": (0.0,), "seed": 12},
        "small": {"dim": (2, 4, 8, 16, 32), "ridge": (0.0,), "seed": 6},
    },
    fixed={"rho": 0.5},
    measure=measure,
    controls={
        "wrong": Control("nine tenths instead of one half", theory=wrong),
        "raised": Control("what is measured is larger by one half", measure={"raised": 0.5}),
    },
)
