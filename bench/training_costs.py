"""What a training step of every claim that trains costs, by one law for all of them, beside the CPU seconds it takes.

    .venv/bin/python bench/training_costs.py [--only TEXT] [--report FILE]

Of each claim the first cell's first call of ``icl.fit`` is taken, with one seed, at three sizes: ``smoke``, ``small``,
and ``small`` with twice the batch. Its step is compiled as a run's is, and XLA counts what is in it: operations, bytes
and kernels, those of loops inside a step once. The rounds of random numbers are such a loop, so the normal numbers that
a step draws are counted apart. Seconds are CPU time of one thread, the least of three tries. The law

    seconds = kernels * c + bytes / b + operations / r + normals * d

has four constants for the machine. They are fitted to every other claim, by least squares of relative errors, and the
ratios of the remaining claims test them. Exit status 1 if one of those is off by more than a factor of two.
"""

import argparse
import importlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import machine

SIZES = ("smoke", "small", "twice the batch")
WITHIN = 2.0
PATIENCE = 180  # seconds for what a cell does before it trains, and compilation
COUNTED = ("kernels", "bytes", "operations", "normals")
STRETCH = 0.5  # seconds of steps that are timed
QUIET = {"parameter", "tuple", "get-tuple-element", "constant", "bitcast"}


class Reached(BaseException):
    """What a cell would train; not an error that a claim may handle."""


def planned(claim, size):
    """The plan of the first training of a cell, and its precision; None where nothing is trained."""
    import jax

    from icllab.experiments import registry
    from icllab.training import fitting

    def stop(plan, **_):
        raise Reached(plan)

    experiment, of = registry.load(claim), "smoke" if size == "smoke" else "small"
    if of not in experiment.sizes or (size == SIZES[2] and "batch" not in experiment.fixed):
        return None
    experiment = experiment.at(of)
    if size == SIZES[2]:
        experiment = experiment.with_fixed({"batch": [2 * experiment.fixed["batch"]]})
    grid = experiment.grid(of)
    traced = dict(grid.traced) | ({"seed": (0,)} if "seed" in grid.traced else {})
    point, train = experiment.point(next(iter(grid.cells())), traced), fitting.train
    fitting.train = stop
    try:
        with jax.enable_x64(experiment.precision == "float64"):
            experiment.measure(point, key=jax.random.key(0))
    except Reached as reached:
        return reached.args[0], experiment.precision
    finally:
        fitting.train = train
    return None


def counted(plan):
    """Operations, bytes and kernels of a step of the first member, and the CPU seconds it takes."""
    import jax
    import jax.numpy as jnp

    from icllab.training.loop import advanced, started

    state = started(plan.program, plan.own, plan.params)
    own, state = jax.tree.map(lambda leaf: leaf[:1], (plan.own, state))
    limit = jnp.full((1,), 2**31 - 1, jnp.int32)
    arguments = plan.program, "map", own, state, jnp.int32(0)
    traced = jax.make_jaxpr(lambda last: advanced(*arguments, last, limit)[1])(jnp.int32(1))
    program = advanced.lower(*arguments, jnp.int32(1), limit).compile()
    inside = program.compiled.cost_analysis()
    inside = inside[0] if isinstance(inside, list) else inside

    def seconds(steps):
        begun = time.process_time()
        jax.block_until_ready(program(*arguments, jnp.int32(steps), limit))
        return (time.process_time() - begun) / steps

    seconds(1)
    steps = int(min(max(STRETCH / max(seconds(2), 1e-6), 2), 500))
    took = min(seconds(steps) for _ in range(3))
    return {
        "operations": inside["flops"],
        "bytes": inside["bytes accessed"],
        "kernels": kernels(program.compiled.as_text()),
        "normals": normals(traced.jaxpr),
        "seconds": took,
    }


def normals(jaxpr):
    """Normal random numbers of a program, those of loops once."""
    import jax.extend

    inside = [one for equation in jaxpr.eqns for one in jax.extend.core.jaxprs_in_params(equation.params)]
    own = (equation.outvars[0].aval.size for equation in jaxpr.eqns if equation.primitive.name == "erf_inv")
    return int(sum(own)) + sum(map(normals, inside))


