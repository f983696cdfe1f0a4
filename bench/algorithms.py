"""Every prefix of a prompt answered at once: our recursions against a computation for each prefix.

    python bench/algorithms.py [--quick] [--every-core]

One thread, on one core. Each problem has all its rows in one process, in turn, seven rounds after one that compiles;
medians. Ratios are of CPU seconds, which with one thread are seconds on a quiet machine. With ``--every-core`` both
sides may use all threads they can, and ratios are of wall times: only a quiet machine has something to say.

``dMMSE``: a pool of 2^15 tasks in 8 dimensions, 256 prompts of 16 examples, float32. The naive row computes, for each
prefix, the residuals of all its examples by a matrix product with the pool, a softmax, and the mean task by a
product; it works prompt by prompt, in place, in the cache, and sets the target. ``numpy, one pass`` is our algorithm in
NumPy.

``ridge``: 32 dimensions, 128 examples, 256 prompts, float32 and float64. The naive rows build the normal equations
of every prefix by a cumulative sum of outer products and solve them in one batch. ``numpy, rank-one`` is our
recursion in NumPy, all prompts at once.

Rows of one problem answer alike, or the bench says so. Exit status 1 if a target is missed.
"""

import argparse
import statistics
import sys
import time

import machine

ROUNDS = 7
TARGETS = {"dMMSE": 20.0, "ridge float32": 5.0, "ridge float64": 5.0}
OURS = {"dMMSE": "icllab, 8 prompts at a time", "ridge float32": "icllab", "ridge float64": "icllab"}
AGREE = {"dMMSE": 1e-3, "ridge float32": 1e-2, "ridge float64": 1e-9}  # largest difference of two rows


def pool_rows(tasks=2**15, dim=8, positions=17, prompts=256, noise=0.25):
    """dMMSE: name -> a function that answers all prompts."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from icllab.algorithms import DiscreteMMSE
    from icllab.core.prompt import RegressionPrompt

    rng = np.random.default_rng(0)
    pool = rng.normal(size=(tasks, dim)).astype(np.float32)
    x = rng.normal(size=(prompts, positions, dim)).astype(np.float32)
    w = pool[rng.integers(tasks, size=prompts)]
    y = (np.einsum("bpd,bd->bp", x, w) + np.sqrt(noise) * rng.normal(size=(prompts, positions))).astype(np.float32)
    rate, across = np.float32(-0.5 / noise), np.ascontiguousarray(pool.T)

    def naive():
        answers = np.empty_like(y)
        for b in range(prompts):
            for i in range(positions):
                if i:
                    residuals = x[b, :i] @ across
                    np.subtract(y[b, :i, None], residuals, out=residuals)
                    likelihood = np.einsum("ij,ij->j", residuals, residuals)
                    likelihood *= rate
                    likelihood -= likelihood.max()
                    np.exp(likelihood, out=likelihood)
                else:
                    likelihood = np.ones(tasks, np.float32)
                answers[b, i] = x[b, i] @ (likelihood @ pool) / likelihood.sum()
        return answers

    def one_pass():
        answers, likelihood = np.empty_like(y), np.empty(tasks, np.float32)
        for b in range(prompts):
            products, logarithms = x[b] @ across, np.zeros(tasks, np.float32)
            for i in range(positions):
                np.subtract(logarithms, logarithms.max(), out=likelihood)
                np.exp(likelihood, out=likelihood)
                answers[b, i] = likelihood @ products[i] / likelihood.sum()
                np.subtract(products[i], y[b, i], out=likelihood)
                np.multiply(likelihood, likelihood, out=likelihood)
                likelihood *= rate
                logarithms += likelihood
        return answers

    predictor, given = DiscreteMMSE(jnp.asarray(pool), noise), RegressionPrompt(jnp.asarray(x), jnp.asarray(y))
    eight = jax.jit(lambda p, q: jax.lax.map(p, q, batch_size=8))
    return {
        "naive": naive,
        "numpy, one pass": one_pass,
        "icllab, 8 prompts at a time": lambda: np.asarray(eight(predictor, given)),
    }


def ridge_rows(dtype, dim=32, length=128, prompts=256, ridge=0.1):
    """Ridge regression: name -> a function that answers all prompts."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from icllab.algorithms import Ridge
    from icllab.core.prompt import RegressionPrompt

    jax.config.update("jax_enable_x64", dtype == "float64")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(prompts, length + 1, dim)).astype(dtype)
    y = (np.einsum("bpd,bd->bp", x, rng.normal(size=(prompts, dim))) + 0.3 * rng.normal(size=x.shape[:2])).astype(dtype)
    shrink = np.asarray(ridge, dtype)

    def with_numpy():
        # A block of prompts at a time: what is summed stays in the cache.
        answers = np.zeros_like(y)
        for start in range(0, prompts, 8):
            a, b = x[start : start + 8], y[start : start + 8]
            gram = np.cumsum(a[:, :-1, :, None] * a[:, :-1, None, :], axis=1)
            gram[..., np.arange(dim), np.arange(dim)] += shrink
            right = np.cumsum(b[:, :-1, None] * a[:, :-1], axis=1)
            weights = np.linalg.solve(gram, right[..., None])[..., 0]
            answers[start : start + 8, 1:] = np.einsum("bpd,bpd->bp", a[:, 1:], weights)
        return answers

    def one(a, b):
        gram = jnp.cumsum(a[:-1, :, None] * a[:-1, None, :], axis=0) + shrink * jnp.eye(dim, dtype=dtype)
        right = jnp.cumsum(b[:-1, None] * a[:-1], axis=0)
        weights = jnp.linalg.solve(gram, right[..., None])[..., 0]
        return jnp.concatenate([jnp.zeros(1, dtype), jnp.sum(a[1:] * weights, axis=1)])

    def rank_one():
        answers, weights = np.zeros_like(y), np.zeros((prompts, dim), dtype)
        root = np.tile(np.eye(dim, dtype=dtype), (prompts, 1, 1))
        for i in range(length + 1):
            a = x[:, i]
            answers[:, i] = np.einsum("bd,bd->b", a, weights)
            f = (a[:, None, :] @ root)[:, 0]
            image = (root @ f[:, :, None])[..., 0]
            gain = 1 / (np.einsum("bd,bd->b", f, f) + shrink)
            weights += (gain * (y[:, i] - answers[:, i]))[:, None] * image
            root -= ((gain / (1 + np.sqrt(shrink * gain)))[:, None] * image)[:, :, None] * f[:, None, :]
        return answers

    given = RegressionPrompt(jnp.asarray(x), jnp.asarray(y))
    predictor = Ridge(jnp.asarray(shrink))
    solve_all = jax.jit(jax.vmap(one))
    ours = jax.jit(lambda p, q: jax.vmap(p)(q))
    return {
        "numpy.linalg.solve": with_numpy,
        "jnp.linalg.solve, vmap": lambda: np.asarray(solve_all(given.x, given.y)),
        "numpy, rank-one": rank_one,
        "icllab": lambda: np.asarray(ours(predictor, given)),
    }


