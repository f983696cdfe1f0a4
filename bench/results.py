"""How soon a store of many small cells opens as one Dataset, and in how much memory.

    .venv/bin/python bench/results.py [--cells 10000] [--few 500] [--rounds 3]

Each row is a process of its own. ``cell by cell`` opens a store of few cells, each from its own file, as after a run
that was killed; its time goes with their number. ``consolidated`` opens the one file that a finished run leaves beside
its cells, of few and of many. ``flipped bit`` has that file damaged, and is to read the cells. Seconds are wall time
without imports; memory is the largest resident size of the process, and beside it that before the store is opened.

Exit status 1 if a target is missed, or if rows of one store give other bits.
"""

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine

CLAIM = '''
"""Cells that a benchmark wrote."""

from icllab.experiments.experiment import Control, Experiment


def measure(point, *, key):
    return {"icl_error": (("tau", "seed"), [[0.5] * len(point.seed)] * len(point.tau))}


experiment = Experiment(
    claim="Many cells are one Dataset.",
    sources=("Lu24",),
    quantities=("icl_error",),
    static=("dim", "length"),
    sizes={"small": {"dim": (1,), "length": (1,), "tau": (0.5, 1.0, 2.0), "seed": 4}},
    measure=measure,
    check=lambda dataset: [],
    figure=lambda dataset: None,
    controls={"none": Control("nothing", theory=lambda dataset: dataset)},
)
'''
TARGETS = {"seconds": 5.0, "MB": 1000.0}
TRACED = {"tau": (0.5, 1.0, 2.0), "seed": (0, 1, 2, 3)}


def request_of(folder):
    """The request for a store's cells."""
    from icllab.experiments import requests

    return requests.Request("bench/cells", "small", out=str(folder / "out"), claims=str(folder))


