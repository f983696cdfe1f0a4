r"""Can a detector that knows nothing of a network's programs tell when the data of one begin?

Networks learn programs of one symbol from noisy answers; the data of the last program begin at a hidden step, never, or
are there from the start: otherwise these runs of a seed are the same. A detector sees one series over training: the
``loss`` on all programs, the ``dimension``, the effective dimension there, or the ``response``, the root mean square of
first-order susceptibilities of that loss to random tilts of its prompts. The rule is the same for all, and the
thresholds come from half of the runs without an onset. Derived: docs/routing.md, Blind detection.
"""

import xarray as xr

from icllab.claims.routing import _detection
from icllab.claims.routing._detection import DETECTORS
from icllab.core.grid import Seeds
from icllab.lab import Claim, Control, Finding, checks, estimates

KINDS = ("planted", "never", "start")
# How much more often a detector has to be right than it is wrong without an onset.
BEATS = {"response": 0.5, "loss": 0.25}
MOST = 0.5

theory, figure = _detection.theory, _detection.figure


def check(dataset: xr.Dataset) -> list[Finding]:
    """Does the response stand out after an onset, and which detectors beat runs without one?"""
    ratio = dataset["score_ratio"].sel(detector="response", drop=True).rename(judged="seed")
    quantity = "highest score of the response after the onset / threshold"
    findings = checks.above("stands_out", quantity, estimates.geometric_mean(ratio), 1.0)
    gain, quantity = _detection.gain(dataset), "hits - alarms without an onset"
    for detector, bound in BEATS.items():
        findings += checks.above("beats", quantity, gain.sel(detector=[detector]), bound)
    return findings + checks.below("beats_not", quantity, gain.sel(detector=["dimension"]), MOST)


FIXED = {"program": "abcd", "symbols": 6, "length": 1, "zipf_exponent": 1.0, "noise": 0.2, "last": 0.15}
FIXED |= {"width": 6, "layers": 1, "heads": 2, "batch": 32, "resolution": 1e-3, "tilts": 4}
COMMON = {"kind": KINDS, "detector": DETECTORS, "step": tuple(range(50, 3001, 50))}

claim = Claim(
    title="Detecting new data in networks",
    sentence=(
        "Detectors that see only a network's loss, or only its response to random tilts, find when a program's data "
        "begin; one that sees the effective dimension does not."
    ),
    conditions=(
        "Transformers of one layer and 509 weights, by Adam on four programs with noisy answers; one rule for all "
        "detectors, thresholds from half of the runs without an onset. Chosen on 24 other seeds."
    ),
    sources=("Baker25",),
    axes=_detection.AXES,
    quantities=_detection.QUANTITIES,
    static=(),
    outputs=("kind", "step", "detector"),
    fixed=FIXED,
    sizes={
        "smoke": COMMON | {"kind": KINDS[:2], "seed": 3, "step": tuple(range(50, 1501, 50))},
        "small": COMMON | {"seed": 64},
        "medium": COMMON | {"seed": Seeds(128, block=16)},
    },
    key=32,
    precision="float64",
    controls={"silent": Control("the data of the program never begin", measure={"silent": True})},
)
