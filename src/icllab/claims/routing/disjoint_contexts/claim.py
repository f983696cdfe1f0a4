r"""Do the contexts of a trained network use disjoint directions of its weights?

With a program in front of it, a network answers as other weights :math:`f_c(w)` would without. What these answers keep
of the weights w is the row space of :math:`M_c = Df_c^\top G' Df_c`, and the overlap of two contexts is

.. math:: O(c_1, c_2) = \frac{\operatorname{tr} \Pi_1 \Pi_2}{\min(r_1, r_2)},

1 where one space holds the other. Independent directions, two spaces turned at random among P weights, have
:math:`\max(r_1, r_2)/P` on average. If contexts had weights of their own, the overlap would be 0. It is measured before
and after training, for three programs and all queries.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates

BEFORE, AFTER = "before", "after"
LOWER = 0.8  # of the overlap before training
ENOUGH = 6  # networks
LEARNED = 0.1  # nats a symbol
TIMES = 10  # the overlap of independent directions


def check(dataset: xr.Dataset) -> list[Finding]:
    """Overlaps are lower after training, and far from those of independent directions; of converged fits."""
    after, before = (dataset.sel(stage=stage, drop=True) for stage in (AFTER, BEFORE))
    low_loss = bool((after["largest_loss"] < LEARNED).all())
    findings = checks.complete("learned", "the programs are learned", low_loss)
    fits = (dataset["converged"] == 1).all("stage")
    quantity = f"at least {ENOUGH} networks of which all fits have converged"
    findings += checks.complete("fitted", quantity, bool((fits.sum("seed") >= ENOUGH).all()))
    lower = estimates.geometric_mean((after["overlap"] / before["overlap"]).where(fits))
    findings += checks.below("lower", "overlap after training / before", lower, LOWER)
    ratio = estimates.geometric_mean((after["overlap"] / after["independent"]).where(fits))
    return findings + checks.above("not_disjoint", "overlap after training / of independent directions", ratio, TIMES)


def figure(dataset: xr.Dataset):
    """Overlaps before and after training beside those of independent directions, and ranks."""
    lines = dataset[["overlap", "context_rank"]].assign(overlap_line=dataset["independent"].mean("seed"))
    rows = [Panel("overlap", "overlap_line", yscale="log"), Panel("context_rank")]
    part = lines.isel(layers=0, width=0, drop=True)
    part = part.sel(stage=[stage for stage in (BEFORE, AFTER) if stage in part.stage])
    return panels(part, rows, x="stage", line_name="independent directions")


claim = Claim(
    title="Contexts share directions of weights",
    sentence=(
        "Training makes the contexts of a network use more disjoint directions of its weights; they still overlap more "
        "than ten times as much as independent directions."
    ),
    conditions=(
        "Transformers of two layers trained by Adam on six programs of strings of two symbols; the two most frequent "
        "and the rarest, all weights. The sentence was chosen on two other seeds."
    ),
    sources=("SLT22",),
    axes=(Axis("stage", "s", "stage of training"),),
    quantities=(
        Quantity("overlap", "O", "overlap of contexts"),
        Quantity("independent", "O_0", "overlap of independent directions"),
        Quantity("context_rank", "r_c", "rank of a context"),
        Quantity("largest_loss", "L", "largest loss of a program's answers above their entropy", "nats"),
        "converged",
    ),
    static=("layers", "width"),
    outputs=("stage",),
    fixed={"programs": "abcdef", "contexts": "abf", "symbols": 5, "length": 2, "zipf_exponent": 1.0, "heads": 2}
    | {"batch": 64, "updates": 1000, "prompts": 64},
    sizes={
        "smoke": {"layers": (1,), "width": (4,), "stage": (BEFORE,), "seed": (1,)},
        "small": {"layers": (2,), "width": (16,), "stage": (BEFORE, AFTER), "seed": 10},
        "medium": {"layers": (2,), "width": (16, 32), "stage": (BEFORE, AFTER), "seed": Seeds(16, block=4)},
    },
    key=23,
    controls={
        "independent": Control("contexts keep directions drawn at random", measure={"independent": True}),
        "untrained": Control(
            "the network is hardly trained", measure={"trained": False}, axes={"seed": tuple(range(4))}
        ),
    },
)
