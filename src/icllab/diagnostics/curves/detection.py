r"""Alarms of a series that is watched while it comes: scores, cumulative sums, thresholds from runs without a change.

The *score* of a record is the distance of its logarithm from the mean of the eight records before, in their standard
deviations, with a sign. The *cumulative sum* adds scores up in both directions, less an allowance at every record,

.. math:: C^\pm_i = \max(0, C^\pm_{i-1} \pm z_i - \kappa),

and is the larger of the two. The *rise* is the logarithm less its mean over the four records before: while a loss
falls, the spread of eight records is mostly the fall. An alarm is the first record at which one of them is above a
threshold. Of n runs without a change at most :math:`\lfloor\alpha(n+1)\rfloor - 1` may be above it before it is
raised: a further run of the same kind is then above it with a probability of at most :math:`\alpha`. Nothing but the
past of the series is used.
"""

import math

import numpy as np
import xarray as xr

from icllab.core.domains import PROPER_FRACTION

MEMORY = 8  # records that a record is compared with
FLOOR = 1e-3  # of the logarithm: the least standard deviation that is believed
RECENT = 4  # records that a rise is measured from
ALLOWANCE = 0.5  # kappa: half of the shift, in standard deviations, that the sum is made for

Rows = np.ndarray


def scores(series: Rows) -> Rows:
    """Signed distance of each logarithm from the mean of the records before it, over their deviation; [..., record]."""
    logs, values = np.log(series), np.zeros(series.shape)
    for i in range(MEMORY, series.shape[-1]):
        before = logs[..., i - MEMORY : i]
        values[..., i] = (logs[..., i] - before.mean(-1)) / np.maximum(before.std(-1, ddof=1), FLOOR)
    return values


def rises(series: Rows) -> Rows:
    """Logarithm of each record minus its mean over the four records before; 0 for the first four; [..., record]."""
    logs, values = np.log(series), np.zeros(series.shape)
    for i in range(RECENT, series.shape[-1]):
        values[..., i] = logs[..., i] - logs[..., i - RECENT : i].mean(-1)
    return values


def cumulative_sums(signed: Rows) -> Rows:
    """The larger of the two one-sided cumulative sums of scores; [..., record]."""
    up, down = np.zeros(signed.shape[:-1]), np.zeros(signed.shape[:-1])
    values = np.zeros(signed.shape)
    for i in range(signed.shape[-1]):
        up = np.maximum(0, up + signed[..., i] - ALLOWANCE)
        down = np.maximum(0, down - signed[..., i] - ALLOWANCE)
        values[..., i] = np.maximum(up, down)
    return values


def first_passages(values: Rows, steps: Rows, levels: Rows) -> Rows:
    """The first step at which values are above each level; NaN where they never are; [..., level]."""
    beyond = values[..., None, :] > np.asarray(levels)[:, None]
    return np.where(beyond.any(-1), np.asarray(steps, float)[beyond.argmax(-1)], np.nan)


def threshold(passages: xr.DataArray, *, rate: float, run: str = "seed", level: str = "level") -> xr.DataArray:
    r"""The least level that a further run without a change exceeds with a probability of at most ``rate``.

    Args:
        passages: First passages of runs without a change, over ``run``, ``level`` (ascending) and other axes.
        rate: Probability :math:`\alpha` of a false alarm in a run.
        run: Name of the axis of runs.
        level: Name of the axis of levels.

    Returns:
        Over the other axes: the level; infinite where every level is exceeded by too many, or there are fewer than
        :math:`1/\alpha - 1` runs.
    """
    PROPER_FRACTION.require("rate", rate)
    most = math.floor(rate * (passages.sizes[run] + 1) + 1e-9) - 1
    allowed = passages.notnull().sum(run) <= most
    levels = passages[level].where(allowed)
    return levels.min(level).fillna(np.inf)


def alarms(passages: xr.DataArray, thresholds: xr.DataArray, *, level: str = "level") -> xr.DataArray:
    """The step of each run's alarm: its first passage of its threshold; NaN for none."""
    return passages.where(passages[level] == thresholds).max(level)
