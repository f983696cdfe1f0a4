"""Levels of the problems without a closed form, by Hamiltonian chains that share no code with ``icllab.diagnostics``.

Hundreds of chains in float64 start at the point and around it. A level is the mean of nbeta K over the chains, its
error the spread of their means; the variance likewise. Chains that start at the point and around it must
agree within four errors, and the row is refused otherwise. Rows are written to the table of the package,
``posteriors/populations.json``, as they are found; those that are there are kept.

Usage: python bench/reference_populations.py [NAME ...] [--chains 256] [--moves 20000] [--check]

``--train`` trains the transformers again. ``--check`` compares the rows with coefficient_at_temperature(sampler=HMC()),
which shares no code with them.
"""

import argparse
import functools
import json
import math
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

import icllab
from icllab import posteriors
from icllab.posteriors import transformers
from icllab.posteriors.problems import families

TABLE, WEIGHTS = (Path(icllab.__file__).parent / "posteriors" / name for name in ("populations.json", "weights.json"))
LEAPFROGS, WARM_UP, BATCHES, DISPERSION = 12, 0.25, 20, 0.3
LOOSE = 0.005  # relative error of a level, above which a row is refused
NAMES = (
    "layers_3_2_3_rank_1",
    "layers_3_2_2_3_rank_1",
    "layers_3_3_3_stratum_2_2",
    "attention_3_2_rank_1",
    "superposition_5",
    "superposition_6",
    "transformer_small",
    "transformer_wide",
)


