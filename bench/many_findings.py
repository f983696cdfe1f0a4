"""How often a claim of many numbers fails: true ones of normal and of skewed samples, and false ones.

    .venv/bin/python bench/many_findings.py [--claims N]

A claim says that each of K means is zero; a key draws n samples of each, and the verdict is that of `judge`. True
claims are of normal samples, of gamma ones (shape 4, skewness 1) and of exponential ones (skewness 2), on either side;
seeds are drawn for each mean, or shared by all. False ones are off in one mean, or in all, by as many of the true
standard errors as say. A row has the fractions of claims that fail, and those that hold, by the rule and by three
standard errors of each mean alone.
"""

import argparse

import numpy as np
import xarray as xr

from icllab.lab import checks, estimates
from icllab.lab.claim import Claim, Control
from icllab.lab.judging import judge
from icllab.lab.outcomes import Outcome

FAMILIES = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "gamma": lambda rng, shape: (rng.gamma(4.0, size=shape) - 4.0) / 2.0,
    "exponential": lambda rng, shape: rng.exponential(size=shape) - 1.0,
    "exponential, turned": lambda rng, shape: 1.0 - rng.exponential(size=shape),
}


def check(dataset):
    """Each mean is zero; an error above a whole deviation leaves it undecided."""
    return checks.agrees("zero", "mean", estimates.mean(dataset["icl_error"]), 0.0, largest_error=1.0)


CLAIM = Claim(
    sentence="Each mean is zero.",
    sources=("Lu24",),
    quantities=("icl_error",),
    static=("dim",),
    sizes={},
    controls={"off": Control("one mean is off", measure={"off": 1.0})},
    check=check,
    name="planted/zero",
)


def samples(rng, family, numbers, seeds, *, shared=0.0):
    """Samples of unit variance, of which a fraction of the variance is common to all means."""
    parts = FAMILIES[family](rng, (numbers, seeds)), FAMILIES[family](rng, (1, seeds))
    return np.sqrt(1 - shared) * parts[0] + np.sqrt(shared) * parts[1]


def outcomes(rng, family, numbers, seeds, *, shared=0.0, off=0.0, where=1):
    """The verdict of a claim by the rule, and by three standard errors of each mean."""
    values = samples(rng, family, numbers, seeds, shared=shared)
    values[:where] += off / np.sqrt(seeds)
    dataset = xr.Dataset(
        {"icl_error": (("dim", "seed"), values)}, {"dim": np.arange(numbers), "seed": np.arange(seeds)}
    )
    error = values.std(1, ddof=1) / np.sqrt(seeds)
    alone = np.abs(values.mean(1)) > checks.reach(1.0, seeds - 1.0) * error
    return judge(CLAIM, dataset).outcome, Outcome.FAILS if alone.any() else Outcome.HOLDS


def row(text, count, **arguments):
    """Print the fractions of a kind of claims that fail and hold, by both rules."""
    rng = np.random.default_rng(0)
    verdicts = [outcomes(rng, **arguments) for _ in range(count)]
    cells = [sum(v[i] is o for v in verdicts) / count for i in (0, 1) for o in (Outcome.FAILS, Outcome.HOLDS)]
    print(f"| {text} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |", flush=True)


def main():
    """Print the tables."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--claims", type=int, default=400)
    count = options.parse_args().claims
    print(
        "| true claims: samples, seeds, numbers | fail | hold | fail, each alone | hold, each alone |"
        "\n|---|---|---|---|---|"
    )
    for family in FAMILIES:
        for seeds in (8, 30):
            for numbers in (1, 10, 100, 1000):
                row(f"{family}, {seeds}, {numbers}", count, family=family, numbers=numbers, seeds=seeds)
    for family in ("normal", "exponential"):
        row(f"{family}, 8, 100, half shared", count, family=family, numbers=100, seeds=8, shared=0.5)
    print(
        "\n| false claims: numbers off, by | fail | hold | fail, each alone | hold, each alone |\n|---|---|---|---|---|"
    )
    for numbers in (1, 10, 100, 1000):
        for where, off in ((1, 6.0), (1, 12.0), (numbers, 2.0), (numbers, 3.0)):
            text = f"{where} of {numbers}, {off:g} standard errors"
            row(text, count, family="normal", numbers=numbers, seeds=10, off=off, where=where)


if __name__ == "__main__":
    main()
