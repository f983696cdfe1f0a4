r"""Verdicts on contexts as weights: is there a law, and was it learned?

A test's *ratio* is the fraction that a context's own map leaves over that of another context's map (or over 1, where
that leaves more). There is a law, up to the level 1/10, where the geometric mean over contexts is below the level in
all three tests: effect, change and composition. There is none where it is above in one of them, *and* a planted law at
the same size would have been found there with probability 0.8 or more. In between, the data cannot tell.

Intervals are Student's over contexts; over networks where there are several, whose means count once. Contexts whose
fits have not converged are left out and counted.

Derived: docs/context-map.md, Is there a law?
"""

import math
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy import special

from icllab.core.errors import expected

LEVEL = 0.1  # fraction left of a law, at most
POWER = 0.8  # probability that a planted law is found, without which there is no "no"
SIGMAS = 2.4  # of normal errors, on either side: three tests have one false "no" in 40 at most
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

    The numbers: ``ratio`` with its interval from ``low`` to ``high``, the ``power`` of the test, the ``contexts`` that
    count and those ``left_out``.
    """

    outcome: StrEnum
    sentence: str
    numbers: xr.Dataset


class _Mean(NamedTuple):
    """A mean of logarithms with its error and degrees of freedom."""

    value: float
    error: float
    freedom: int


def law(tests: xr.Dataset, *, level: float = LEVEL) -> Verdict:
    """Judge measurements of :func:`~.laws.context_law`, of one network or of several along ``network``.

    * *law*: effect, change and composition are all left below the level.
    * *no map*: weights leave more of the effect than the level.
    * *capacity*: weights have the effect, but not its change or its composition.
    * *undecided*: a test is within its errors of the level, or a planted law would not have been found, or the fits of
      more than half of the contexts have not converged.

    Derived: docs/context-map.md, Is there a law?
    """
    require_level(level)
    numbers = compare(tests, level=level)
    enough = numbers["left_out"] <= numbers["contexts"]
    below = enough & (numbers["high"] < level)
    above = enough & (numbers["low"] > level) & (numbers["power"] >= POWER)
    names = [str(name) for name in numbers["test"].values]

    def told(name: str) -> str:
        return f"{float(numbers['ratio'].sel(test=name)):.2g} of the {name}"

    if bool(below.all()):
        return Verdict(LawOutcome.LAW, f"weights leave {', '.join(told(name) for name in names)}", numbers)
    for name in names:
        if bool(above.sel(test=name)):
            outcome = LawOutcome.NONE if name == "effect" else LawOutcome.CAPACITY
            return Verdict(outcome, f"weights leave {told(name)}", numbers)
    unclear = next(name for name in names if not bool(below.sel(test=name)))
    row = numbers.sel(test=unclear)
    reason = f"weights leave {told(unclear)}, from {float(row['low']):.2g} to {float(row['high']):.2g}"
    if row["left_out"] > row["contexts"]:
        reason += f"; the fits of {int(row['left_out'])} contexts have not converged"
    elif float(row["low"]) > level:
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
    """Ratio of every test with its interval, the power at this size, and the numbers of contexts."""
    logs = {world: log_ratios(tests, world, level=level) for world in ("own", "planted")}
    rows = []
    for name in tests["test"].values:
        own, planted = (_mean(logs[world].sel(test=name, drop=True)) for world in ("own", "planted"))
        reach = _quantile(own.freedom) * own.error
        used, met = logs["own"].sel(test=name).notnull(), _converged(tests, "own").sel(test=name)
        row = {"ratio": own.value, "low": own.value - reach, "high": own.value + reach}
        row = {key: math.exp(value) for key, value in row.items()}
        row |= {"power": _power(planted, math.log(level)), "contexts": int(used.sum())}
        rows.append(row | {"left_out": int((~met).sum())})
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


def _mean(logs: xr.DataArray) -> _Mean:
    """Mean over contexts; over networks, of the means of their contexts, where there are several."""
    values = logs.values.ravel()
    if logs.sizes.get("network", 1) > 1:
        rows = logs.transpose("network", ...).values.reshape(logs.sizes["network"], -1)
        values = np.array([row[np.isfinite(row)].mean() for row in rows if np.isfinite(row).any()])
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return _Mean(float(values.mean()) if len(values) else np.nan, np.nan, 0)
    return _Mean(float(values.mean()), float(values.std(ddof=1)) / len(values) ** 0.5, len(values) - 1)


def _quantile(freedom: int) -> float:
    """Standard errors that Student's distribution allows where the normal one allows SIGMAS."""
    return -float(special.stdtrit(freedom, special.ndtr(-SIGMAS))) if freedom > 0 else np.nan


def _power(planted: _Mean, bound: float) -> float:
    r"""Probability that a law like the planted one is found: :math:`P(T_\nu(\text{noncentral}) < -t_\nu)`."""
    if not np.isfinite(planted.value) or planted.freedom < 1:
        return 0.0
    if planted.error == 0:
        return float(planted.value < bound)
    distance = np.clip((planted.value - bound) / planted.error, -30.0, 30.0)  # beyond, the distribution has no number
    return float(special.nctdtr(planted.freedom, distance, -_quantile(planted.freedom)))