def chains(problem, count, moves, seed):
    """K times nbeta of every move after the warm-up, [move, chain], and the acceptance."""
    t, gamma, at = problem.nbeta, problem.localization, jnp.asarray(problem.at)
    level = float(problem.loss(at))

    def energy(w):
        above = t * (problem.loss(w) - level)
        return above + gamma / 2 * jnp.sum((w - at) ** 2), above

    slopes = jax.vmap(jax.value_and_grad(energy, has_aux=True))

    def move(state, key):
        w, value, above, slope, size = state
        of_momentum, of_size, of_test = jax.random.split(key, 3)
        start = jax.random.normal(of_momentum, w.shape)
        step = size * jax.random.uniform(of_size, (count, 1), minval=0.5, maxval=1.5)

        def leap(inner, _):
            w, p, slope = inner
            p = p - step / 2 * slope
            w = w + step * p
            (_, _), slope = slopes(w)
            return (w, p - step / 2 * slope, slope), None

        (there, p, _), _ = jax.lax.scan(leap, (w, start, slope), None, length=LEAPFROGS)
        (new, new_above), new_slope = slopes(there)
        gain = value - new + (jnp.sum(start**2, 1) - jnp.sum(p**2, 1)) / 2
        chance = jnp.where(jnp.isfinite(gain), jnp.exp(jnp.minimum(gain, 0.0)), 0.0)
        taken = jax.random.uniform(of_test, (count,)) < chance
        w = jnp.where(taken[:, None], there, w)
        value, above = jnp.where(taken, new, value), jnp.where(taken, new_above, above)
        slope = jnp.where(taken[:, None], new_slope, slope)
        return (w, value, above, slope, size), (above, jnp.mean(chance))

    @functools.partial(jax.jit, static_argnums=1)
    def run(state, length, key):
        return jax.lax.scan(move, state, jax.random.split(key, length))

    key = jax.random.key(seed)
    far = jnp.arange(count)[:, None] >= count // 2
    w = at + DISPERSION * far * jax.random.normal(key, (count, at.size)) / math.sqrt(gamma)
    (value, above), slope = slopes(w)
    state = (w, value, above, slope, jnp.asarray(0.3 / math.sqrt(t)))
    for i in range(40):  # of the warm-up: the step follows the acceptance
        state, (_, chance) = run(state, max(int(moves * WARM_UP) // 40, 1), jax.random.fold_in(key, 1000 + i))
        size = state[-1] * math.exp(float(jnp.mean(chance)) - 0.8)
        state = (*state[:-1], size)
    kept, shares = [], []
    for i in range(BATCHES):
        state, (above, chance) = run(state, moves // BATCHES, jax.random.fold_in(key, i))
        kept.append(np.asarray(above))
        shares.append(float(jnp.mean(chance)))
    return np.concatenate(kept), float(np.mean(shares))


def trained(name):
    """Weights of a transformer at a minimum to rounding; raise if flat directions are not those of its rotations."""
    sizes = transformers.SIZES[name]
    arrays = {key: jnp.asarray(array) for key, array in transformers.arrays_of(sizes, np.arange(sizes[0])).items()}
    symbols, length, width = sizes
    count = (symbols + length + width + 2 * symbols) * width
    loss = jax.jit(jax.value_and_grad(lambda w: transformers.transformer(jnp, w, arrays, None, sizes)))
    curvature = jax.jit(jax.hessian(lambda w: loss(w)[0]))
    best = None
    for seed in range(12):
        start = 0.5 * np.random.default_rng(seed).normal(size=count)
        found = minimize(lambda w: [np.asarray(a, float) for a in loss(w)], start, jac=True, method="L-BFGS-B")
        best = found if best is None or found.fun < best.fun else best
    w = best.x
    for _ in range(50):
        h = np.asarray(curvature(w))
        w = w - np.linalg.lstsq(h, np.asarray(loss(w)[1]), rcond=1e-9)[0]
    h = np.linalg.eigvalsh(np.asarray(curvature(w)))
    flat, norm = int((h < 1e-8).sum()), float(jnp.linalg.norm(loss(w)[1]))
    numbers = f"loss {float(loss(w)[0]):.4f}, |gradient| {norm:.0e}"
    print(f"{name}: {numbers}, {flat} flat directions of {count}, next {h[flat]:.1e}")
    if flat != width * (width - 1) // 2 or h[0] < -1e-8 or norm > 1e-9:
        raise SystemExit(f"{name}: {flat} flat directions, least curvature {h[0]:.1e}, |gradient| {norm:.0e}")
    return w.tolist()


def row(problem, count, moves, seed):
    """A row of the table; raise if chains from the two kinds of starts disagree."""
    above, acceptance = chains(problem, count, moves, seed)
    mean = above.mean()
    of_chains, of_squares = above.mean(0), ((above - mean) ** 2).mean(0)
    near, far = of_chains[: count // 2], of_chains[count // 2 :]
    gap, error = (
        far.mean() - near.mean(),
        math.hypot(*(half.std(ddof=1) / math.sqrt(len(half)) for half in (near, far))),
    )
    print(f"    acceptance {acceptance:.2f}, far less near starts {gap:+.2g} ± {error:.1g}", flush=True)
    if abs(gap) > 4 * error:
        raise SystemExit(f"chains disagree by {gap:.2g} ± {error:.1g}: longer ones are needed")
    if error > LOOSE * abs(mean):
        raise SystemExit(f"the error is {error:.2g} of {mean:.4g}: longer chains are needed")
    numbers = {"nbeta": problem.nbeta, "localization": problem.localization}
    for name, values in (("level", of_chains), ("variance", of_squares)):
        numbers |= {name: float(values.mean()), f"{name}_error": float(values.std(ddof=1) / math.sqrt(count))}
    return numbers


def checked(problem, numbers):
    """The distance of the library's own chains from a row, in errors."""
    from icllab.diagnostics import HMC, coefficient_at_temperature

    sampler = HMC(chains=64, warm_up=2000, draws=10_000)
    estimate = coefficient_at_temperature(problem, key=jax.random.key(5), sampler=sampler, checks=())
    value, error = float(estimate["estimate"]), float(estimate["mcse"])
    return value, error, (value - numbers["level"]) / math.hypot(error, numbers["level_error"])


def main():
    """Find the rows that are missing, or check those that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--chains", type=int, default=256)
    parser.add_argument("--moves", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--train", action="store_true")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if arguments.train:
        WEIGHTS.write_text(json.dumps({name: trained(name) for name in transformers.SIZES}) + "\n")
        return 0
    table, bad = json.loads(TABLE.read_text()), False
    for name in arguments.names:
        for setting, (nbeta, localization) in enumerate(families()[name].settings):
            problem, clock = posteriors.problem(name, setting=setting), time.process_time()
            rows = table.setdefault(name, [])
            known = [r for r in rows if (r["nbeta"], r["localization"]) == (nbeta, localization)]
            if arguments.check:
                value, error, distance = checked(problem, known[0])
                bad |= abs(distance) > 4
                print(f"{name} {setting}: {known[0]['level']:.4f}, HMC() {value:.4f} ± {error:.4f}: {distance:+.1f}")
            elif not known:
                rows.append(row(problem, arguments.chains, arguments.moves, arguments.seed))
                TABLE.write_text(json.dumps(table, indent=1) + "\n")
                seconds = time.process_time() - clock
                print(
                    f"{name} {setting}: {rows[-1]['level']:.4f} ± {rows[-1]['level_error']:.4f}, {seconds:.0f} s",
                    flush=True,
                )
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