PROBLEMS = {
    "dMMSE": pool_rows,
    "ridge float32": lambda: ridge_rows("float32"),
    "ridge float64": lambda: ridge_rows("float64"),
}


def measure(problem, rounds):
    """All rows in turn; the first round, which compiles, is timed by itself."""
    import numpy as np

    rows = PROBLEMS[problem]()
    found = {}
    reference = None
    for name, row in rows.items():
        clock = time.process_time()
        answers = row().astype(float)
        reference = answers if reference is None else reference
        off = float(np.abs(answers - reference).max())
        found[name] = {"first": time.process_time() - clock, "cpu": [], "wall": [], "off": off}
    for _ in range(rounds):
        for name, row in rows.items():
            wall, cpu = time.perf_counter(), time.process_time()
            row()
            found[name]["wall"].append(time.perf_counter() - wall)
            found[name]["cpu"].append(time.process_time() - cpu)
    return found


def table(rounds, every_core):
    """Print as it goes; return the targets that were not met."""
    kind, title = ("wall", "wall / ours") if every_core else ("cpu", "CPU / ours")
    failures = []
    for problem, target in TARGETS.items():
        rows = machine.child(__file__, None if every_core else 1, problem, rounds)
        cost = {name: statistics.median(row[kind]) for name, row in rows.items()}
        ours, lines = cost[OURS[problem]], []
        for name, row in rows.items():
            cpu = statistics.median(row["cpu"])
            compiles = row["first"] - cpu if "num" not in name and "naive" not in name else 0.0
            lines.append((problem, name, statistics.median(row["wall"]), cpu, compiles, row["off"], cost[name] / ours))
            if not row["off"] < AGREE[problem]:
                failures.append(f"{problem}: {name} differs by {row['off']:.1e}, expected at most {AGREE[problem]:g}")
        machine.table(lines, ("problem", "row", "wall s", "CPU s", "compile", "off by", title))
        rivals = {name: seconds for name, seconds in cost.items() if name == "naive" or "solve" in name}
        rival = min(rivals, key=rivals.__getitem__)
        if not rivals[rival] >= target * ours:
            failures.append(f"{problem}: {rival} costs {rivals[rival] / ours:.1f}x ours, expected at least {target:g}x")
    return failures


def main():
    """Print the table, and the targets that it misses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--every-core", action="store_true", help="all threads on both sides; wall times")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return machine.answer(arguments.child, measure)
    print(machine.described("jax", "numpy"))
    return machine.report(table(1 if arguments.quick else ROUNDS, arguments.every_core))


if __name__ == "__main__":
    sys.exit(main())
