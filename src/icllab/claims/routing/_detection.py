"""Detectors of the beginning of a context's data: when they alarm, and how often they are right.

All have one rule: an alarm where the logarithm of what is seen is farther from the mean of the records before than a
threshold, in their standard deviations. One in ten runs without an onset exceeds the threshold.
"""

import numpy as np
import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.figures.curves import Panel, panels
from icllab.lab import Estimate, Finding, checks, estimates

DETECTORS = ("loss", "dimension", "response")
NULLS = ("never", "start")  # runs without an onset: the data never begin, or were there from the first step
MEMORY = 8  # records that a record is compared with
FLOOR = 1e-3  # of the logarithm: the least standard deviation that is believed
QUIET = 0.2  # of the run, from which on detectors listen
WINDOW = 0.25  # of the run after an onset: within it an alarm is a hit
RATE = 0.1  # of calibration runs that may alarm
FEWEST = 16  # runs of each kind that rates are made of

AXES = (
    Axis("kind", r"\mathcal{K}", "kind of run"),
    Axis("detector", "s", "series of the detector"),
    Axis("judged", "s", "run for evaluation", least=0),
)
QUANTITIES = (
    Quantity("monitored", "s", "monitored series"),
    Quantity("onset", "T_0", "step at which the data of a context begin", "updates"),
    Quantity("alarm_step", "T", "step of the alarm", "updates"),
    Quantity("hit", "H", "whether the alarm is a hit"),
    Quantity("score_ratio", "z/z_0", "highest score after the onset over the threshold"),
    Quantity("detection_delay", "T - T_0", "delay of a hit", "updates"),
)


def scores(series: np.ndarray) -> np.ndarray:
    """Distance of each logarithm from the mean of the records before it, in their standard deviations; [..., step]."""
    logs, values = np.log(series), np.zeros(series.shape)
    for i in range(MEMORY, series.shape[-1]):
        before = logs[..., i - MEMORY : i]
        values[..., i] = np.abs(logs[..., i] - before.mean(-1)) / np.maximum(before.std(-1, ddof=1), FLOOR)
    return values


def scored(dataset: xr.Dataset, calibrated: bool = True) -> xr.Dataset:
    """Alarms of all detectors: the first step above the threshold, which the even seeds of the nulls set; NaN for none.

    And the highest score in the window after the onset, over that threshold. All of the odd seeds.
    """
    steps, even = dataset["step"].values, dataset["seed"].values % 2 == 0
    values = dataset["monitored"].transpose("kind", "detector", "seed", "step")
    series_scores = np.where(steps >= QUIET * steps[-1], scores(values.values), 0.0)
    kinds = [str(name) for name in dataset["kind"].values]
    nulls = [kinds.index(name) for name in NULLS if name in kinds]
    highest = (
        series_scores[nulls].max(-1).swapaxes(0, 1)[..., even].reshape(series_scores.shape[1], -1)
    )  # [detector, run]
    levels = np.quantile(highest, 1 - RATE, axis=1, method="higher")
    beyond = series_scores > calibrated * levels[None, :, None, None]
    alarms = values.isel(step=0, drop=True).copy(data=np.where(beyond.any(-1), steps[beyond.argmax(-1)], np.nan))
    onset = dataset["onset"].sel(kind="planted", drop=True)
    late = steps - onset.values[:, None]
    after = np.where((late >= 0) & (late <= WINDOW * steps[-1]), series_scores[kinds.index("planted")], 0.0).max(-1)
    ratio = alarms.sel(kind="planted", drop=True).copy(data=after / levels[:, None])
    return xr.Dataset({"alarm_step": alarms, "score_ratio": ratio, "begun": onset}).sel(seed=~even)


def theory(dataset: xr.Dataset, calibrated: bool = True) -> xr.Dataset:
    """Assign alarms of the seeds that set no threshold; not ``calibrated``: with a threshold of zero."""
    alarms = scored(dataset, calibrated).rename(seed="judged")
    late = (alarms["alarm_step"].sel(kind="planted", drop=True) - alarms["begun"]).transpose("detector", "judged")
    hit = (late >= 0) & (late <= WINDOW * float(dataset["step"].max()))
    return dataset.assign(alarms.drop_vars("begun")).assign(hit=hit.astype(float), detection_delay=late.where(hit))


def share(of: xr.DataArray, *dims: str) -> Estimate:
    """Frequency of an event, with a standard error above zero even where it occurs always or never."""
    count = float(np.prod([of.sizes[name] for name in dims]))
    value = (of.sum(dims) + 1) / (count + 2)
    return Estimate(value, (value * (1 - value) / (count + 3)) ** 0.5)


def gain(dataset: xr.Dataset) -> Estimate:
    """Rate of hits less the rate of alarms in runs without an onset."""
    alarms = dataset["alarm_step"].notnull()
    return share(dataset["hit"], "judged") - share(alarms.sel(kind=list(NULLS)), "kind", "judged")


def sooner(dataset: xr.Dataset) -> list[Finding]:
    """Does the response alarm before the loss, where both hit?"""
    delay = dataset["detection_delay"].rename(judged="seed")
    lead = delay.sel(detector="loss", drop=True) - delay.sel(detector="response", drop=True)
    return checks.above("sooner", "delay of the loss - of the response", estimates.mean(lead))


def figure(dataset: xr.Dataset):
    """Series of the detectors in one run with an onset, over their first value."""
    steps = dataset["step"].values
    part = dataset[["monitored", "onset"]].sel(kind="planted", step=steps[steps >= QUIET * steps[-1]])
    part = part.isel(seed=-1, drop=True).drop_vars("kind")
    relative = part.assign(monitored=part["monitored"] / part["monitored"].isel(step=0))
    return panels(relative, [Panel("monitored", yscale="log")], x="step", hue="detector", vertical=float(part["onset"]))
