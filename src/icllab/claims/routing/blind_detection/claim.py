r"""Can a detector that knows nothing of the contexts tell when the data of one begin, and which is first?

Two linear layers answer contexts by stochastic gradient descent; the data of the last one begin at a hidden step. A
detector sees one series over training: the ``loss`` on all contexts, the ``dimension``, the effective dimension there,
or the ``response``, the root mean square of susceptibilities of that loss to random tilts of its prompts, by linear
response. All have one rule: an alarm where the logarithm is farther from the mean of the eight records before than the
threshold, in their standard deviations, with a threshold that one in ten runs without an onset exceeds. Derived:
docs/routing.md, Blind detection.
"""

import xarray as xr

from icllab.claims.routing import _detection
from icllab.claims.routing._detection import DETECTORS, FEWEST
from icllab.core.grid import Seeds
from icllab.lab import Claim, Control, Finding, checks, estimates

KINDS = ("planted", "never", "start", "falls")
CLEAR = 1.5  # times the threshold: a score that stands out
BEATS = 0.5  # how much more often a detector has to be right than it is wrong without an onset
SMOOTH = 0.25  # of the sums of smooth falls may set off an alarm

theory, figure = _detection.theory, _detection.figure


def check(dataset: xr.Dataset) -> list[Finding]:
    """Do the scores stand out after an onset, which detectors beat runs without one, and which is first?"""
    detectors, kinds = ["loss", "response"], set(map(str, dataset["kind"].values))
    ratio = dataset["score_ratio"].sel(detector=detectors).rename(judged="seed")
    enough = kinds >= set(KINDS) and dataset.sizes["judged"] >= FEWEST
    findings = [
        *checks.above("stands_out", "highest score after onset / threshold", estimates.geometric_mean(ratio), CLEAR),
        *checks.complete("rates", f"all kinds of runs, and {FEWEST} of each to judge", enough),
    ]
    return [*findings, *_rates(dataset, detectors)] if enough else findings


def _rates(dataset: xr.Dataset, detectors: list[str]) -> list[Finding]:
    """Hits less false alarms, and the delays of the hits that two detectors share."""
    alarms, gain = dataset["alarm_step"].notnull(), _detection.gain(dataset)
    smooth = _detection.share(alarms.sel(kind="falls", detector="loss", drop=True), "judged")
    return [
        *checks.above("beats", "hits - alarms without an onset", gain.sel(detector=detectors), BEATS),
        *checks.below("beats_not", "hits - alarms without an onset", gain.sel(detector=["dimension"]), BEATS),
        *_detection.sooner(dataset),
        *checks.below("falls", "alarms of the loss on sums of smooth falls", smooth, SMOOTH),
    ]


def reduce(dataset: xr.Dataset) -> xr.Dataset:
    """The numbers in single precision."""
    return dataset.astype("float32")


FIXED = {"contexts": 4, "batch": 16, "start_scale": 0.03, "label_noise": 0.2, "rate": 0.1, "last": 0.15}
FIXED |= {"nbeta": 1000.0, "resolution": 1e-3, "tilts": 4}
COMMON = {"detector": DETECTORS, "step": tuple(range(50, 3001, 50))}

claim = Claim(
    title="Detecting when a context's data begin",
    sentence=(
        "Detectors that see only the loss, or only its response to random tilts, find when a context's data begin, the "
        "response sooner; one that sees the effective dimension does not."
    ),
    conditions=(
        "Two linear layers, four contexts, SGD, one of them asked from a hidden step on; one rule for all detectors, "
        "thresholds from half of the runs without an onset, judged on others."
    ),
    sources=("Baker25",),
    axes=_detection.AXES,
    quantities=_detection.QUANTITIES,
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
        "exchanged": Control(
            "the loss detects as the response does, that as the dimension, that as the loss",
            measure={"exchanged": True},
        ),
        "uncalibrated": Control("an alarm at every record", theory={"calibrated": False}),
    },
)
