"""Estimators on posteriors of known answer: coverage, bias, silent errors and seconds, from rows that are kept.

Rows are appended to a file of JSON lines as they are found, and rows that are there are not computed again: an
interrupted run goes on. ``--table`` prints the table from the rows alone. A silent error is an estimate that is more
than three stated errors and more than a tenth off, without a warning; it is the worst that an estimator can do.

Each estimator runs on the members that papers cite and on those of ``--keys``; its own key is the number of the run.

Usage: python bench/posteriors.py [--estimators NAME ...] [--problems NAME ...] [--keys 1 2] [--runs 1]
       [--rows bench/posteriors_rows.jsonl] [--table] [--answers]

``--answers`` writes the answers of the package again, from the formulas and the table of populations. The rows of
devinterp 2.0.1 are taken with ``--estimators "devinterp sgmcmc_sgld"``: it is not a dependency, and neither is PyTorch.
"""

import argparse
import json
import math
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

import jax
import jax.numpy as jnp
import machine
import numpy as np

import icllab
from icllab import posteriors
from icllab.core.errors import InputError
from icllab.diagnostics import HMC, coefficient_at_temperature, learning_coefficient
from icllab.posteriors import stored
from icllab.posteriors.problems import families
from icllab.posteriors.scores import WITHIN, Row, score, summaries

ROWS = Path(__file__).with_name("posteriors_rows.jsonl")


def _pair(dataset, value="estimate", error="mcse"):
    return float(dataset[value]), float(dataset[error])


def limit(posterior, *, key):
    """The library's limit, at its defaults."""
    dataset = learning_coefficient(posterior, key=key)
    return {"coefficient": _pair(dataset), "warnings": dataset.attrs["warnings"]}


def at_temperature(posterior, *, key):
    """The library's estimate at one temperature, at its defaults."""
    dataset = coefficient_at_temperature(posterior, key=key)
    return {"level": _pair(dataset), "warnings": dataset.attrs["warnings"]}


def at_temperature_float32(posterior, *, key):
    """The same in float32; nbeta eps L(w*) / 2 is the rounding of what is measured."""
    with jax.enable_x64(False):
        return at_temperature(posterior, key=jax.random.clone(key))


def at_temperature_quick(posterior, *, key):
    """Short chains without checks."""
    dataset = coefficient_at_temperature(posterior, key=key, sampler=HMC(chains=4, warm_up=200, draws=500), checks=())
    return {"level": _pair(dataset), "warnings": dataset.attrs["warnings"]}


def variance_alone(posterior, *, key):
    """The variance of nbeta L, which needs no baseline, as the level and the coefficient."""
    draws = HMC(chains=8).sample(posterior, key=key)
    squares = np.array([(posterior.nbeta * (chain - chain.mean())) ** 2 for chain in draws.losses])
    means = squares.mean(1)
    pair = float(means.mean()), float(means.std(ddof=1) / math.sqrt(len(means)))
    return {"variance": pair, "level": pair, "coefficient": pair}


def laplace(posterior, *, key):
    """Half the effective dimension of the Hessian at the point: no error, and no warning."""
    at = jnp.asarray(posterior.at)
    loss = posterior.loss if posterior.data is None else lambda w: posterior.loss(w, posterior.data)
    h = np.linalg.eigvalsh(np.asarray(jax.hessian(loss)(at)))
    share = np.clip(h, 0, None) * posterior.nbeta
    rank = int((h > 1e-9 * max(h.max(), 1e-300)).sum())
    return {
        "level": (float((share / (share + posterior.localization)).sum() / 2), None),
        "coefficient": (rank / 2, None),
    }


def devinterp(method):
    """devinterp's ``sample`` and ``compute_llc`` with the step of its README, and the rest left out."""

    def estimate(posterior, *, key):
        import torch
        from datasets import Dataset
        from devinterp.slt.llc import compute_llc
        from devinterp.slt.sampling import sample

        if posterior.prior is not None:
            raise InputError("devinterp has no prior")
        model = posteriors.torch_module(posterior, dtype="float32")
        count = 1 if posterior.data is None else len(posterior.draft.tilt)
        numbers = np.arange(count * math.ceil(256 / count)) % count
        rows = Dataset.from_dict({"input_ids": [[int(number), 0] for number in numbers]}).with_format("torch")

        def losses(model, input_ids):
            found = model(input_ids[:, 0] if count > 1 else None)
            return found.expand(len(input_ids))[:, None] if found.ndim == 0 else found[:, None]

        seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
        options = {"lr": 1e-3, "n_beta": posterior.nbeta, "sampling_method": method, "init_seed": seed}
        torch.set_num_threads(1)
        warnings.filterwarnings("ignore", "Sampling without output_path")  # says nothing of the estimate
        try:
            tree = sample(model, rows, {"all": rows}, loss_fn=losses, device="cpu", **options)
        except Exception as error:  # chains that ran to infinity
            raise InputError(f"{type(error).__name__}: {error}") from error
        result = compute_llc(tree)
        pair = float(result["llc_mean"]), float(result["llc_std"]) / math.sqrt(result.sizes["chain"])
        return {"coefficient": pair, "level": pair, "gradients": 4 * 200}

    return estimate


