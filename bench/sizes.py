"""Sizes of transformers that learn in context: the regression of ``asymptotics/which_architectures`` over a grid.

Each network is trained on fresh prompts (d = 4, 8 examples, noise of variance 1/4) in 1500 steps of 64 prompts at the
rate 0.01. The number is the fraction of the way from the best predictor without examples, which answers 0, to ridge,
the best with them: 1 - E (T - ridge)^2 / E ridge^2 at the last query. It is 0 for the first null, the best predictor
without examples, and is measured for the second, the network before training. A network learns in context if its
fraction exceeds 0 by three standard errors over seeds, and goes half the way if it exceeds 1/2 by as many.

Rows are appended to a file of JSON lines as they are found, and rows that are there are not computed again: an
interrupted run goes on. Another ``--key`` gives fresh seeds, for networks that were chosen on the others.

Usage: python bench/sizes.py [--networks 4x1x1 ...] [--seeds 4] [--key 1] [--rows bench/sizes_rows.jsonl] [--table]
"""

import argparse
import json
import time
from pathlib import Path
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import machine
import numpy as np

from iclbook.claims.asymptotics._transformers import train, transformer
from icllab import algorithms
from icllab.models import parameter_count
from icllab.tasks import LinearRegression

ROWS = Path(__file__).with_name("sizes_rows.jsonl")
# Width x layers x heads: two heads at every width and depth, other numbers of heads at one width.
GRID = [f"{width}x{layers}x2" for layers in (1, 2, 4) for width in (2, 4, 8, 16)]
GRID += [f"8x{layers}x{heads}" for layers in (1, 2, 4) for heads in (1, 4, 8)]
TRAINING, PROMPTS = SimpleNamespace(rate=1e-2, step=1500, batch=64), 2048
TASK = LinearRegression.convention("raventos", dim=4, length=8)
ERRORS, HALF = 3, 0.5


def trained(width, layers, heads, key):
    """Fractions of the way to ridge of a network after training and before, and its number of parameters."""
    of_network, of_prompts, of_test = jax.random.split(key, 3)
    start = transformer(dim=4, width=width, layers=layers, heads=heads, head_dim=width // heads, key=of_network)
    after = train(start, TASK, TRAINING, key=of_prompts).predictor
    tests = jax.random.split(of_test, PROMPTS)
    fractions = {"after": _fraction(after, tests), "before": _fraction(start, tests)}
    return {name: float(value) for name, value in fractions.items()} | {"parameters": parameter_count(start)}


@eqx.filter_jit
def _fraction(network, keys):
    ridge = algorithms.bayes_optimal(TASK)

    def squares(key):
        prompt = TASK.sample(key=key)
        best = ridge(prompt)[-1]
        return (network(prompt)[-1] - best) ** 2, best**2

    excess, whole = jax.lax.map(squares, keys, batch_size=256)
    return 1 - jnp.mean(excess) / jnp.mean(whole)


def rows_of(file):
    """Rows of a file by network, seed and key."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {(row["network"], row["seed"], row["key"]): row for row in lines}


def table(rows):
    """Print a line for each network and key, which says what the network does with its context."""
    lines = []
    for network, key in dict.fromkeys((run[0], run[2]) for run in rows):
        part = [row for run, row in rows.items() if run[::2] == (network, key)]
        after, before = (np.array([row[name] for row in part]) for name in ("after", "before"))
        mean, error = after.mean(), after.std(ddof=1) / len(after) ** 0.5 if len(after) > 1 else np.nan
        outcome = "half the way" if mean - ERRORS * error > HALF else "learns" if mean > ERRORS * error else ""
        texts = f"{mean:.3f} ± {error:.3f}", f"{before.mean():.2f}", outcome
        lines.append((key, *map(int, network.split("x")), part[0]["parameters"], len(part), *texts))
    headers = ("key", "width", "layers", "heads", "parameters", "seeds", "fraction", "untrained", "in context")
    machine.table(sorted(lines), headers)


def main():
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=GRID, help="width x layers x heads")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--key", type=int, default=1)
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    rows = rows_of(options.rows)
    for seed in range(0 if options.table else options.seeds):
        key = jax.random.fold_in(jax.random.key(options.key), seed)
        for network in options.networks:
            if (network, seed, options.key) in rows:
                continue
            begin, row = time.process_time(), {"network": network, "seed": seed, "key": options.key}
            row |= trained(*map(int, network.split("x")), key)
            row["seconds"] = round(time.process_time() - begin, 1)
            rows[network, seed, options.key] = row
            machine.append(options.rows, row)
            print(json.dumps(row), flush=True)
    table(rows)


if __name__ == "__main__":
    main()
