"""Transitions of training curves over any axes, and log-rank tests of delays between groups."""

from typing import Any

import numpy as np
import xarray as xr

from icllab.diagnostics import delay, transitions
from icllab.lab import Finding, Outcome
from icllab.lab.results import fixed_values

OF_MEMBERS = (
    "transitioned",
    "transition_time",
    "observed_time",
    "transition_width",
    "relative_width",
    "end_level",
    "median_time",
)
LARGEST_P = 0.01  # of a log-rank test that tells


def risen(curves: xr.DataArray, **options: Any) -> xr.Dataset:
    """:data:`OF_MEMBERS` of curves over seed, step and any other axes, each combination separately."""
    axes = [name for name in curves.dims if name not in ("seed", "step")]
    if not axes:
        return transitions(curves, **options).rename(crossed="transitioned")[list(OF_MEMBERS)].drop_attrs()
    first = curves[axes[0]]
    parts = [risen(curves.sel({axes[0]: value}, drop=True), **options) for value in first.values]
    joint = xr.concat(parts, dim=first)
    # Findings name coordinates in the order in which the curves have them.
    variables = {name: joint[name].variable for name in OF_MEMBERS}
    return xr.Dataset(variables, coords={name: curves[name] for name in curves.dims if name in joint.dims})


def guessing(dataset: xr.Dataset) -> xr.Dataset:
    """Assign accuracy 1/N and loss ln N, which a guess among the N labels of the context has."""
    pairs, flat = fixed_values(dataset)["pairs"], xr.zeros_like(dataset.step, dtype=float)
    return dataset.assign(accuracy_line=flat + 1 / pairs, chance_loss=flat + np.log(pairs))


def delayed(id: str, event: str, first: xr.Dataset, second: xr.Dataset) -> list[Finding]:
    """Is the transition later in the second group than in the first, by the exact log-rank test?

    It fails where it comes as clearly earlier. Censored runs are counted as what they are, missing ones left out.
    """
    groups = [group[["observed_time", "transitioned"]].dropna("seed") for group in (first, second)]
    if not all(group.sizes["seed"] for group in groups):
        return []
    test = delay(*(group.assign(crossed=group["transitioned"].astype(bool)) for group in groups))
    p, later = float(test["exact_p_value"].fillna(1.0)), float(test["log_rank"]) < 0  # without events nothing tells
    if p > LARGEST_P:
        outcome, advice = Outcome.UNDECIDED, "more seeds would tell"
    else:
        outcome, advice = Outcome.HOLDS if later else Outcome.FAILS, ""
    return [Finding(id, f"{event}, exact p of the log-rank test", 0.0, p, 0.0, LARGEST_P, outcome, advice)]
