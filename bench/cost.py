"""How far ``icl cost`` is off: predicted and measured core-seconds of recorded runs, measured again on this machine.

    .venv/bin/python bench/cost.py [--only TEXT ...] [--size SIZE] [--longest SECONDS]

A line for each claim, as it ends; at the end the mean and the standard deviation of ln(measured / predicted), which
``icllab.lab.cost`` states, and how many measurements lie in their interval.
"""

import argparse
import math
import statistics
import tempfile

from icllab.lab import cost, records, registry
from icllab.lab.job import Request
from icllab.lab.run import compute, read


def main():
    """Print the table."""
    options = argparse.ArgumentParser()
    options.add_argument("--only", nargs="*", default=[""], help="claims whose name has one of these texts")
    options.add_argument("--size", default="small")
    options.add_argument("--longest", type=float, default=100.0, help="seconds of a recorded run that is measured")
    options = options.parse_args()
    errors, unmeasured, inside = [], [], 0
    for name in registry.claims():
        seconds = records.read(name).get(options.size, {}).get("seconds", math.inf)
        if seconds > options.longest or not any(text in name for text in options.only):
            continue
        with tempfile.TemporaryDirectory() as out:
            request = Request(name, options.size, out=out)
            record, smoke = cost.basis(request), cost.measure_smoke(request)
            predicted = cost.seconds_here(record, smoke)
            compute(request)
            here = float(read(request, theory=False)[0].attrs["cpu_seconds"])
        low, high = predicted.interval
        inside += low <= here <= high
        errors += [math.log(here / predicted.value)] if smoke else []
        unmeasured.append(math.log(here / record.seconds.value))
        measured = f"smoke {smoke.seconds:.1f} s of {record.smoke} s" if smoke else "smoke not measured"
        print(
            f"{name}: {here:.0f} s, predicted {predicted.value:.0f} ({low:.0f} to {high:.0f}), {measured}", flush=True
        )
    for title, values in (("with the smoke", errors), ("with the record alone", unmeasured)):
        if len(values) > 1:
            mean, deviation = statistics.mean(values), statistics.stdev(values)
            print(
                f"ln(measured / predicted) {title}: {mean:+.2f}, standard deviation {deviation:.2f}, {len(values)} runs"
            )
    print(f"{inside} of {len(unmeasured)} in the interval")


if __name__ == "__main__":
    main()
