r"""Can a detector that knows nothing of the contexts tell when the data of one begin, and which is first?

Two linear layers answer contexts by stochastic gradient descent; the data of the last one begin at a hidden step. A
detector sees one series over training: the ``loss`` on all contexts, the ``dimension``, the effective dimension there,
or the ``response``, the root mean square of susceptibilities of that loss to random tilts of its prompts, by linear
response. All have one rule: an alarm where the logarithm is farther from the mean of the eight records before than the
threshold, in their standard deviations, with a threshold that one in ten runs without an onset exceeds. Derived:
docs/routing.md, Blind detection.
"""

import numpy as np
import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.experiments import Control, Estimate, Experiment, Finding, checks, estimates
from icllab.figures.curves import Panel, panels

DETECTORS = ("loss", "dimension", "response")
KINDS = ("planted", "never", "start", "falls")
NULLS = ("never", "start")  # runs without an onset: the data never begin, or were there from the first step
MEMORY = 8  # records that a record is compared with
FLOOR = 1e-3  # of the logarithm: the least standard deviation that is believed
QUIET = 0.2  # of the run, from which on detectors listen
WINDOW = 0.25  # of the run after an onset: within it an alarm is a hit
RATE = 0.1  # of calibration runs that may alarm
CLEAR = 1.5  # times the threshold: a score that stands out
BEATS = 0.5  # how much more often a detector has to be right than it is wrong without an onset
SMOOTH = 0.25  # of the sums of smooth falls may set off an alarm
FEWEST = 16  # runs of each kind that rates are made of


def scores(series: np.ndarray) -> np.ndarray:
    """How far each logarithm is from the mean of those before it, in their standard deviations; [..., step]."""
    logs, found = np.log(series), np.zeros(series.shape)
    for i in range(MEMORY, series.shape[-1]):
        before = logs[..., i - MEMORY : i]
        found[..., i] = np.abs(logs[..., i] - before.mean(-1)) / np.maximum(before.std(-1, ddof=1), FLOOR)
    return found


def scored(dataset: xr.Dataset, calibrated: bool = True) -> xr.Dataset:
    """Alarms of all detectors: the first step above the threshold, which the even seeds of the nulls set; NaN for none.

    And the highest score in the window after the onset, over that threshold. All of the odd seeds.
    """
    steps, even = dataset["step"].values, dataset["seed"].values % 2 == 0
    values = dataset["monitored"].transpose("kind", "detector", "seed", "step")
    found = np.where(steps >= QUIET * steps[-1], scores(values.values), 0.0)
    kinds = [str(name) for name in dataset["kind"].values]
    nulls = [kinds.index(name) for name in NULLS if name in kinds]
    highest = found[nulls].max(-1).swapaxes(0, 1)[..., even].reshape(found.shape[1], -1)  # [detector, run]
    levels = np.quantile(highest, 1 - RATE, axis=1, method="higher")
    beyond = found > calibrated * levels[None, :, None, None]
    alarms = values.isel(step=0, drop=True).copy(data=np.where(beyond.any(-1), steps[beyond.argmax(-1)], np.nan))
    onset = dataset["onset"].sel(kind="planted", drop=True)
    late = steps - onset.values[:, None]
    after = np.where((late >= 0) & (late <= WINDOW * steps[-1]), found[kinds.index("planted")], 0.0).max(-1)
    ratio = alarms.sel(kind="planted", drop=True).copy(data=after / levels[:, None])
    return xr.Dataset({"alarm_step": alarms, "score_ratio": ratio, "begun": onset}).sel(seed=~even)


def theory(dataset: xr.Dataset, calibrated: bool = True) -> xr.Dataset:
    """With the alarms of the seeds that have set no threshold; not ``calibrated``: with a threshold of zero."""
    found = scored(dataset, calibrated).rename(seed="judged")
    late = (found["alarm_step"].sel(kind="planted", drop=True) - found["begun"]).transpose("detector", "judged")
    hit = (late >= 0) & (late <= WINDOW * float(dataset["step"].max()))
    return dataset.assign(found.drop_vars("begun")).assign(hit=hit.astype(float), detection_delay=late.where(hit))