ESTIMATORS = {
    "limit": limit,
    "at temperature": at_temperature,
    "at temperature, float32": at_temperature_float32,
    "at temperature, 4 x 500": at_temperature_quick,
    "variance alone": variance_alone,
    "laplace": laplace,
    "devinterp sgmcmc_sgld": devinterp("sgmcmc_sgld"),
    "devinterp rmsprop_sgld": devinterp("rmsprop_sgld"),
}


def write_answers():
    """Write the answers of the package; print their digest."""
    found = {
        name: [posteriors.problem(name, setting=i).draft.answers() for i in range(len(family.settings))]
        for name, family in families().items()
    }
    file = Path(icllab.__file__).parent / "posteriors" / "answers.json"
    file.write_text(stored.written(found, posteriors.version()))
    stored.stored_answers.cache_clear()
    print(posteriors.digest())


def rows_of(file):
    """Rows of a file by estimator, problem, key and run."""
    if not file.exists():
        return {}
    found = {}
    for line in file.read_text().splitlines():
        entry = json.loads(line)
        run = entry["estimator"], entry["problem"], entry["key"], entry["run"]
        rows = [Row(**{**row, "warnings": tuple(row["warnings"])}) for row in entry["rows"]]
        found[run] = rows
    return found


def table(found):
    """Print a line for each estimator, quantity and difficulty."""
    lines = []
    for name in ESTIMATORS:
        rows = [row for run, group in found.items() if run[0] == name for row in group]
        for summary in summaries(rows):
            shares = [
                f"{100 * summary.coverage[level][0]:.0f} ± {100 * summary.coverage[level][1]:.0f}"
                if summary.coverage
                else ""
                for level in WITHIN
            ]
            off = f"{100 * summary.bias:.2g} %" if math.isfinite(summary.bias) else ""
            lines.append(
                (
                    name,
                    summary.quantity,
                    summary.difficulty,
                    summary.count,
                    summary.missing,
                    *shares,
                    off,
                    summary.wrong,
                    summary.unwarned,
                    summary.seconds,
                )
            )
    headers = (
        "estimator",
        "quantity",
        "difficulty",
        "runs",
        "none",
        "in 50 %",
        "in 90 %",
        "off by",
        "wrong, warned",
        "silent",
        "CPU s",
    )
    machine.table(lines, headers)


def main():
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ours = [name for name in ESTIMATORS if not name.startswith("devinterp")]
    parser.add_argument("--estimators", nargs="+", default=ours, choices=list(ESTIMATORS))
    parser.add_argument("--problems", nargs="+", default=None)
    parser.add_argument("--keys", type=int, nargs="*", default=[])
    parser.add_argument("--runs", type=int, default=1, help="with other keys of the estimator")
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--answers", action="store_true")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if arguments.answers:
        return write_answers()
    found = rows_of(arguments.rows)
    for name in () if arguments.table else arguments.estimators:
        for problem in arguments.problems or posteriors.names():
            for key in (None, *arguments.keys):
                for run in range(arguments.runs):
                    if (name, problem, key, run) in found:
                        continue
                    rows = list(score(ESTIMATORS[name], problems=[problem], keys=[key], seed=run))
                    found[name, problem, key, run] = rows
                    entry = {
                        "estimator": name,
                        "problem": problem,
                        "key": key,
                        "run": run,
                        "digest": posteriors.digest(),
                    }
                    with arguments.rows.open("a") as file:
                        file.write(json.dumps(entry | {"rows": [asdict(row) for row in rows]}) + "\n")
                    for row in rows:
                        text = f"{row.answer:.4g} {'silent' if row.unwarned else 'wrong' if row.wrong else ''}"
                        print(
                            f"{name}: {problem} {row.quantity} {row.value:.4g} ± {row.error:.2g}, {text}",
                            flush=True,
                        )
    table(found)
    return None


if __name__ == "__main__":
    sys.exit(main())
