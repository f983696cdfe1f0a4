"""When a program's data begin, which numbers of the data so far reveal it first and most often?

Networks learn programs of one symbol from noisy answers; the data of the last program begin at a hidden step, never, or
are there from the start: otherwise these runs of a seed are the same. Series, rules and thresholds are those of
:mod:`iclbook.claims.routing.blind_detection`. Derived: docs/routing.md, Blind detection.
"""

import xarray as xr

from iclbook.claims.routing import _detection
from icllab.core.grid import Seeds
from icllab.lab import Claim, Control, Finding, checks

KINDS = (*_detection.NULLS, "0.15", "0.3", "0.5")

LARGEST = 0.5
RELIABLE = 0.8
FALSE = 0.2

theory, figure, reduce = _detection.theory, _detection.figure, _detection.reduce


def check(dataset: xr.Dataset) -> list[Finding]:
    """Does no detector find even the largest program reliably, and does the loss find programs most often?"""
    findings = _detection.enough(dataset)
    if findings[0].outcome != "holds":
        return findings
    hits = _detection.share_of(dataset["hit"].sel(share=LARGEST, drop=True))
    findings += checks.below("unreliable", f"hits at a frequency of {LARGEST:g}", hits, RELIABLE)
    return findings + _detection.false_alarms(dataset, FALSE) + _detection.more_often(dataset, ("score",), 0.0)


FIXED = {"updates": 3000, "every": 50, "symbols": 6, "length": 1, "zipf_exponent": 1.0, "noise": 0.2, "last": 0.15}
FIXED |= {"program": "abcd", "width": 6, "layers": 1, "heads": 2, "batch": 32, "resolution": 1e-3}
COMMON = {"kind": KINDS, "series": _detection.SERIES, "rule": _detection.RULES, "level": _detection.LEVELS}

claim = Claim(
    title="Blind detectors miss new data",
    sentence=(
        "No detector that sees only a network's training loss, gradient or response finds the beginning of a program's "
        "data reliably; the loss does so most often."
    ),
    conditions=(
        "Transformers of one layer and 509 weights, by Adam on four programs with noisy answers, one of which begins "
        "at a hidden step with a frequency of 0.15 to 0.5; detectors see the last 50 minibatches. Chosen on 64 other "
        "seeds."
    ),
    sources=("Baker25",),
    axes=_detection.AXES,
    quantities=_detection.QUANTITIES,
    static=(),
    outputs=("kind", "series", "rule", "level"),
    fixed=FIXED,
    sizes={
        "smoke": COMMON | {"kind": (*_detection.NULLS, "0.5"), "updates": 400, "seed": 2},
        "small": COMMON | {"seed": Seeds(64, block=8, first=192)},
        "medium": COMMON | {"seed": Seeds(192, block=12, first=0)},
    },
    key=138,
    precision="float64",
    controls={
        "exchanged": Control("the loss's series is the response, and the other way round", theory={"exchanged": True}),
        "noisier": Control(
            "more labels are wrong from the hidden step on in the runs that are judged",
            measure={"noisier": 0.5},
            axes={"kind": (*_detection.NULLS, "0.5"), "seed": tuple(range(40))},
        ),
        "uncalibrated": Control("thresholds are at the lowest level", theory={"calibrated": False}),
    },
)