def kernels(text):
    """Instructions of a compiled program that are run one by one: those inside fusions are not."""
    count, alone = 0, False
    for line in text.splitlines():
        if line and not line[0].isspace() and line.rstrip().endswith("{"):
            alone = "fused" not in line.split("(")[0] and "region" not in line.split("(")[0]
        found = re.match(r"\s+(?:ROOT )?%?\S+ = .*? ([a-z\-]+)\(", line)
        count += bool(found and alone and found[1] not in QUIET)
    return count


def law(rows):
    """c, 1 / b, 1 / r and d, none negative."""
    import numpy as np
    from scipy.optimize import nnls

    parts = np.array([[row[name] for name in COUNTED] for row in rows])
    relative = parts / np.array([row["seconds"] for row in rows])[:, None]
    size = relative.max(axis=0)
    return nnls(relative / size, np.ones(len(rows)))[0] / size


def rows_of(only, report):
    """A row for every claim and size; those that the report has are not measured again."""
    import jax

    from icllab.core.errors import IclError
    from icllab.experiments import registry

    known = {}
    if report is not None and report.exists():
        known = {(row["claim"], row["size"]): row for row in map(json.loads, report.open())}
    for claim in registry.claims():
        jax.clear_caches()  # every compiled program holds mappings, of which Linux allows a process 65530
        for size in SIZES if only in claim else ():
            row = known.get((claim, size))
            if row is None:
                row, start = {"claim": claim, "size": size}, time.monotonic()
                signal.alarm(PATIENCE)
                try:
                    found = planned(claim, size)
                    if found is not None:
                        with jax.enable_x64(found[1] == "float64"):
                            row |= counted(found[0])
                except TimeoutError:
                    row["missing"] = f"does not train within {round(time.monotonic() - start)} s"
                except IclError as error:  # of a claim that one seed is too few for
                    row["missing"] = str(error)
                finally:
                    signal.alarm(0)
                if report is not None:
                    with report.open("a") as stream:
                        stream.write(json.dumps(row) + "\n")
            yield row


def main():
    """Print the table; the exit status says whether the law was off where it was tested."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="text in the name of a claim")
    parser.add_argument("--report", type=Path, help="a file of JSON lines; what it has is not measured again")
    asked = parser.parse_args()
    os.environ |= machine.environment(1)
    importlib.import_module("icllab.training").cache_compilations()

    def late(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    print(machine.described("jax", "jaxlib"))
    rows = list(rows_of(asked.only, asked.report))
    for row in rows:
        if "missing" in row:
            print(f"{row['claim']} {row['size']}: {row['missing']}")
    rows = [row for row in rows if "seconds" in row]
    names = sorted({row["claim"] for row in rows})
    fitted = set(names[::2])
    constants = law([row for row in rows if row["claim"] in fitted])
    print(", ".join(f"{1e9 * one:.3g} ns of {name}" for one, name in zip(constants, COUNTED, strict=True)))
    heads = ("MFLOP", "MB", "kernels", "normals", "law ms", "CPU ms", "ratio")
    print(f"{'claim':42}{'size':>16}{''.join(f'{head:>9}' for head in heads)}")
    off = []
    for row in rows:
        model = sum(one * row[name] for one, name in zip(constants, COUNTED, strict=True))
        ratio = model / row["seconds"]
        counts = f"{row['operations'] / 1e6:9.2f}{row['bytes'] / 1e6:9.2f}{row['kernels']:9d}{row['normals']:9d}"
        times = f"{1e3 * model:9.3f}{1e3 * row['seconds']:9.3f}{ratio:9.2f}"
        print(f"{row['claim']:42}{row['size']:>16}{counts}{times}{'  fitted' * (row['claim'] in fitted)}")
        off += [f"{row['claim']} {row['size']}"] * (row["claim"] not in fitted and not 1 / WITHIN <= ratio <= WITHIN)
    print(f"off by more than {WITHIN:g}: {', '.join(off)}" if off else f"all within a factor of {WITHIN:g}")
    return bool(off)


if __name__ == "__main__":
    sys.exit(main())
