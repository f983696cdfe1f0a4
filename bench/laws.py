"""What the benches of costs share: rows of counts for every claim, a report that keeps them, and the test of one law.

The law is that seconds are a sum of counts, each times a constant of the machine that is not negative. The constants
are fitted to every other claim, and the remaining claims test them; then the halves are swapped, which tells how
closely the constants are known.
"""

import argparse
import itertools
import json
import os
import signal
import time
from pathlib import Path

import machine

WITHIN = 2.0


def begun():
    """The claims and the path of a report that the command line names; one thread, compilations cached."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="text in the name of a claim")
    parser.add_argument("--report", type=Path, help="a file of JSON lines; what it has is not measured again")
    asked = parser.parse_args()
    os.environ |= machine.environment(1)
    from icllab.experiments import registry
    from icllab.training import cache_compilations

    cache_compilations()
    print(machine.described("jax", "jaxlib"))
    return [claim for claim in registry.claims() if asked.only in claim], asked.report


def rows(measured, claims, sizes, patience, report):
    """A row for every claim and size that has one; those that the report has are not measured again.

    ``measured(claim, size)`` gives what a row has, or nothing. A claim that fails, or takes more than ``patience``
    CPU seconds, is named on a line of its own.
    """
    import jax

    def late(*_):
        if time.process_time() > until:
            raise TimeoutError(f"not counted within {patience} CPU seconds")

    # The timer is of wall time: while one of CPU time runs, Linux reads the CPU clock by ticks.
    signal.signal(signal.SIGALRM, late)
    known = {}
    if report is not None and report.exists():
        known = {(row["claim"], row["size"]): row for row in map(json.loads, report.open())}
    found = []
    for claim, size in itertools.product(claims, sizes):
        row = known.get((claim, size))
        if row is None:
            row = {"claim": claim, "size": size}
            jax.clear_caches()  # every compiled program holds mappings, of which Linux allows a process 65530
            until = time.process_time() + patience
            signal.setitimer(signal.ITIMER_REAL, 1, 1)
            try:
                row |= measured(claim, size)
            except Exception as error:  # a failing claim is one row less
                row["missing"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            if report is not None:
                with report.open("a") as stream:
                    stream.write(json.dumps(row) + "\n")
        if "missing" in row:
            print(f"{claim} {size}: {row['missing']}")
        found += [row] if "seconds" in row else []
    return found


def fitted(rows, counted):
    """Seconds of one of each that is counted, none negative, by least squares of relative errors."""
    import numpy as np
    from scipy.optimize import nnls

    parts = np.array([[row[name] for name in counted] for row in rows])
    relative = parts / np.array([row["seconds"] for row in rows])[:, None]
    size = np.maximum(relative.max(axis=0), 1e-30)
    return nnls(relative / size, np.ones(len(rows)))[0] / size


def missed(rows, counted, head, line):
    """Print what either half of the claims foretells of the other; whether the first was off by more than ``WITHIN``.

    ``line(row)`` are the columns of a row under ``head``: what was counted, and the measured seconds.
    """
    names = sorted({row["claim"] for row in rows})
    halves = [set(half) for half in (names[::2], names[1::2]) if half]
    ratios = []
    for half, title in zip(halves, ("every other claim", "the others"), strict=False):
        constants = fitted([row for row in rows if row["claim"] in half], counted)
        law = dict(zip(counted, constants, strict=True))
        print(f"fitted to {title}: " + ", ".join(f"{1e9 * one:.3g} ns of {name}" for name, one in law.items()))
        ratios.append([sum(one * row[name] for name, one in law.items()) / row["seconds"] for row in rows])
    print(f"{'claim':48}{'size':>16}{head}{'ratio':>8}{'swapped':>8}")
    for row, *both in zip(rows, *ratios, strict=True):
        marked = [f"{one:.2f}{'*' if row['claim'] in half else ' '}" for one, half in zip(both, halves, strict=True)]
        print(f"{row['claim']:48}{row['size']:>16}{line(row)}{''.join(f'{text:>8}' for text in marked)}")
    print("*: the law was fitted to this claim")
    off = []
    for half, own, title in zip(halves, ratios, ("tested on the others", "halves swapped"), strict=False):
        tests = [(row, ratio) for row, ratio in zip(rows, own, strict=True) if row["claim"] not in half]
        off.append([f"{row['claim']} {row['size']}" for row, ratio in tests if not 1 / WITHIN <= ratio <= WITHIN])
        print(f"{title}: {len(tests) - len(off[-1])} of {len(tests)} rows within a factor of {WITHIN:g}")
        print("".join(f"  off: {name}\n" for name in off[-1]), end="")
    return bool(off and off[0])
