"""What a training step of every claim that trains costs, by one law for all of them, beside the CPU seconds it takes.

    .venv/bin/python bench/training_costs.py [--only TEXT] [--report FILE]

Of each claim the first cell's first call of ``icl.fit`` is taken, with one seed, at three sizes: ``smoke``, ``small``,
and ``small`` with twice the batch. Its step is compiled as a run's is, and XLA counts what is in it: operations, bytes
and kernels, those of loops inside a step once. The rounds of random numbers are such a loop, so the normal numbers that
a step draws are counted apart. Seconds are CPU time of one thread, the least of three tries. The law

    seconds = kernels * c + bytes / b + operations / r + normals * d

has four constants for the machine, fitted to one half of the claims and tested on the other (``laws.py``).
"""

import re
import sys
import time

import laws

SIZES = ("smoke", "small", "twice the batch")
PATIENCE = 180  # CPU seconds for what a cell does before it trains, and compilation
COUNTED = ("kernels", "bytes", "operations", "normals")
STRETCH = 0.5  # seconds of steps that are timed
QUIET = {"parameter", "tuple", "get-tuple-element", "constant", "bitcast"}


class Reached(BaseException):
    """What a cell would train; not an error that a claim may handle."""


def planned(claim, size):
    """The plan of the first training of a cell, and its precision; None where nothing is trained."""
    import jax

    from icllab.experiments import registry

    experiment, of = registry.load(claim), "smoke" if size == "smoke" else "small"
    if of not in experiment.sizes or (size == SIZES[2] and "batch" not in experiment.fixed):
        return None
    experiment = experiment.at(of)
    if size == SIZES[2]:
        experiment = experiment.with_fixed({"batch": [2 * experiment.fixed["batch"]]})
    grid = experiment.grid(of)
    traced = dict(grid.traced) | ({"seed": (0,)} if "seed" in grid.traced else {})
    point = experiment.point(next(iter(grid.cells())), traced)
    with jax.enable_x64(experiment.precision == "float64"):
        plan = first_plan(lambda: experiment.measure(point, key=jax.random.key(0)))
    return None if plan is None else (plan, experiment.precision)


def first_plan(call):
    """The plan of the first training that ``call`` would begin; None where it begins none."""
    from icllab.training import fitting

    def stop(plan, **_):
        raise Reached(plan)

    train, fitting.train = fitting.train, stop
    try:
        call()
    except Reached as reached:
        return reached.args[0]
    finally:
        fitting.train = train
    return None


def measured(claim, size):
    """What a step of the claim's first training has in it; nothing where it does not train."""
    import jax

    found = planned(claim, size)
    if found is None:
        return {}
    with jax.enable_x64(found[1] == "float64"):
        return counted(found[0])


def counted(plan):
    """Operations, bytes and kernels of a step of the first member, and the CPU seconds it takes."""
    import jax

    program, jaxpr, run = loop_of(plan)
    inside = program.cost_analysis()
    inside = inside[0] if isinstance(inside, list) else inside

    def seconds(steps):
        begun = time.process_time()
        jax.block_until_ready(run(steps))
        return (time.process_time() - begun) / steps

    seconds(1)
    steps = int(min(max(STRETCH / max(seconds(2), 1e-6), 2), 500))
    took = min(seconds(steps) for _ in range(3))
    return {
        "operations": inside["flops"],
        "bytes": inside["bytes accessed"],
        "kernels": kernels(program.as_text()),
        "normals": normals(jaxpr),
        "seconds": took,
    }


def loop_of(plan):
    """The compiled loop of a plan's first member, what it was traced to, and ``run(steps)``."""
    import jax
    import jax.numpy as jnp

    from icllab.training.loop import advanced, started

    state = started(plan.program, plan.own, plan.params)
    own, state = jax.tree.map(lambda leaf: leaf[:1], (plan.own, state))
    limit = jnp.full((1,), 2**31 - 1, jnp.int32)
    arguments = plan.program, "map", own, state, jnp.int32(0)
    traced = jax.make_jaxpr(lambda last: advanced(*arguments, last, limit)[1])(jnp.int32(1))
    program = advanced.lower(*arguments, jnp.int32(1), limit).compile()
    return program.compiled, traced.jaxpr, lambda steps: program(*arguments, jnp.int32(steps), limit)


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


def line(row):
    """The columns of a row."""
    counts = f"{row['operations'] / 1e6:9.2f}{row['bytes'] / 1e6:9.2f}{row['kernels']:9d}{row['normals']:9d}"
    return f"{counts}{1e3 * row['seconds']:9.3f}"


def main():
    """Print the table; the exit status says whether the law was off where it was tested."""
    claims, report = laws.begun()
    rows = laws.rows(measured, claims, SIZES, PATIENCE, report)
    head = "".join(f"{name:>9}" for name in ("MFLOP", "MB", "kernels", "normals", "CPU ms"))
    return laws.missed(rows, COUNTED, head, line)


if __name__ == "__main__":
    sys.exit(main())
