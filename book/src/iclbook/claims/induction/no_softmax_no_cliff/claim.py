r"""Without softmax, no cliff? The abrupt rise of the accuracy, without the exponentials of attention.

The nested exponentials of an induction head have been held to be why it is learned abruptly. In the place of those of
the first layer, the second, or both stands attention of first order in its scores,

.. math:: a_{ij} = \frac{1 + s_{ij}}{i}, \qquad s_{ij} = \langle x_i W_Q,\, x_j W_K \rangle, \quad j \le i,

as even as softmax where scores are zero, and possibly negative. Compared is the width of the jump over its time, which
does not change when all rates are made smaller: the time from a tenth to nine tenths of the way to 1 from 1/N. A run
that does not jump in the steps given has no width; the fraction that do has an interval.
"""

import xarray as xr

from iclbook.claims.induction import _transitions
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates, intervals
from icllab.lab.results import fixed_values

SOFTMAX = "softmax"
KINDS = {
    SOFTMAX: ("softmax", "softmax"),
    "first order, layer 1": ("linear", "softmax"),
    "first order, layer 2": ("softmax", "linear"),
    "first order, both": ("linear", "linear"),
}
SHARP = 1 / 3  # of the relative width
MOST = 1 / 2  # of the networks
WIDER = 3  # of the relative width, over that of softmax


def check(dataset: xr.Dataset) -> list[Finding]:
    """Most networks of every kind jump at every rate, sharply, and not much more gradually than softmax."""
    jump = _transitions.risen(dataset["accuracy"], plateau=1 / fixed_values(dataset)["pairs"], end=1.0)
    jumping = intervals.fraction(jump["transitioned"])
    findings = checks.above("jumping", "fraction of networks that jump", jumping, MOST)
    widths = jump["relative_width"]
    findings += checks.below("relative_width", "relative width of the jump", estimates.mean(widths), SHARP)
    softmax = estimates.geometric_mean(widths.reindex(attention=[SOFTMAX]).isel(attention=0, drop=True))
    ratio = estimates.geometric_mean(widths.sel(attention=dataset.attention != SOFTMAX)) / softmax
    return findings + checks.below("width_ratio_pairs", "relative width from 1/N / softmax's", ratio, WIDER)


def figure(dataset: xr.Dataset):
    """Draw accuracy against training at the largest rate, one panel for each kind and one line for each network."""
    part = dataset.isel(rate=-1, drop=True)[["accuracy"]]
    kinds = [kind for kind in KINDS if kind in dataset.attention.values]
    rows = [Panel(None, line="accuracy", at={"attention": kind}) for kind in kinds]
    return panels(part, rows, x="step", hue="seed", line_x="step")


ALONE = {"attention": ("first order, both",), "rate": (0.3,)}

claim = Claim(
    title="Without softmax the jump remains",
    sentence=(
        "With first-order attention in place of softmax, in either layer or both, most networks still wait at 1/N and "
        "then jump, at under three times softmax's relative width."
    ),
    conditions=(
        "N = 4, L = 16, novel classes in every prompt, SGD at two rates, 4000 steps. A jump takes less than a third of "
        "the time until then. The softmax of the cross-entropy stays. That every network jumps was false of one in "
        "eighty of another key."
    ),
    sources=("Reddy24",),
    quantities=("accuracy",),
    static=("attention",),
    outputs=("step",),
    fixed={"pairs": 4, "label_count": 16, "dim": 31, "batch": 128, "prompts": 1024},
    sizes={
        "smoke": {**ALONE, "step": (0, 40), "seed": 2},
        "small": {"attention": tuple(KINDS), "rate": (0.15, 0.3), "step": tuple(range(0, 4001, 25)), "seed": 10},
        "medium": {"attention": tuple(KINDS), "rate": (0.15, 0.3), "step": tuple(range(0, 4001, 25))}
        | {"seed": Seeds(24, block=3, first=10)},
    },
    key=2,
    controls={
        "zero_order": Control(
            "attention of zero order, the same to all tokens: it cannot look labels up",
            measure={"prepared": "zero order"},
            axes={**ALONE, "step": tuple(range(0, 4001, 100)), "seed": tuple(range(12))},
        ),
        "patterns_given": Control(
            "without softmax both attention patterns are given, and accuracy rises as smoothly as the readout",
            measure={"prepared": "patterns given"},
            axes={"attention": (SOFTMAX, "first order, both"), "rate": (0.3,), "seed": tuple(range(12))}
            | {"step": (*range(0, 301, 5), *range(325, 4001, 25))},
        ),
    },
)
