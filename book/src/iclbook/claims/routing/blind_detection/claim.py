r"""When the data of a context begin, which numbers of the data that have come tell first and most often?

Two linear layers answer contexts by stochastic gradient descent; the data of the last one begin at a hidden step. A
detector sees the mean loss of the minibatches since the last record, the norms of their gradients, or the response of
that loss to more of one of its examples, and alarms by a score or by a cumulative sum of scores. All have one rate of
false alarms. Derived: docs/routing.md, Blind detection.
"""

import xarray as xr

from iclbook.claims.routing import _detection
from icllab.core.grid import Seeds
from icllab.lab import Claim, Control, Finding, checks

KINDS = (*_detection.NULLS, "0.01", "0.02", "0.05", "0.15")

SIZE = 0.05
RELIABLE = 0.8
FALSE = 0.15
MORE = 0.1  # hits: what a series has to add to be more often right

theory, figure, reduce = _detection.theory, _detection.figure, _detection.reduce


def check(dataset: xr.Dataset) -> list[Finding]:
    """Is the loss right, at the rate of false alarms that is set, and are the others later, and no more often right?"""
    findings = _detection.enough(dataset)
    if findings[0].outcome != "holds":
        return findings
    loss = _detection.share_of(dataset["hit"].sel(series="loss", rule="sum", share=SIZE, drop=True))
    findings += checks.above("tells", f"hits of the loss at a frequency of {SIZE:g}", loss, RELIABLE)
    findings += _detection.false_alarms(dataset, FALSE) + _detection.more_often(dataset, _detection.RULES, -MORE)
    return findings + _detection.sooner(dataset, "sum")


FIXED = {"updates": 3000, "every": 50, "contexts": 4, "batch": 16, "start_scale": 0.03, "label_noise": 0.2, "rate": 0.1}
FIXED |= {"last": 0.15, "resolution": 1e-3}
COMMON = {"series": _detection.SERIES, "rule": _detection.RULES, "level": _detection.LEVELS}
FEWER = {"seed": tuple(range(256, 320))}

claim = Claim(
    title="Detection by loss or response",
    sentence=(
        "Neither the gradient's norm nor the response to single examples finds the beginning of a context's data more "
        "often or sooner than the mean training loss."
    ),
    conditions=(
        "Two linear layers, four contexts, SGD, one of them begins at a hidden step with a frequency of 0.01 to 0.15; "
        "detectors see the last 50 minibatches, at one rate of false alarms. More often: by a tenth. Chosen on other "
        "seeds."
    ),
    sources=("Baker25",),
    axes=_detection.AXES,
    quantities=_detection.QUANTITIES,
    static=("kind",),
    outputs=("series", "rule", "level"),
    fixed=FIXED,
    sizes={
        "smoke": COMMON | {"kind": (*_detection.NULLS, "0.15"), "seed": 4},
        "small": COMMON | {"kind": KINDS, "seed": tuple(range(256, 448))},
        "medium": COMMON | {"kind": KINDS, "seed": Seeds(256, block=64)},
    },
    key=238,  # the sentence was changed after 192 seeds of another
    precision="float64",
    controls={
        "silent": Control("the data of the context never begin", measure={"silent": True}, axes=FEWER),
        "exchanged": Control("the loss's series is the response, and the other way round", theory={"exchanged": True}),
        "noisier": Control(
            "labels become noisier at the hidden step of the runs without an onset that are judged",
            measure={"noisier": 1.5},
            axes=FEWER,
        ),
        "uncalibrated": Control("thresholds are at the lowest level", theory={"calibrated": False}),
    },
)
