"""When a program's data begin, does the training loss reveal it, and do the gradient and the response?

Networks learn programs of one symbol from noisy answers; the data of the last program begin at a hidden step, never, or
are there from the start: otherwise these runs of a seed are the same. Series and thresholds are those of
:mod:`iclbook.claims.routing.blind_detection`; the rules are the score and the rise above the mean of the four records
before. While the loss falls, the spread of the last eight records is mostly the fall: the score, in units of it, and
sums of scores miss what the rise finds. Derived: docs/routing.md, Blind detection.
"""

import xarray as xr

from iclbook.claims.routing import _detection
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks

KINDS = (*_detection.NULLS, "0.15", "0.3", "0.5")
RULES = ("score", "rise")

LARGEST = 0.5
RELIABLE, SELDOM = 0.7, 0.5
FALSE = 0.2

theory, reduce = _detection.theory, _detection.reduce


def check(dataset: xr.Dataset) -> list[Finding]:
    """Does a rise of the loss find the largest program, and do the gradient and the response miss it by both rules?"""
    findings = _detection.enough(dataset)
    if findings[0].outcome != "holds":
        return findings
    hit = dataset["hit"].sel(share=LARGEST, drop=True)
    phrase = f"hits at a frequency of {LARGEST:g}"
    loss = _detection.share_of(hit.sel(series="loss", rule="rise", drop=True))
    findings += checks.above("finds", f"{phrase} by a rise of the loss", loss, RELIABLE)
    others = _detection.share_of(hit.sel(series=list(_detection.OTHERS)))
    return findings + checks.below("misses", phrase, others, SELDOM) + _detection.false_alarms(dataset, FALSE)


def figure(dataset: xr.Dataset):
    """Hits of every series by both rules against the frequency of the program that begins, and delays of hits."""
    hit, delay = _detection.share_of(dataset["hit"]), dataset["detection_delay"].median("judged")
    rows = xr.Dataset({"hit": hit.value, "hit_error": hit.error, "detection_delay": delay}, attrs=dataset.attrs)
    at = [{"rule": rule} for rule in dataset["rule"].values.tolist()]
    return panels(rows, [Panel("hit", at=rule, ylim=(-0.03, 1.03)) for rule in at], x="share", hue="series")


FIXED = {"updates": 3000, "every": 50, "symbols": 6, "length": 1, "zipf_exponent": 1.0, "noise": 0.2, "last": 0.15}
FIXED |= {"program": "abcd", "width": 6, "layers": 1, "heads": 2, "batch": 32, "resolution": 1e-3}
COMMON = {"kind": KINDS, "series": _detection.SERIES, "rule": RULES, "level": _detection.LEVELS}

claim = Claim(
    title="The loss sees new data",
    sentence=(
        "A rise of the training loss finds the beginning of a program's data at a frequency of 0.5; the gradient's "
        "norm and the response to single examples mostly miss it."
    ),
    conditions=(
        "Transformers of one layer and 509 weights, by Adam on four programs with noisy answers; series are over 50 "
        "minibatches. Finds: an alarm within a quarter of the run in over 0.7 of runs; mostly misses: in under half, "
        "by scores as well. Thresholds are set by 64 other seeds, so that 0.05 of runs alarm falsely. The rule was "
        "chosen on 40 seeds of another key; on a third, 0.88 ± 0.04 did not decide whether 0.8 are found."
    ),
    sources=("Baker25",),
    axes=_detection.AXES,
    quantities=_detection.QUANTITIES,
    static=(),
    outputs=("kind", "series", "rule", "level"),
    fixed=FIXED,
    sizes={
        "smoke": COMMON | {"kind": (*_detection.NULLS, "0.5"), "updates": 400, "seed": 2},
        "small": COMMON | {"seed": Seeds(128, block=16)},
        "medium": COMMON | {"seed": Seeds(384, block=16)},
    },
    key=538,  # the sentence was turned round after runs of another, and its bound lowered after runs of a second
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
