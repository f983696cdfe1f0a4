"""What a cell of every claim costs, by one law for the programs it runs, beside the CPU seconds they take.

    .venv/bin/python bench/cell_costs.py [--only TEXT] [--report FILE]

The first cell of each claim is measured at ``smoke``. Those that do not train by ``icl.fit`` are measured at two more
sizes: ``small`` with two seeds, and that with one number doubled (``DOUBLED``; the seeds, if nothing is named there).
All XLA programs that run are counted as they run (``programs.py``), loops by their trips. The law

    seconds = programs * e + kernels * c + bytes / b + products / r + elementwise / s + transcendentals / t + lapack / l

has seven constants for the machine. They are fitted to every other claim, by least squares of relative errors, and the
ratios of the remaining claims test them. It is of the CPU seconds within programs, of one thread. What a cell takes
besides is told, not modelled: compilation, and Python with NumPy and SciPy. Exit status 1 if a tested row is off by
more than a factor of two.
"""

import argparse
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import machine
from programs import COUNTED, check, watched

SIZES = ("smoke", "small", "doubled")
WITHIN = 2.0
PATIENCE = 100  # seconds of a row
SHORT = 2e-3  # seconds within programs of a row too short to be timed
FEW = {  # seeds, where they are not two
    "asymptotics/context_length": 48,
    "asymptotics/double_descent": 48,
    "asymptotics/gamma_inverts_the_covariance": 48,
    "asymptotics/real_table": 10,
    "asymptotics/ridge_tames_the_peak": 48,
    "asymptotics/task_alignment": 48,
    "asymptotics/task_diversity": 48,
    "descent/softmax_depth_limit": 8,
}
SMALLER = {"descent/functional_gd": {"steps": 100}}  # than `small`, where a cell takes minutes
DOUBLED = {
    "asymptotics/context_length": {"dim": 20},
    "asymptotics/double_descent": {"dim": 20},
    "asymptotics/gamma_inverts_the_covariance": {"dim": 40},
    "asymptotics/ridge_tames_the_peak": {"dim": 20},
    "asymptotics/task_alignment": {"dim": 40},
    "asymptotics/task_diversity": {"dim": 20},
    "context_map/exact_family": {"hidden": 2},
    "descent/functional_gd": {"steps": 200},
    "descent/softmax_depth_limit": {"dim": 10},
    "induction/cliff": {"pairs": 16},
    "routing/degeneracy_and_the_sign": {"particles": 2000},
    "routing/susceptibility_peaks": {"points": 162},
    "singular/additivity": {"draws": 32000},
    "singular/deformation": {"particles": 800},
    "singular/exact_coefficients": {"draws": 96000},
    "singular/linear_attention_is_reduced_rank": {"draws": 4000},
    "singular/phase_selection": {"particles": 800},
}


def cell(claim, size):
    """A function that measures the first cell of a claim at a size; None where it has none."""
    import jax

    from icllab.experiments import registry

    experiment, of = registry.load(claim), "smoke" if size == "smoke" else "small"
    if of not in experiment.sizes:
        return None
    experiment = experiment.at(of)
    chosen, seeds = {}, None
    if size != "smoke":
        chosen, seeds = dict(SMALLER.get(claim, {})), FEW.get(claim, 2)
        if size == "doubled":
            chosen |= DOUBLED.get(claim, {})
            seeds *= 1 if claim in DOUBLED else 2
    chosen = {name: [value] for name, value in chosen.items()}
    experiment = experiment.with_fixed(chosen)
    grid = experiment.grid(of, {name: value for name, value in chosen.items() if name not in experiment.fixed})
    traced = dict(grid.traced)
    if size == "doubled" and "seed" not in traced and claim not in DOUBLED:
        return None
    if "seed" in traced and (seeds or grid.block):
        traced["seed"] = traced["seed"][: seeds or grid.block]
    point = experiment.point(next(iter(grid.cells())), traced)

    def run():
        with jax.enable_x64(experiment.precision == "float64"):
            experiment.measure(point, key=jax.random.key(0))

    return run


