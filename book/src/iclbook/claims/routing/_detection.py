"""Detectors of the onset of a context's data: the times of their alarms, and their hit rates.

A detector has a *series* and a *rule*. Series are numbers of the data that have come: of the minibatches since the last
record the mean loss, the root mean square of the norms of their gradients, and the response, the root mean square of
the susceptibilities of their mean loss to more of one of their examples. Rules are the score of a record and the
cumulative sum of scores. Half of the runs without an onset set each detector's threshold, at one false-alarm rate.
"""

import numpy as np
import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.diagnostics.curves import detection
from icllab.figures.curves import Panel, panels
from icllab.lab import Estimate, Finding, checks, estimates
from icllab.lab.results import fixed_values

SERIES = ("loss", "gradient", "response")
OTHERS = SERIES[1:]
RULES = ("score", "sum")
NULLS = ("never", "start")  # runs without an onset: the data never begin, or were there from the first step
LEVELS = tuple(float(level) for level in np.geomspace(2, 60, 48).round(3))
QUIET = 0.2  # of the run, from which on detectors listen
WINDOW = 0.25  # of the run after an onset: within it an alarm is a hit
RATE = 0.05  # of runs without an onset may alarm
FEWEST = 20  # runs of each kind that are judged, and as many that set thresholds

AXES = (
    Axis("kind", r"\mathcal{K}", "kind of run: without an onset, or the frequency of the context that begins"),
    Axis("series", "s", "series that the detector sees"),
    Axis("rule", "R", "rule of the detector"),
    Axis("level", r"\ell", "level", above=0),
    Axis("judged", "s", "run for evaluation", least=0),
    Axis("detector", "D", "series and rule of the detector"),
    Axis("share", r"\pi_c", "frequency of the context that begins", above=0),
)
QUANTITIES = (
    Quantity("first_passage", r"T_\ell", "first record above a level", "updates"),
    Quantity("onset", "T_0", "step at which the data of a context begin", "updates"),
    Quantity("false_alarm", "A", "whether a run without an onset alarms"),
    Quantity("hit", "H", "hit rate of the alarm"),
    Quantity("detection_delay", "T - T_0", "delay of a hit", "updates"),
)


def first_passages(series: np.ndarray, every: int) -> np.ndarray:
    """First passages of all levels by both rules, for series [..., record, series]; [..., series, rule, level]."""
    rows = np.moveaxis(series, -1, -2)
    steps = every * np.arange(1, rows.shape[-1] + 1)
    signed = np.where(steps >= QUIET * steps[-1], detection.scores(rows), 0.0)
    values = np.stack([np.abs(signed), detection.cumulative_sums(signed)], axis=-2)
    return detection.first_passages(values, steps, np.array(LEVELS))


def thresholds(passages: xr.DataArray) -> xr.DataArray:
    """Level of every detector: the higher of the levels that the two kinds of runs without an onset need."""
    parts = [detection.threshold(passages.sel(kind=kind, drop=True), rate=RATE) for kind in NULLS]
    return xr.concat(parts, dim="null").max("null")


def theory(dataset: xr.Dataset, calibrated: bool = True, exchanged: bool = False) -> xr.Dataset:
    """Assign alarms of the odd seeds; even seeds set thresholds, or the lowest levels if not ``calibrated``.

    ``exchanged``: the loss's series is the response, and the other way round.
    """
    kinds = [str(kind) for kind in dataset["kind"].values]
    planted = [kind for kind in kinds if kind not in NULLS]
    passages, odd = dataset["first_passage"], dataset["seed"].values % 2 == 1
    if exchanged:
        names = {"loss": "response", "response": "loss"}
        passages = passages.assign_coords(
            series=[names.get(str(name), str(name)) for name in passages["series"].values]
        )
    levels = thresholds(passages.sel(seed=~odd)) if calibrated else passages["level"].min()
    alarms = detection.alarms(passages.sel(seed=odd), levels).rename(seed="judged")
    onset = dataset["onset"].sel(seed=odd).rename(seed="judged")
    late = (alarms - onset).sel(kind=planted).assign_coords(kind=[float(kind) for kind in planted])
    late = late.rename(kind="share").transpose("share", "judged", "series", "rule")
    hit = (late >= 0) & (late <= WINDOW * fixed_values(dataset)["updates"])
    false = alarms.sel(kind=list(NULLS)).notnull().rename(kind="null").astype(float)
    false = false.transpose("null", "judged", "series", "rule").drop_vars("null").sum("null") / len(NULLS)
    started = onset.sel(kind=planted).notnull().rename(kind="share").assign_coords(share=late["share"])
    return dataset.assign(false_alarm=false, hit=hit.astype(float).where(started), detection_delay=late.where(hit))


def enough(dataset: xr.Dataset) -> list[Finding]:
    """Are there enough runs to set thresholds and to judge?"""
    return checks.complete("runs", f"{FEWEST} runs of each kind are judged", dataset.sizes["judged"] >= FEWEST)


def false_alarms(dataset: xr.Dataset, bound: float) -> list[Finding]:
    """Do all detectors alarm in at most a fixed fraction of the runs without an onset that set no threshold?"""
    return checks.below("false_alarms", "runs without an onset that alarm", share_of(dataset["false_alarm"]), bound)


def more_often(dataset: xr.Dataset, rules: tuple[str, ...], bound: float) -> list[Finding]:
    """Does the loss hit more often than the other series, by a margin, averaged over the onset frequencies?"""
    hit = dataset["hit"].sel(rule=list(rules)).rename(judged="seed").mean("share")
    ahead = hit.sel(series="loss", drop=True) - hit.sel(series=list(OTHERS))
    return checks.above("more_often", "hits of the loss - of the series", estimates.mean(ahead), bound)


def sooner(dataset: xr.Dataset, rule: str) -> list[Finding]:
    """Does the loss alarm before the other series, if both hit?"""
    delay = dataset["detection_delay"].sel(rule=rule, drop=True).rename(judged="seed")
    lead = (delay.sel(series=list(OTHERS)) - delay.sel(series="loss", drop=True)).mean("share")
    return checks.above("sooner", "delay of the series - of the loss", estimates.mean(lead))


def share_of(events: xr.DataArray) -> Estimate:
    """Frequency of an event among judged runs, with a standard error above zero even if it occurs always or never.

    A run with NaN is left out; NaN of an element without runs.
    """
    count = events.notnull().sum("judged")
    value = ((events.sum("judged") + 1) / (count + 2)).where(count > 0)
    return Estimate(value, (value * (1 - value) / (count + 3)) ** 0.5)


def curves(dataset: xr.Dataset) -> xr.Dataset:
    """Hits and median delays of every detector, over share and detector."""
    hit, delay = share_of(dataset["hit"]), dataset["detection_delay"].median("judged")
    rows = xr.Dataset({"hit": hit.value, "hit_error": hit.error, "detection_delay": delay}, attrs=dataset.attrs)
    parts = [rows.sel(series=series, rule=rule, drop=True) for series in SERIES for rule in RULES]
    return xr.concat(parts, "detector", combine_attrs="override").assign_coords(
        detector=[f"{series}, {rule}" for series in SERIES for rule in RULES]
    )


def figure(dataset: xr.Dataset):
    """Hits, and delays of hits, against the frequency of the context that begins."""
    rows = [Panel("hit", xscale="log"), Panel("detection_delay", xscale="log", yscale="log")]
    return panels(curves(dataset), rows, x="share", hue="detector")


def reduce(dataset: xr.Dataset) -> xr.Dataset:
    """Round the numbers to single precision."""
    return dataset.astype("float32")
