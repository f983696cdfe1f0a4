r"""A change of weights that replaces a context exactly at one query, and its errors at other queries.

At one token a block's dense layers read a after the context and :math:`a'` without it, beside streams u and
:math:`u'`. The change :math:`\Delta W_1 = a'[(a - a')W_1]/|a'|^2` of the first weights and :math:`\Delta b_2 = u - u'`
of the last bias make the block give without the context what it gave with it; block by block, so does the transformer.
Errors are those of the last answer, root mean squares over contexts and queries, relative to leaving the context out.
The best patch that does not depend on the query is fitted block by block to half of the other queries, and tested on
the rest.

The rank of a patch is asked in the metric of what the layer reads: of its change of the layer's outputs,
:math:`a' \Delta W + \Delta b`, rank r keeps the r directions of most variance over queries. What it leaves of the
change that the context makes is measured at the other queries. Singular values of :math:`\Delta W` alone would count
directions that no query has.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, Subject, checks, estimates

OWN, OTHER, LINEAR, AFFINE = "own query", "other queries", "best linear", "best affine"
PATCHES = (OWN, OTHER, LINEAR, AFFINE)
EXACT = 1e-9  # relative error, in float64
USELESS = 0.8  # of the error without a patch
RANKS = ("0", "1", "2", "full")
LEFT = 0.2  # of the first layer's change, by rank one
HALF = 0.5  # of what rank one leaves, by the full rank


def check(dataset: xr.Dataset) -> list[Finding]:
    """Exact at its own query, useless at others; over all queries rank one leaves much that full rank removes."""
    error, left = dataset["patch_error"], dataset["rank_left"].sel(block="first", drop=True)
    at_query = Estimate(error.sel(patch=OWN, drop=True).max("seed"), 0.0)
    findings = checks.below("own", "largest relative error at its own query", at_query, EXACT)
    elsewhere = estimates.mean(error.sel(patch=OTHER, drop=True))
    findings += checks.above("other", "error at other queries / error without a patch", elsewhere, USELESS)
    rank_one, full = (left.sel(map_rank=rank, drop=True) for rank in ("1", "full"))
    quantity = "fraction of the first layer's change that rank one leaves"
    findings += checks.above("rank", quantity, estimates.mean(rank_one), LEFT)
    ratio = estimates.geometric_mean(full / rank_one)
    findings += checks.below("full", "what the full rank leaves / what rank one leaves", ratio, HALF)
    better = estimates.mean(error.sel(patch=OTHER, drop=True) - error.sel(patch=AFFINE, drop=True))
    return findings + checks.above("best", "error at other queries - that of the best affine patch", better)


def figure(dataset: xr.Dataset):
    """Draw errors of the four patches, and residuals of the first layer's change by rank, before and after training."""
    part = dataset.isel(layers=0, dim=0, drop=True)
    part = part.assign_coords(step=[f"{step} updates" for step in part.step.values]).sel(patch=list(PATCHES))
    part["rank_left"] = part["rank_left"].sel(block="first", drop=True)
    rows = [Panel("patch_error", hue="step"), Panel("rank_left", x="map_rank", hue="step")]
    return panels(part, rows, x="patch", columns=2)


OUTPUTS = {"patch": PATCHES, "block": ("first", "last"), "map_rank": RANKS}

claim = Claim(
    title="A weight patch serves one query only",
    sentence=(
        "The network's rank-one patch that replaces a context exactly at one query is of no use at another; for "
        "all queries the best of rank one leaves a fifth."
    ),
    conditions=(
        "Regression transformers with layer norm and skip connections, at random weights and trained by Adam; of no "
        "use: more than 0.8 of the error is left. A fifth of the first layer's change, in the metric of its inputs; "
        "the full rank leaves less than half of that. Bounds were set on other seeds."
    ),
    sources=("Dherin25",),
    axes=(
        Axis("patch", "p", "patch, and the queries it is tested at"),
        Axis("block", "b", "block"),
        Axis("map_rank", "r", "rank of the best patch"),
    ),
    quantities=(
        Quantity("patch_error", r"\epsilon_p/\epsilon_0", "relative error"),
        Quantity("rank_left", r"\rho_r", "residual of the first dense layer's change"),
    ),
    static=("layers", "dim"),
    outputs=("step", "patch", "block", "map_rank"),
    fixed={"width": 32, "heads": 2, "length": 8, "batch": 64, "contexts": 16, "queries": 128},
    sizes={
        "smoke": {"layers": (1,), "dim": (4,), "step": (0,), "seed": 3} | OUTPUTS,
        "small": {"layers": (2,), "dim": (4,), "step": (0, 2000), "seed": 10} | OUTPUTS,
        "medium": {"layers": (1, 2, 4), "dim": (4, 8), "step": (0, 2000, 20_000), "seed": Seeds(6, block=2)} | OUTPUTS,
    },
    key=57,
    subject=Subject(
        "regression",
        "regression transformers of two blocks, at random weights and trained",
        axes={"step": (0,)},
        controls=("near_queries", "doubled", "reversed"),
    ),
    controls={
        "near_queries": Control("the other queries are within a tenth of the first", measure={"distance": 0.1}),
        "doubled": Control("the patch is taken twice", measure={"overshoot": 2.0}),
        "reversed": Control("the best patches are subtracted twice", measure={"sign": -2.0}),
    },
)
