"""Fill in what records lack: golden numbers, data at ``small``, and data of every control. Resumable, cheapest first.

    .venv/bin/python bench/records.py [--only TEXT] [--size SIZE] [--control NAME] [--out DIR] [--longest SECONDS]
                                      [--golden] [--again]

An entry of another ``VERSION``, or of a control that measures something else, is measured anew. With ``--out`` the
cells are kept, and those that ``icl run`` left in that directory, on another machine perhaps, are taken. With
``--golden`` the golden numbers are measured anew, as all are in one run where the platform changes. With
``--again`` nothing is measured: the data that are there are judged by the checks as they are now.
"""

import argparse
import math
import sys
import tempfile

import jax

from icllab.core.errors import IclError
from icllab.lab import recording, records, registry
from icllab.lab.claim import SIZES
from icllab.lab.job import Request
from icllab.lab.run import compute, read
from icllab.training import cache_compilations, compile_quickly


def missing(name, size):
    """The groups of data that a claim's record lacks: golden numbers, its data, and those of its simulated controls."""
    claim, present, entries = registry.load(name), records.groups(name), records.read(name)
    size = size or next(size for size in claim.sizes if size != SIZES[0])
    worlds = [None, *(control for control, world in claim.controls.items() if world.measured)]
    for group, control in [(SIZES[0], None), *((size, world) for world in worlds)]:
        entry = entries.get(group, {})
        entry = entry.get("controls", {}).get(control, {}) if control else entry
        changed = control is not None and entry.get("definition") != records.definition(claim.controls[control])
        if records.group(group, control) not in present or entry.get("measure") != claim.version or changed:
            yield group, control


def measure(name, size, control, out=None):
    """Measure one group and note it; golden numbers are compiled as quickly as those of the tests."""
    jax.config.update("jax_disable_most_optimizations", size == SIZES[0])
    with tempfile.TemporaryDirectory() as scratch:
        request = Request(name, size, control=control, out=scratch if out is None or size == SIZES[0] else out)
        compute(request)
        dataset, _ = read(request, theory=False)
        recording.write(registry.load(name), size, control, dataset)


def main():
    """Print a line for each group; the exit status is 1 where one could not be measured."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", default="", help="claims whose name has this text")
    options.add_argument("--size", choices=SIZES[1:], help="the first of a claim that is judged, unless said")
    options.add_argument("--control", help="this control alone")
    options.add_argument("--out", help="where cells are kept, and taken from")
    options.add_argument("--longest", type=float, default=math.inf, help="seconds of a run that is repeated")
    options.add_argument("--golden", action="store_true", help="measure the golden numbers anew, and nothing else")
    options.add_argument("--again", action="store_true", help="judge what is recorded; measure nothing")
    options = options.parse_args()
    compile_quickly()
    cache_compilations()
    names = [name for name in registry.claims() if options.only in name]
    seconds = {name: records.read(name).get("small", {}).get("seconds", math.inf) for name in names}
    status = 0
    for name in sorted((name for name in names if seconds[name] <= options.longest), key=lambda name: seconds[name]):
        if options.again:
            recording.judge_again(registry.load(name))
            continue
        for size, control in [(SIZES[0], None)] if options.golden else list(missing(name, options.size)):
            if options.control not in (None, control):
                continue
            try:
                measure(name, size, control, options.out)
            except IclError as error:
                print(f"{name} {size} {control or ''}: {error}", flush=True)
                status = 1
            else:
                print(f"{name} {records.group(size, control)}: recorded", flush=True)
            jax.clear_caches()
    return status


if __name__ == "__main__":
    sys.exit(main())
