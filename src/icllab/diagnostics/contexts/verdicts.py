r"""Verdicts on contexts as weights: is there a law, and was it learned?

A test's *ratio* is the fraction that a context's own map leaves over that of another context's map (or over 1, where
that leaves more). A context *obeys* a test if its ratio is below the level 1/10. There is a law where more than half of
the contexts obey all three tests: effect, change and composition. There is none where fewer than half obey one of them,
*and* a planted law at the same size would have been found there with probability 0.8 or more. In between, the data
cannot tell.

The share of contexts has Clopper and Pearson's interval, which needs no distribution of ratios; six contexts are the
least that decide. Over several networks, a network counts once, and obeys a test if most of its contexts do. Contexts
whose fits have not converged are left out and counted.

Derived: docs/context-map.md, Is there a law?
"""

import math
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import xarray as xr

from icllab.core.errors import expected
from icllab.core.statistics import binomial_limits

LEVEL = 0.1  # fraction left of a law, at most
POWER = 0.8  # probability that a planted law is found, without which there is no "no"
SHARE = 0.5  # of the contexts: a law is that of more
FALSE = 0.05 / 3  # probability that an interval of one of three tests misses, on either side
FLOOR = 0.01  # times the level: smaller ratios count as this


class LawOutcome(StrEnum):
    """Answers to the question whether there is a law."""

    LAW = "law"
    CAPACITY = "capacity"
    NONE = "no map"
    UNDECIDED = "undecided"


class LearningOutcome(StrEnum):
    """Answers to the question whether a law was learned."""

    LEARNED = "learned"
    GIVEN = "given"
    ABSENT = "absent"
    UNDECIDED = "undecided"


class Verdict(NamedTuple):
    """An outcome, a sentence with the reason, and the numbers behind it over ``test``.

    The numbers: the median ``ratio``; the ``share`` of contexts (of networks, if several) that obey, with its interval
    from ``low`` to ``high``; the ``power`` of the test; the ``contexts`` that count and those ``left_out``.
    """

    outcome: StrEnum
    sentence: str
    numbers: xr.Dataset


def law(tests: xr.Dataset, *, level: float = LEVEL) -> Verdict:
    """Judge measurements of :func:`~.laws.context_law`, of one network or of several along ``network``.

    * *law*: most contexts leave less than the level of effect, change and composition.
    * *no map*: most leave more of the effect.
    * *capacity*: weights have the effect, but of most contexts not its change or its composition.
    * *undecided*: the interval of a share contains a half, or a planted law would not have been found, or the fits of
      more than half of the contexts have not converged.

    Derived: docs/context-map.md, Is there a law?
    """
    require_level(level)
    numbers = compare(tests, level=level)
    enough = numbers["left_out"] <= numbers["contexts"]
    obeyed = enough & (numbers["low"] > SHARE)
    broken = enough & (numbers["high"] < SHARE) & (numbers["power"] >= POWER)
    names = [str(name) for name in numbers["test"].values]

    def told(name: str) -> str:
        return f"{float(numbers['ratio'].sel(test=name)):.2g} of the {name}"

    def counted(name: str) -> str:
        row = numbers.sel(test=name)
        share, low, high = (float(row[key]) for key in ("share", "low", "high"))
        return f"a share of {share:.2g} leaves less than {level:g} of the {name}, from {low:.2g} to {high:.2g}"

    if bool(obeyed.all()):
        least = min(names, key=lambda name: float(numbers["share"].sel(test=name)))
        return Verdict(
            LawOutcome.LAW, f"weights leave {', '.join(told(name) for name in names)}; {counted(least)}", numbers
        )
    for name in names:
        if bool(broken.sel(test=name)):
            outcome = LawOutcome.NONE if name == "effect" else LawOutcome.CAPACITY
            return Verdict(outcome, f"weights leave {told(name)}; {counted(name)}", numbers)
    unclear = next(name for name in names if not bool(obeyed.sel(test=name)))
    row = numbers.sel(test=unclear)
    reason = f"weights leave {told(unclear)}; {counted(unclear)}"
    if row["left_out"] > row["contexts"]:
        reason += f"; the fits of {int(row['left_out'])} contexts have not converged"
    elif float(row["high"]) < SHARE:
        reason += f"; a planted law is found there with probability {float(row['power']):.2g}"
    return Verdict(LawOutcome.UNDECIDED, reason, numbers)


