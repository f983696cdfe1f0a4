r"""A change of weights that replaces a context exactly at one query, and what it does at others.

At one token a block's dense layers read a after the context and :math:`a'` without it, beside streams u and
:math:`u'`. The change :math:`\Delta W_1 = a'[(a - a')W_1]/|a'|^2` of the first weights and :math:`\Delta b_2 = u - u'`
of the last bias make the block give without the context what it gave with it; block by block, so does the transformer.
Errors are those of the last answer, root mean squares over contexts and queries, relative to leaving the context out.
The best patch that does not depend on the query is fitted block by block to half of the other queries, and tested on
the rest. Its participation ratio :math:`(\sum\sigma^2)^2/\sum\sigma^4` is 1 for rank one.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks, estimates

OWN, OTHER, LINEAR, AFFINE = "own query", "other queries", "best linear", "best affine"
PATCHES = (OWN, OTHER, LINEAR, AFFINE)
EXACT = 1e-9  # relative error, in float64
USELESS = 0.8  # of the error without a patch
RANK = 1.5  # participation ratio


def check(dataset: xr.Dataset) -> list[Finding]:
    """Exact at its own query, of no use at others; and the best patch for all queries has not rank one."""
    error = dataset["patch_error"]
    at_query = Estimate(error.sel(patch=OWN, drop=True).max("seed"), 0.0)
    findings = checks.below("own", "largest relative error at its own query", at_query, EXACT)
    elsewhere = estimates.mean(error.sel(patch=OTHER, drop=True))
    findings += checks.above("other", "error at other queries / error without a patch", elsewhere, USELESS)
    findings += checks.above("rank", "participation ratio of the best", estimates.mean(dataset["participation"]), RANK)
    better = estimates.mean(error.sel(patch=OTHER, drop=True) - error.sel(patch=AFFINE, drop=True))
    return findings + checks.above("best", "error at other queries - that of the best affine patch", better)


def figure(dataset: xr.Dataset):
    """Errors of the four patches, and the rank of the best, before and after training."""
    part = dataset.isel(layers=0, dim=0, drop=True)
    part = part.assign_coords(step=[f"{step} updates" for step in part.step.values]).sel(patch=list(PATCHES))
    rows = [Panel("patch_error", hue="step"), Panel("participation", x="step")]
    return panels(part, rows, x="patch", columns=2)


claim = Claim(
    title="A weight patch serves one query only",
    sentence=(
        "The rank-one weight patch that replaces a context exactly at one query is of no use at another query, and the "
        "best patch for all queries has a higher rank."
    ),
    conditions=(
        "Regression transformers with layer norm and skip connections, at random weights and trained by Adam; of no "
        "use: more than 0.8 of the error without a patch is left."
    ),
    sources=("Dherin25",),
    axes=(Axis("patch", "p", "patch, and the queries it is tested at"),),
    quantities=(
        Quantity("patch_error", r"\epsilon_p/\epsilon_0", "relative error"),
        Quantity("participation", r"(\sum\sigma^2)^2/\sum\sigma^4", "participation ratio"),
    ),
    static=("layers", "dim"),
    outputs=("step", "patch"),
    fixed={"width": 32, "heads": 2, "length": 8, "batch": 64, "contexts": 16, "queries": 128},
    sizes={
        "smoke": {"layers": (1,), "dim": (4,), "step": (0,), "patch": PATCHES, "seed": 3},
        "small": {"layers": (2,), "dim": (4,), "step": (0, 2000), "patch": PATCHES, "seed": 10},
        "medium": {"layers": (1, 2, 4), "dim": (4, 8), "step": (0, 2000, 20_000), "patch": PATCHES}
        | {"seed": Seeds(6, block=2)},
    },
    controls={
        "near_queries": Control("the other queries are within a tenth of the first", measure={"distance": 0.1}),
        "doubled": Control("the patch is taken twice", measure={"overshoot": 2.0}),
    },
)
