"""Measure the cells of a table of the arena that its record lacks: the training part, and then the held-out one.

    .venv/bin/python bench/arena.py TABLE [--held-out] [--theories FOLDER] [--seconds SECONDS]

Every cell is written when it is measured; a run that was interrupted, or that stops after so many seconds, goes on
when it is started again. The held-out part is measured only if every theory of the table, and of a folder of your
own, has been registered as it is now; the record keeps the SHA-256 of what is registered.
"""

import argparse
import sys
import time

import numpy as np

from icllab.arena import registry
from icllab.core.errors import InputError
from icllab.training import cache_compilations


def missing(table, held_out):
    """Indices of the cells of one part that are not measured."""
    dataset, flags = registry.record(table), registry.phenomenon(table).is_held_out
    return [i for i in np.flatnonzero(flags == held_out).tolist() if not np.isfinite(dataset["value"].values[i]).all()]


def require_registered(table, own=None):
    """Raise unless every theory is registered as it is now."""
    entries, at = registry.registered(table, own), (registry.phenomenon(table), registry.record(table))
    agreements = {n: registry.agreement(x, entries.get(n, []), *at) for n, x in registry.theories(table, own).items()}
    if lacking := [name for name, registration in agreements.items() if isinstance(registration, str)]:
        raise InputError(f"--held-out: expected theories that are registered, these are not: {', '.join(lacking)}")


def main():
    """Print a line for each cell."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("table")
    options.add_argument("--held-out", action="store_true", help="the held-out part, once theories are registered")
    options.add_argument(
        "--theories", metavar="FOLDER", help="with theories of your own, which have to be registered too"
    )
    options.add_argument("--seconds", type=float, default=np.inf, help="after which no further cell is begun")
    options = options.parse_args()
    cache_compilations()
    phenomenon, began = registry.phenomenon(options.table), time.monotonic()
    if options.held_out:
        require_registered(options.table, options.theories)
    for i in missing(options.table, options.held_out):
        if time.monotonic() - began > options.seconds:
            return 3
        cell, start = phenomenon.cells[i], time.monotonic()
        seeds = [phenomenon.measurement_seed(cell, seed) for seed in range(phenomenon.seeds)]
        measurements = registry.measure(options.table)(cell, seeds)
        dataset = registry.record(options.table)
        dataset["value"].values[i], dataset["censored"].values[i] = np.array(measurements, float).T
        registry.save(options.table, dataset, options.theories)
        print(f"{cell}: {measurements} in {time.monotonic() - start:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