def measured(claim, size):
    """Counts, and CPU seconds: within programs, of compilation, of training, and in all."""
    from icllab.training import fitting

    run, train, training = cell(claim, size), fitting.train, [0.0, 0]
    if run is None:
        return {}

    def timed(*arguments, **options):
        begun, compiled = time.process_time(), watch.compiling
        try:
            return train(*arguments, **options)
        finally:
            training[0] += time.process_time() - begun - (watch.compiling - compiled)
            training[1] += 1

    fitting.train = timed
    try:
        with watched() as watch:
            begun = time.process_time()
            run()
            took = time.process_time() - begun
    finally:
        fitting.train = train
    row = {"seconds": watch.seconds, "compilation": watch.compiling, "cell": took, "fits": training[1]}
    row["training"] = training[0]
    counts, unknown = watch.counts()
    if unknown:
        with watched(report=True) as watch:
            run()
        counts, unknown = watch.counts()
    return row | counts | {"unknown": unknown}


def law(rows):
    """Seconds of one of each of ``COUNTED``, none negative."""
    import numpy as np
    from scipy.optimize import nnls

    parts = np.array([[row[name] for name in COUNTED] for row in rows])
    relative = parts / np.array([row["seconds"] for row in rows])[:, None]
    size = np.maximum(relative.max(axis=0), 1e-30)
    return nnls(relative / size, np.ones(len(rows)))[0] / size


def rows_of(only, report):
    """A row for every claim and size; those that the report has are not measured again."""
    from icllab.experiments import registry

    known = {}
    if report is not None and report.exists():
        known = {(row["claim"], row["size"]): row for row in map(json.loads, report.open())}
    for claim in registry.claims():
        fits = False
        for size in SIZES if only in claim else ():
            row = known.get((claim, size))
            if row is None and not fits:
                row = {"claim": claim, "size": size}
                signal.alarm(PATIENCE)
                try:
                    row |= measured(claim, size)
                except TimeoutError:
                    row["missing"] = f"not counted within {PATIENCE} s"
                except Exception as error:  # a failing claim is one row less
                    row["missing"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                finally:
                    signal.alarm(0)
                if report is not None:
                    with report.open("a") as stream:
                        stream.write(json.dumps(row) + "\n")
            if row is not None:
                fits = fits or bool(row.get("fits"))
                yield row


def main():
    """Print the tables; the exit status says whether the law was off where it was tested."""
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
    check()
    rows = list(rows_of(asked.only, asked.report))
    for row in rows:
        if "missing" in row:
            print(f"{row['claim']} {row['size']}: {row['missing']}")
    rows = [row for row in rows if "seconds" in row]
    print(f"{'claim':48}{'size':>8}{'cell s':>9}{'compile':>8}{'programs':>9}{'training':>9}")
    for row in rows:
        parts = [row[name] / row["cell"] for name in ("compilation", "seconds", "training")]
        shares = f"{row['cell']:9.2f}{parts[0]:8.0%}{parts[1]:9.0%}{parts[2]:9.0%}"
        print(f"{row['claim']:48}{row['size']:>8}{shares}")
    rows = [row for row in rows if not row["unknown"] and row["seconds"] > SHORT]
    names = sorted({row["claim"] for row in rows})
    fitted = set(names[::2])
    constants = law([row for row in rows if row["claim"] in fitted])
    print(", ".join(f"{1e9 * one:.3g} ns of {name}" for one, name in zip(constants, COUNTED, strict=True)))
    heads = ("programs", "kernels", "GB", "GFLOP", "law s", "CPU s", "ratio")
    print(f"{'claim':48}{'size':>8}{''.join(f'{head:>10}' for head in heads)}")
    off = []
    for row in rows:
        model = sum(one * row[name] for one, name in zip(constants, COUNTED, strict=True))
        ratio, operations = model / row["seconds"], sum(row[name] for name in COUNTED[3:])
        counts = f"{row['programs']:10.0f}{row['kernels']:10.0f}{row['bytes'] / 1e9:10.3f}{operations / 1e9:10.3f}"
        times = f"{model:10.3f}{row['seconds']:10.3f}{ratio:10.2f}"
        print(f"{row['claim']:48}{row['size']:>8}{counts}{times}{'  fitted' * (row['claim'] in fitted)}")
        off += [f"{row['claim']} {row['size']}"] * (row["claim"] not in fitted and not 1 / WITHIN <= ratio <= WITHIN)
    print(f"off by more than {WITHIN:g}: {', '.join(off)}" if off else f"all within a factor of {WITHIN:g}")
    return bool(off)


if __name__ == "__main__":
    sys.exit(main())
