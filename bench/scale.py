"""What a sweep costs besides its measurements, and what a second worker is worth.

    .venv/bin/python bench/scale.py [--rounds 3] [--quick]

Overhead: a claim whose cells measure nothing, each written with checksum and fsync. The time of a cell is the
difference of a long and a short sweep over the difference of their cells, times the workers: what a worker is kept from
measuring. ``here`` is ``icl run``, ``two processes`` is ``--workers 2``, ``dask`` a scheduler and two workers as
processes of this machine; a network comes on top of that. Starting workers is not counted.

Speed: the wall time of one claim on one worker over that on two, each worker on one thread, its programs compiled
before. The start of a worker is in both, and two start no sooner than one: with ``start`` seconds of it, no more than
``one / (start + (one - start) / 2)`` can be reached, which is the ``limit``. The machine should be quiet: two workers
need two cores. What both take in CPU time is seen on any machine. Medians over rounds that are interleaved.

Exit status 1 if a target is missed.
"""

import argparse
import contextlib
import os
import resource
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


def spent(claim, size, folder, **how):
    """Wall time of a sweep into a directory of its own, and CPU time of the processes that it started."""
    from icllab.experiments import requests, runner

    def cpu():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    axes = {"dim": tuple(range(1, how.pop("cells") + 1))} if "cells" in how else None
    with tempfile.TemporaryDirectory() as out:
        request = requests.requested(claim, size, axes=axes, out=out, claims=folder)
        begun, before = time.perf_counter(), cpu()
        runner.compute(request, **how)
        return time.perf_counter() - begun, cpu() - before


def overheads(folder, rounds, dask):
    """Row -> seconds of a cell that measures nothing, one of each round."""
    rows = {"here": (1, {}), "two processes": (2, {"workers": 2}), "dask": (2, {"scheduler": dask})}
    found = {row: [] for row in rows}
    for _, how in rows.values():  # what this process and dask's workers load once
        spent("idle/nothing", "smoke", folder, cells=SHORT, **how)
    for _ in range(rounds):
        for row, (workers, how) in rows.items():
            short, long = (spent("idle/nothing", "smoke", folder, cells=cells, **how)[0] for cells in (SHORT, LONG))
            found[row].append(workers * (long - short) / (LONG - SHORT))
    return found


def speeds(rounds, size, folder):
    """Workers -> wall and CPU times of the claim, one pair of each round; 0: the start of one worker, and one cell."""
    from icllab.training import cache_compilations

    found = {0: [], 1: [], 2: []}
    with tempfile.TemporaryDirectory() as cache:
        cache_compilations(cache)
        spent(CLAIM, size, None, workers=2, limit=3600)  # compiles
        for _ in range(rounds):
            found[0].append(spent("idle/nothing", "smoke", folder, cells=1, workers=1, limit=3600))
            for workers in (1, 2):  # a limit, which is never reached, makes one worker a process as well
                found[workers].append(spent(CLAIM, size, None, workers=workers, limit=3600))
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
        size = "smoke" if arguments.quick else "small"
        times = speeds(rounds, size, folder)
        with dask() as address:
            found = overheads(folder, rounds, address)
    print(f"{LONG - SHORT} cells that measure nothing")
    print(f"{'overhead of a cell':28}{'median ms':>11}{'largest ms':>12}{'asked':>8}")
    for row, seconds in found.items():
        median = statistics.median(seconds)
        print(f"{row:28}{1e3 * median:11.1f}{1e3 * max(seconds):12.1f}{1e3 * TARGETS[row]:8.0f}")
        missed += [row] if median > TARGETS[row] else []
    start, one, two = (statistics.median(wall for wall, _ in some) for some in times.values())
    cpu = {workers: statistics.median(cpu for _, cpu in some) for workers, some in times.items()}
    limit = one / (start + (one - start) / 2)
    print(f"{CLAIM} at {size}; a worker starts in {start:.2f} s")
    print(f"{'workers':28}{'median s':>11}{'largest s':>12}{'CPU s':>8}{'speed':>8}{'limit':>8}{'asked':>8}")
    for workers, wall, name in ((1, one, "one"), (2, two, "two")):
        largest = max(wall for wall, _ in times[workers])
        more = f"{limit:8.2f}{SPEED:8.2f}" if workers == 2 else ""
        print(f"{name:28}{wall:11.2f}{largest:12.2f}{cpu[workers]:8.2f}{one / wall:8.2f}{more}")
    missed += ["speed"] if one / two < SPEED else []
    print(f"missed: {', '.join(missed)}" if missed else "all targets met")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