def share(of: xr.DataArray, *dims: str) -> Estimate:
    """How often, with a standard error that is not zero where it is always or never."""
    count = float(np.prod([of.sizes[name] for name in dims]))
    value = (of.sum(dims) + 1) / (count + 2)
    return Estimate(value, (value * (1 - value) / (count + 3)) ** 0.5)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Do the scores stand out after an onset, which detectors beat runs without one, and which is first?"""
    both, there = ["loss", "response"], set(map(str, dataset["kind"].values))
    ratio = dataset["score_ratio"].sel(detector=both).rename(judged="seed")
    enough = there >= set(KINDS) and dataset.sizes["judged"] >= FEWEST
    findings = [
        *checks.above("stands_out", "highest score after onset / threshold", estimates.geometric_mean(ratio), CLEAR),
        *checks.included("rates", f"all kinds of runs, and {FEWEST} of each to judge", enough),
    ]
    return [*findings, *_rates(dataset, both)] if enough else findings


def _rates(dataset: xr.Dataset, both: list[str]) -> list[Finding]:
    """Hits less false alarms, and the delays of the hits that two detectors share."""
    alarms, delay = dataset["alarm_step"].notnull(), dataset["detection_delay"].rename(judged="seed")
    gain = share(dataset["hit"], "judged") - share(alarms.sel(kind=list(NULLS)), "kind", "judged")
    sooner = estimates.mean(delay.sel(detector="loss", drop=True) - delay.sel(detector="response", drop=True))
    smooth = share(alarms.sel(kind="falls", detector="loss", drop=True), "judged")
    return [
        *checks.above("beats", "hits - alarms without an onset", gain.sel(detector=both), BEATS),
        *checks.below("beats_not", "hits - alarms without an onset", gain.sel(detector=["dimension"]), BEATS),
        *checks.above("sooner", "delay of the loss - of the response", sooner),
        *checks.below("falls", "alarms of the loss on sums of smooth falls", smooth, SMOOTH),
    ]


def figure(dataset: xr.Dataset):
    """What the detectors see of one run with an onset, over what they see when they begin to listen."""
    steps = dataset["step"].values
    part = dataset[["monitored", "onset"]].sel(kind="planted", step=steps[steps >= QUIET * steps[-1]])
    part = part.isel(seed=-1, drop=True).drop_vars("kind")
    shown = part.assign(monitored=part["monitored"] / part["monitored"].isel(step=0))
    return panels(shown, [Panel("monitored", yscale="log")], x="step", hue="detector", vertical=float(part["onset"]))


FIXED = {"contexts": 4, "batch": 16, "start_scale": 0.03, "label_noise": 0.2, "rate": 0.1, "last": 0.15}
FIXED |= {"nbeta": 1000.0, "resolution": 1e-3, "tilts": 4}
COMMON = {"detector": DETECTORS, "step": tuple(range(50, 3001, 50))}

experiment = Experiment(
    claim=(
        "Detectors that see only the loss, or only its response to random tilts, find when a context's data begin, the "
        "response sooner; one that sees the effective dimension does not."
    ),
    conditions=(
        "Two linear layers, four contexts, SGD, one of them asked from a hidden step on; one rule for all detectors, "
        "thresholds from half of the runs without an onset, judged on others."
    ),
    sources=("Baker25",),
    axes=(
        Axis("kind", r"\mathcal{K}", "kind of run"),
        Axis("detector", "s", "what the detector sees"),
        Axis("judged", "s", "run that has set no threshold", least=0),
    ),
    quantities=(
        Quantity("monitored", "s", "what is seen"),
        Quantity("onset", "T_0", "step at which the data of a context begin", "updates"),
        Quantity("alarm_step", "T", "step of the alarm", "updates"),
        Quantity("hit", "H", "whether the alarm is a hit"),
        Quantity("score_ratio", "z/z_0", "highest score after the onset over the threshold"),
        Quantity("detection_delay", "T - T_0", "delay of a hit", "updates"),
    ),
    static=("kind",),
    outputs=("step", "detector"),
    fixed=FIXED,
    sizes={
        "smoke": COMMON | {"kind": ("planted", "never"), "seed": 6, "step": tuple(range(100, 3001, 100))},
        "small": COMMON | {"kind": KINDS, "seed": 64},
        "medium": COMMON | {"kind": KINDS, "seed": Seeds(256, block=32)},
    },
    precision="float64",
    controls={
        "silent": Control("the data of the context never begin", measure={"silent": True}),
        "uncalibrated": Control("an alarm at every record", theory={"calibrated": False}, size="small"),
    },
)
