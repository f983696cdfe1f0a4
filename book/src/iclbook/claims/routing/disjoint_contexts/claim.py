r"""Do the contexts of a trained network use disjoint directions of its weights?

With a program in front of it, a network answers as other weights :math:`f_c(w)` would without. What these answers keep
of the weights w is the row space of :math:`M_c = Df_c^\top G' Df_c`, and the overlap of two contexts is

.. math:: O(c_1, c_2) = \frac{\operatorname{tr} \Pi_1 \Pi_2}{\min(r_1, r_2)},

1 where one space holds the other. Even one context does not overlap with itself by 1, where it is asked other strings.
So the strings are cut into halves: :math:`\bar O` is the mean of :math:`O(c, c)` between the halves, the *ceiling*, and
O that of :math:`O(c_1, c_2)` between them. What contexts share is the ratio,

.. math:: R = O / \bar O,

1 where another context is as good as the same. Independent directions, two spaces turned at random among P weights,
have :math:`O = \max(r_1, r_2)/P` on average. Everything is measured before and after training. A pair of fits counts
where both have converged.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates

BEFORE, AFTER = "before", "after"
LOWER = 0.8  # of the ratio before training
ENOUGH = 8  # networks
LEARNED = 0.1  # nats a symbol
TIMES = 5  # the overlap of independent directions


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """The overlap relative to its ceiling, and the networks that count: programs learned and fits converged."""
    shared = dataset["overlap"] / dataset["ceiling"]
    sound = shared.notnull().all("stage") & (dataset["largest_loss"].max("stage") < LEARNED)
    return dataset.assign(shared=shared, sound=sound.astype(float))


def check(dataset: xr.Dataset) -> list[Finding]:
    """Relative to their ceiling overlaps fall by training, but stay far above the value of independent directions."""
    counted = dataset["sound"] == 1
    quantity = f"at least {ENOUGH} networks of which the programs are learned and fits have converged"
    findings = checks.complete("enough", quantity, bool((counted.sum("seed") >= ENOUGH).all()))
    after, before = (dataset.sel(stage=stage, drop=True).where(counted) for stage in (AFTER, BEFORE))
    quantity = "overlap of other contexts / of the same, after training / before"
    lower = estimates.geometric_mean(after["shared"] / before["shared"])
    findings += checks.below("lower", quantity, lower, LOWER)
    ratio = estimates.geometric_mean(after["overlap"] / after["independent"])
    return findings + checks.above("not_disjoint", "overlap after training / of independent directions", ratio, TIMES)


def figure(dataset: xr.Dataset):
    """Draw overlaps of other contexts and of the same before and after training, their ratio, and ranks."""
    part = dataset.isel(layers=0, width=0, drop=True)
    part = part.sel(stage=[stage for stage in (BEFORE, AFTER) if stage in part.stage])
    pairs = xr.concat([part["overlap"], part["ceiling"]], dim="pair").assign_coords(pair=["other contexts", "same"])
    table = xr.Dataset({"overlap": pairs, "shared": part["shared"]}, attrs=dataset.attrs)
    table = table.assign(overlap_line=part["independent"].mean("seed"))
    rows = [Panel("overlap", "overlap_line", hue="pair", yscale="log"), Panel("shared")]
    return panels(table, rows, x="stage", line_name="independent directions")


claim = Claim(
    title="Contexts share directions of weights",
    sentence=(
        "Relative to what a context shares with itself on other strings, training makes contexts more disjoint in "
        "weights; they still overlap five times as much as independent directions."
    ),
    conditions=(
        "Transformers of two layers trained by Adam on six programs of strings of two symbols; the two most frequent "
        "and the rarest, all weights. Chosen on seeds of another key; unconverged and untrained networks left out."
    ),
    sources=("SLT22",),
    axes=(
        Axis("stage", "s", "stage of training"),
        Axis("pair", "p", "pair of contexts"),
    ),
    quantities=(
        Quantity("overlap", "O", "overlap of contexts between halves of the strings"),
        Quantity("ceiling", r"\bar O", "overlap of a context with itself between the halves"),
        Quantity("shared", "R", "overlap relative to its ceiling"),
        Quantity("independent", "O_0", "overlap of independent directions"),
        Quantity("context_rank", "r_c", "rank of a context"),
        Quantity("largest_loss", "L", "largest loss of a program's answers above their entropy", "nats"),
        Quantity("sound", "s", "whether the programs are learned and fits have converged"),
        Quantity("converged_share", "q", "share of fits that have converged"),
    ),
    static=("layers", "width"),
    outputs=("stage",),
    fixed={"programs": "abcdef", "contexts": "abf", "symbols": 5, "length": 2, "zipf_exponent": 1.0, "heads": 2}
    | {"batch": 64, "updates": 1000, "prompts": 64},
    sizes={
        # A network whose fits converge: where they do not, other rounding ends them at other weights.
        "smoke": {"layers": (1,), "width": (4,), "stage": (BEFORE,), "seed": (0,)},
        "small": {"layers": (2,), "width": (16,), "stage": (BEFORE, AFTER), "seed": Seeds(16, block=2)},
        "medium": {"layers": (2,), "width": (12, 24), "stage": (BEFORE, AFTER), "seed": Seeds(16, block=2)},
    },
    key=34,
    controls={
        "independent": Control(
            "contexts keep directions drawn at random", measure={"independent": True}, axes={"seed": tuple(range(4))}
        ),
        "alike": Control("all programs do the same", measure={"alike": True}, axes={"seed": tuple(range(8))}),
    },
)