def learned(trained: xr.Dataset, untrained: xr.Dataset, *, level: float = LEVEL) -> Verdict:
    """Judge whether a law came with training, from the same measurements of untrained networks.

    * *learned*: there is a law after training, and there is none without.
    * *given*: there is a law without training as well: it is the architecture's.
    * *absent*: there is none after training.
    * *undecided*: one of the two is.

    Derived: docs/context-map.md, Was it learned?
    """
    after, before = law(trained, level=level), law(untrained, level=level)
    none = (LawOutcome.CAPACITY, LawOutcome.NONE)
    outcome = LearningOutcome.UNDECIDED
    if after.outcome in none:
        outcome = LearningOutcome.ABSENT
    elif after.outcome is LawOutcome.LAW and before.outcome in none:
        outcome = LearningOutcome.LEARNED
    elif after.outcome is LawOutcome.LAW and before.outcome is LawOutcome.LAW:
        outcome = LearningOutcome.GIVEN
    stages = xr.concat([before.numbers, after.numbers], "stage").assign_coords(stage=["untrained", "trained"])
    return Verdict(outcome, f"trained: {after.sentence}; untrained: {before.sentence}", stages)


def require_level(level: float) -> None:
    """Raise unless a level is a fraction between 0 and 1."""
    if not 0 < level < 1:
        raise expected("level", "a number between 0 and 1", level)


def compare(tests: xr.Dataset, *, level: float = LEVEL) -> xr.Dataset:
    """Ratio of every test, the share of contexts that obey it, the power at this size, and the numbers of contexts."""
    logs = {world: log_ratios(tests, world, level=level) for world in ("own", "planted")}
    rows = []
    for name in tests["test"].values:
        own, planted = (logs[world].sel(test=name, drop=True) for world in ("own", "planted"))
        obey, found = (_obeying(part, math.log(level)) for part in (own, planted))
        low, high = binomial_limits(obey.sum(), obey.size, FALSE)
        ratio = float(np.exp(own.median())) if len(obey) else np.nan
        row = {"ratio": ratio, "share": obey.mean() if len(obey) else np.nan, "low": float(low), "high": float(high)}
        row |= {"power": _power(found), "contexts": int(own.notnull().sum())}
        rows.append(row | {"left_out": int((~_converged(tests, "own").sel(test=name)).sum())})
    columns = {key: ("test", np.array([row[key] for row in rows])) for key in rows[0]}
    return xr.Dataset(columns, {"test": tests["test"].values})


def log_ratios(tests: xr.Dataset, world: str, *, level: float = LEVEL) -> xr.DataArray:
    r"""Logarithm of what a world's maps leave over what those of other contexts leave, or over 1 where that is less.

    NaN where a fit has not converged, or where both leave nothing: then the test has nothing to tell apart.
    """
    left, null = (tests["left"].sel(world=name, drop=True) for name in (world, "other"))
    null = null.clip(max=1.0)
    ratio = (left / null.where(null > 0)).clip(min=FLOOR * level)
    return xr.ufuncs.log(ratio.where(_converged(tests, world) & np.isfinite(ratio)))


def _converged(tests: xr.Dataset, world: str) -> xr.DataArray:
    """True for each context whose fits have converged, in a world and in the null."""
    return tests["converged"].sel(world=[world, "other"]).all("world")


def _obeying(logs: xr.DataArray, level: float) -> np.ndarray:
    """For each context, True if it is below a level; for each of several networks, if most of its contexts are."""
    if logs.sizes.get("network", 1) > 1:
        known = logs.notnull().any("context")
        return (((logs < level).sum("context") / logs.notnull().sum("context")) > SHARE).values[known.values]
    return (logs < level).values[logs.notnull().values]


def _power(found: np.ndarray) -> float:
    """Probability of finding a law in a sample of this size, if contexts obey it as often as the planted one."""
    if not found.size:
        return 0.0
    count, share = found.size, float(found.mean())
    enough = np.flatnonzero(binomial_limits(np.arange(count + 1), count, FALSE)[0] > SHARE).tolist()
    return sum(math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in enough)
