"""Seconds of recorded runs, measured again on this machine, beside the estimates of ``icllab.lab.cost``.

    .venv/bin/python bench/cost.py [--only TEXT ...] [--size SIZE] [--longest SECONDS]

A line for each claim, as it ends; at the end the number of runs within the factor that ``icllab.lab.cost`` states.
"""

import argparse
import math
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
    ratios = []
    for name in registry.claims():
        seconds = records.read(name).get(options.size, {}).get("seconds", math.inf)
        if seconds > options.longest or not any(text in name for text in options.only):
            continue
        with tempfile.TemporaryDirectory() as out:
            request = Request(name, options.size, out=out)
            predicted = cost.estimate(request).seconds
            compute(request)
            here = float(read(request, theory=False)[0].attrs["cpu_seconds"])
        ratios.append(here / predicted)
        print(f"{name}: {here:.0f} s, predicted {predicted:.0f}, ratio {ratios[-1]:.2f}", flush=True)
    inside = sum(1 / cost.FACTOR <= ratio <= cost.FACTOR for ratio in ratios)
    print(f"{inside} of {len(ratios)} within a factor of {cost.FACTOR:g}")


if __name__ == "__main__":
    main()
