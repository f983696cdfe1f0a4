"""What a sweep costs besides its measurements, and what a second worker is worth.

    .venv/bin/python bench/scale.py [--rounds 3] [--quick]

Overhead: a claim whose cells measure nothing, each written with checksum and fsync. The time of a cell is the
difference of a long and a short sweep over the difference of their cells, times the workers: what a worker is kept from
measuring. ``here`` is ``icl run``, ``two processes`` is ``--workers 2``, ``dask`` a scheduler and two workers as
processes of this machine; a network comes on top of that. Starting workers is not counted.

Speed: the wall time of one claim on one worker over that on two, with the workers' start, each worker on one thread.
The machine should be quiet: two workers need two cores. Medians over rounds that are interleaved.

Exit status 1 if a target is missed.
"""

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import machine

IDLE = '''
"""Cells that measure nothing."""

from icllab.experiments.experiment import Control, Experiment


def measure(point, *, key):
    return {"icl_error": (("seed",), [0.5] * len(point.seed))}


experiment = Experiment(
    claim="Nothing takes no time.",
    sources=("Lu24",),
    quantities=("icl_error",),
    static=("dim",),
    sizes={"smoke": {"dim": (1,), "seed": 8}},
    measure=measure,
    check=lambda dataset: [],
    figure=lambda dataset: None,
    controls={"none": Control("nothing", theory=lambda dataset: dataset)},
)
'''
SHORT, LONG = 20, 220
CLAIM = "asymptotics/double_descent"
TARGETS = {"here": 0.050, "two processes": 0.050, "dask": 0.150}
SPEED = 1.8


def seconds(claim, size, folder, **how):
    """Wall time of a sweep into a directory of its own."""
    from icllab.experiments import requests, runner

    axes = {"dim": tuple(range(1, how.pop("cells") + 1))} if "cells" in how else None
    with tempfile.TemporaryDirectory() as out:
        request = requests.requested(claim, size, axes=axes, out=out, claims=folder)
        begun = time.perf_counter()
        runner.compute(request, **how)
        return time.perf_counter() - begun


def overheads(folder, rounds, dask):
    """Row -> seconds of a cell that measures nothing, one of each round."""
    rows = {"here": (1, {}), "two processes": (2, {"workers": 2}), "dask": (2, {"scheduler": dask})}
    found = {row: [] for row in rows}
    for _, how in rows.values():  # what this process and dask's workers load once
        seconds("idle/nothing", "smoke", folder, cells=SHORT, **how)
    for _ in range(rounds):
        for row, (workers, how) in rows.items():
            short, long = (seconds("idle/nothing", "smoke", folder, cells=cells, **how) for cells in (SHORT, LONG))
            found[row].append(workers * (long - short) / (LONG - SHORT))
    return found


def speeds(rounds, size):
    """Wall times on one worker and on two, one of each round."""
    found = {1: [], 2: []}
    for _ in range(rounds):
        for workers in found:  # a limit, which is never reached, makes one worker a process as well
            found[workers].append(seconds(CLAIM, size, None, workers=workers, limit=3600))
    return found


@contextlib.contextmanager
def dask():
    """The address of a scheduler with two workers, each a process."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


def main():
    """Print the table; the exit status says whether a target was missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round, and the speed at smoke")
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    os.environ |= machine.environment(1)
    print(machine.described("jax", "xarray", "h5netcdf", "distributed"))
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "idle").mkdir()
        Path(folder, "idle", "nothing.py").write_text(IDLE)
        with dask() as address:
            found = overheads(folder, rounds, address)
    print(f"{LONG - SHORT} cells that measure nothing")
    print(f"{'overhead of a cell':28}{'median ms':>11}{'largest ms':>12}{'asked':>8}")
    for row, times in found.items():
        median = statistics.median(times)
        print(f"{row:28}{1e3 * median:11.1f}{1e3 * max(times):12.1f}{1e3 * TARGETS[row]:8.0f}")
        missed += [row] if median > TARGETS[row] else []
    size = "smoke" if arguments.quick else "small"
    times = speeds(rounds, size)
    one, two = (statistics.median(some) for some in times.values())
    print(f"{CLAIM} at {size}")
    print(f"{'workers':28}{'median s':>11}{'largest s':>12}{'speed':>8}{'asked':>8}")
    print(f"{'one':28}{one:11.2f}{max(times[1]):12.2f}{1:8.2f}")
    print(f"{'two':28}{two:11.2f}{max(times[2]):12.2f}{one / two:8.2f}{SPEED:8.2f}")
    missed += ["speed"] if one / two < SPEED else []
    print(f"missed: {', '.join(missed)}" if missed else "all targets met")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
