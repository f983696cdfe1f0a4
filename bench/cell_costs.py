"""What a cell of every claim costs, by one law for the programs it runs, beside the CPU seconds they take.

    .venv/bin/python bench/cell_costs.py [--only TEXT] [--report FILE]

The first cell of each claim is measured at ``smoke``. Those that do not train by ``icl.fit`` are measured at two more
sizes: ``small`` with two seeds, and that with one number doubled (``DOUBLED``; the seeds, if nothing is named there).
All XLA programs that run are counted as they run (``programs.py``), loops by their trips. The law

    seconds = programs * e + kernels * c + bytes / b + products / r + elementwise / s + transcendentals / t + lapack / l

has seven constants for the machine, fitted to one half of the claims and tested on the other (``laws.py``). It is of
the CPU seconds within programs, of one thread. What a cell takes besides is told, not modelled: compilation, and Python
with NumPy and SciPy.
"""

import sys
import time

import laws
from programs import COUNTED, check, watched

SIZES = ("smoke", "small", "doubled")
PATIENCE = 300  # CPU seconds of a row
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
CHOSEN = {  # of `small`, where its first cell takes minutes, runs next to no program, or is the one of `smoke`
    "context_map/simplest_model": {"dim": 4},
    "descent/functional_gd": {"labels": "linear", "training": "steps"},
    "induction/ladder": {"rung": "even"},
    "routing/recognised_in_weights": {"context": "a", "multiple": 1},
    "singular/additivity": {"draws": 2400},
    "singular/exact_coefficients": {"draws": 4000},
    "singular/toy_superposition": {"polygon": "5"},
}
DOUBLED = {
    "asymptotics/context_length": {"dim": 20},
    "asymptotics/double_descent": {"dim": 20},
    "asymptotics/gamma_inverts_the_covariance": {"dim": 40},
    "asymptotics/ridge_tames_the_peak": {"dim": 20},
    "asymptotics/task_alignment": {"dim": 40},
    "asymptotics/task_diversity": {"dim": 20},
    "context_map/exact_family": {"hidden": 2},
    "context_map/simplest_model": {"dim": 8},
    "descent/functional_gd": {"fitting": 1536},
    "descent/softmax_depth_limit": {"dim": 10},
    "induction/cliff": {"pairs": 16},
    "induction/ladder": {"pairs": 8},
    "routing/blind_detection": {"contexts": 8},
    "routing/blind_in_networks": {"batch": 64},
    "routing/peaks_in_networks": {"batch": 128},
    "routing/recognised_in_weights": {"directions": 8},
    "routing/degeneracy_and_the_sign": {"particles": 2000},
    "routing/susceptibility_peaks": {"points": 161},
    "singular/additivity": {"draws": 4800},
    "singular/deformation": {"particles": 800},
    "singular/exact_coefficients": {"draws": 8000},
    "singular/linear_attention_is_reduced_rank": {"draws": 4000},
    "singular/phase_selection": {"particles": 800},
    "singular/toy_superposition": {"warm_up": 600},
}


def cell(claim, size):
    """A function that measures the first cell of a claim at a size; None where it has none."""
    import jax

    from icllab.experiments import registry

    experiment = registry.load(claim)
    of = "small" if size != "smoke" and "small" in experiment.sizes else "smoke"
    experiment = experiment.at(of)
    chosen, seeds = {}, None
    if size != "smoke":
        chosen, seeds = dict(CHOSEN.get(claim, {})), FEW.get(claim, 2)
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


def line(row):
    """The columns of a row."""
    operations = sum(row[name] for name in COUNTED[3:])
    counts = f"{row['programs']:10.0f}{row['kernels']:10.0f}{row['bytes'] / 1e9:10.3f}{operations / 1e9:10.3f}"
    return f"{counts}{row['seconds']:10.3f}"


def main():
    """Print the tables; the exit status says whether the law was off where it was tested."""
    claims, report = laws.begun()
    check()
    rows = laws.rows(measured, claims, SIZES[:1], PATIENCE, report)
    training = {row["claim"] for row in rows if row["fits"]}
    rows += laws.rows(measured, [one for one in claims if one not in training], SIZES[1:], PATIENCE, report)
    rows.sort(key=lambda row: (row["claim"], SIZES.index(row["size"])))
    print(f"{'claim':48}{'size':>8}{'cell s':>9}{'compile':>8}{'programs':>9}{'training':>9}")
    for row in rows:
        parts = [row[name] / row["cell"] for name in ("compilation", "seconds", "training")]
        shares = f"{row['cell']:9.2f}{parts[0]:8.0%}{parts[1]:9.0%}{parts[2]:9.0%}"
        print(f"{row['claim']:48}{row['size']:>8}{shares}")
    rows = [row for row in rows if not row["unknown"] and row["seconds"] > SHORT]
    head = "".join(f"{name:>10}" for name in ("programs", "kernels", "GB", "GFLOP", "CPU s"))
    return laws.missed(rows, COUNTED, head, line)


if __name__ == "__main__":
    sys.exit(main())