def written(folder, count, *, alike):
    """A store with about so many cells, and the cells: files as a run writes them, but for the fsync of each.

    HDF5 takes milliseconds to make a file. With ``alike`` one is made, and each cell's numbers and name are put into
    its bytes: what the other attributes say is then that of the first.
    """
    import numpy as np

    from icllab.core.grid import Grid
    from icllab.experiments import provenance, registry
    from icllab.experiments.results import as_cell
    from icllab.experiments.store import SCHEMA, Store, _block, packed

    (folder / "bench").mkdir(parents=True)
    (folder / "bench" / "cells.py").write_text(CLAIM)
    request = request_of(folder)
    experiment = request.experiment()
    configuration = provenance.configuration(experiment, "small", None, SCHEMA)
    store = Store.open(request.root, configuration)
    side = round(count**0.5)
    grid = Grid(static={"dim": tuple(range(side)), "length": tuple(range(-(-count // side)))}, traced=TRACED)
    store.request(grid)
    origin = {
        "claim": experiment.name,
        "sources": json.dumps(experiment.sources),
        "package_version": "0",
        "git_commit": "0" * 40,
        "sources_digest": registry.digest(request.claim, request.claims),
        "precision": experiment.precision,
        "key": experiment.key,
        "configuration": json.dumps(configuration),
        **provenance.machine(),
    }

    def named(cell):
        return json.dumps(cell, sort_keys=True).ljust(40)

    def made(i, cell):
        numbers = np.random.default_rng(i).normal(size=(3, 4))
        own = {"cell": named(cell), "seconds": 0.1234567 * (i + 1), "created": f"2026-01-01T{i:08d}"}
        return numbers, as_cell(experiment, {"icl_error": (("tau", "seed"), numbers)}, TRACED, {**origin, **own})

    name = next(iter(grid.cells()))
    numbers, first = made(0, name)
    payload, name = packed(first)[len(_block(b"")) :], named(name).encode()
    assert payload.count(numbers.tobytes()) == payload.count(name) == 1
    cells = {}
    for i, cell in enumerate(grid.cells()):
        path, (own, dataset) = store.path(cell), made(i, cell)
        content = payload.replace(numbers.tobytes(), own.tobytes()).replace(name, named(cell).encode())
        path.write_bytes(_block(content) + content if alike else packed(dataset))
        cells[path.name] = dataset
    return store, cells


def consolidated(store, cells):
    """Write the consolidated file as a run does, without reading every cell for it."""
    from icllab.experiments import consolidation
    from icllab.experiments.stacks import stacked

    versions = {name: consolidation._version(store.root / "cells" / name) for name in cells}
    begun = time.perf_counter()
    consolidation._write(store.root, stacked(cells), versions)
    return store.root / consolidation.FILE, time.perf_counter() - begun


def looked_through(store, cells):
    """CPU seconds that a run takes to see that no cell is missing and none damaged."""
    from icllab.experiments.consolidation import unfinished

    (grid,) = store.requested()
    clock = time.process_time()
    assert unfinished(store, grid, list(grid.cells())) == ([], [])
    return time.process_time() - clock


def largest():
    """The largest resident size of this process in MB; of getrusage that of its parent is a part."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    high = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    return (high[0] if high else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024


def child(folder):
    """Open the store, and print what it took and what came."""
    import icllab.experiments.consolidation
    import icllab.experiments.results  # noqa: F401
    from icllab.experiments import runner

    request = request_of(Path(folder))
    request.experiment()
    before = largest()
    begun, clock = time.perf_counter(), time.process_time()
    dataset, _ = runner.read(request)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - clock
    after = largest()
    digest = hashlib.sha256(dataset["icl_error"].values.tobytes() + json.dumps(dataset.attrs).encode()).hexdigest()
    print(json.dumps({"seconds": seconds, "cpu": cpu, "MB": after, "before": before, "bits": digest}))


def opened(folder):
    """What a process of its own took."""
    command = [sys.executable, __file__, "--child", str(folder)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main():
    """Print the table; the exit status says whether a target was missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--few", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child")
    arguments = parser.parse_args()
    if arguments.child:
        return child(arguments.child)
    os.environ |= machine.environment(1)
    print(machine.described("xarray", "h5netcdf", "numpy"))
    rows, missed = {}, []
    with tempfile.TemporaryDirectory() as name:
        few, many = Path(name, "few"), Path(name, "many")
        store, cells = written(few, arguments.few, alike=False)
        rows["cell by cell", len(cells)] = [opened(few)]
        path, _ = consolidated(store, cells)
        rows["consolidated", len(cells)] = [opened(few) for _ in range(arguments.rounds)]
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged)
        rows["flipped bit", len(cells)] = [opened(few)]
        if len({one["bits"] for found in rows.values() for one in found}) > 1:
            missed.append("the same bits")
        store, cells = written(many, arguments.cells, alike=True)
        looks = {"from their own files": looked_through(store, cells)}
        path, seconds = consolidated(store, cells)
        looks["consolidated"] = looked_through(store, cells)
        size = path.stat().st_size
        rows["consolidated", len(cells)] = [opened(many) for _ in range(arguments.rounds)]
    print(f"cells of 12 numbers; {len(cells)} of them consolidated from memory in {seconds:.1f} s, {size / 1e6:.1f} MB")
    for row, cpu in looks.items():
        print(f"looked through before a run goes on, {row}: {cpu:.1f} s of CPU time")
    print(f"{'row':14}{'cells':>7}{'median s':>10}{'CPU s':>8}{'asked':>7}{'MB':>7}{'before':>8}{'asked':>7}")
    for (row, count), found in rows.items():
        median = {kind: statistics.median(one[kind] for one in found) for kind in ("seconds", "cpu", "MB", "before")}
        judged = row == "consolidated"
        asked = [f"{TARGETS[kind]:.0f}" if judged else "" for kind in ("seconds", "MB")]
        print(
            f"{row:14}{count:7d}{median['seconds']:10.2f}{median['cpu']:8.2f}{asked[0]:>7}"
            f"{median['MB']:7.0f}{median['before']:8.0f}{asked[1]:>7}"
        )
        missed += [f"{row}, {kind}" for kind in TARGETS if judged and median[kind] > TARGETS[kind]]
    print(f"missed: {', '.join(missed)}" if missed else "all targets met")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
