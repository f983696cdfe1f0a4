r"""Of the nine interactions of content, position and buffer two make an induction head, and a third finds the labels.

The score of a key for a query is a sum of nine terms, one for each part of the query and of the key. A term counts by
its *contrast*: its value at the keys a head is to attend to, above its mean over others. Of a trained network are
measured the contrasts of all terms, in the first layer for the item before a label, in the second for the right label
among labels and for labels among all tokens; and what the network does when its scores have some of the terms only.

The landscape takes the overlaps :math:`\zeta_{ij} = \gamma_i^\top\ell_i - \gamma_i^\top\ell_j` of readout and labels
as one number :math:`\xi`. Their spread over i and j is measured too.

At ``smoke`` networks are not trained.
"""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.core.statistics import mean_and_error
from icllab.experiments import checks, estimates
from icllab.experiments.checks import Finding
from icllab.experiments.experiment import Control, Experiment
from icllab.experiments.results import fixed_values
from icllab.figures import style
from icllab.figures.labels import named

CONTRASTS = ("previous", "match", "label")
PARTS = ("content", "position", "buffer")
INTERACTIONS = tuple(f"{query}-{key}" for query in PARTS for key in PARTS)
ONE, TWO, THIRD = "position-position", "content-buffer", "position-position"
# Which terms each layer keeps; None: all.
KEPT = {
    "all": (None, None),
    "two": ((ONE,), (TWO,)),
    "three": ((ONE,), (TWO, THIRD)),
    "without the first": (tuple(name for name in INTERACTIONS if name != ONE), None),
    "without the second": (None, tuple(name for name in INTERACTIONS if name != TWO)),
}
MOST = 0.75  # of a contrast
GOOD = 0.9  # accuracy of a network that has learned
SPREAD = 0.1  # of the mean overlap


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Shares of the contrasts."""
    return dataset.assign(contrast_share=dataset["score_contrast"] / dataset["score_contrast"].sum("interaction"))


def check(dataset: xr.Dataset) -> list[Finding]:
    """The shares of the two, what is left with them alone and without them, the third, and the spread of overlaps."""
    dataset, chance = dataset.isel(step=-1, drop=True), 1 / fixed_values(dataset)["pairs"]
    there = (dataset["accuracy"].sel(kept="all") > GOOD).values
    findings = checks.complete("learned", "every network has learned the task", bool(there.all()))
    findings += checks.complete("several", "several networks have learned the task", bool(there.sum() > 1))
    if there.sum() < 2:
        return findings
    dataset = dataset.isel(seed=there)
    share, accuracy = dataset["contrast_share"], dataset["accuracy"]
    for contrast, interaction in (("previous", ONE), ("match", TWO)):
        own = estimates.mean(share.sel(contrast=contrast, interaction=interaction))
        findings += checks.above("share", "share of the contrast", own, MOST)
    labels = share.sel(contrast="label", drop=True)
    third = labels.sel(interaction=THIRD, drop=True) - labels.sel(interaction=TWO, drop=True)
    what = f"share of {THIRD} - {TWO} in the contrast of labels"
    findings += checks.above("third_share", what, estimates.mean(third))
    missing = set(KEPT) - set(accuracy.kept.values.tolist())
    findings += checks.complete("kept", "all ways of taking apart are measured", not missing)
    spread = estimates.mean(dataset["overlap_spread"] / dataset["overlap"])
    findings += checks.above("spread", "spread of the overlaps / their mean", spread, SPREAD)
    kept = {str(name): accuracy.sel(kept=name, drop=True) for name in accuracy.kept.values}
    if "two" in kept:
        findings += checks.above("two_alone", "accuracy with the two alone", estimates.mean(kept["two"]), MOST)
    if {"two", "three"} <= set(kept):
        gained = estimates.mean(kept["three"] - kept["two"])
        findings += checks.above("third_helps", "accuracy with the third besides - with the two alone", gained)
    without = accuracy.sel(kept=[name for name in kept if name.startswith("without")])
    lost = estimates.mean(kept["all"] - without)
    findings += checks.above("loss_without", "accuracy with all terms - without some", lost, 0.2)
    if "without the second" in kept:
        left = estimates.mean(kept["without the second"])
        findings += checks.below("left_without", "accuracy without the second", left, 2 * chance)
    return findings


def figure(dataset: xr.Dataset):
    """The two operations, drawn from the attention of the networks; below, the contrasts of all nine terms."""
    last = dataset.isel(step=-1)
    pairs = dataset.sizes["right_pair"]
    names = [part for k in range(1, pairs + 1) for part in (f"$x_{k}$", rf"$\ell_{k}$")] + ["$x_q$"]
    with style.context():
        drawn = Figure(figsize=(2 * style.COLUMN, 4.2), layout="constrained")
        FigureCanvasAgg(drawn)
        grid = drawn.subplot_mosaic([["first", "second"], ["terms", "terms"]], height_ratios=(1.25, 1))
        shown = (("first", last["first_pattern"], names), ("second", last["second_pattern"], names[1::2]))
        images = []
        for place, pattern, rows in shown:
            axes = grid[place]
            images.append(axes.imshow(pattern.mean("seed").values, vmin=0, vmax=1, cmap="Greys", aspect="auto"))
            axes.set_xticks(range(len(names)), names)
            axes.set_yticks(range(len(rows)), rows)
            axes.grid(visible=False)
            axes.set_xlabel("key")
        grid["first"].set(title="layer 1: a label looks at its item", ylabel="query")
        grid["second"].set(title="layer 2: $x_q$ looks at the right label", ylabel="the right label")
        drawn.colorbar(images[0], ax=[grid["first"], grid["second"]], label="attention", pad=0.01)
        _terms(grid["terms"], last)
    return drawn


def _terms(axes: Axes, last: xr.Dataset) -> None:
    """Means over seeds of all contrasts, with standard errors."""
    titles = {
        "previous": "item before a label, layer 1",
        "match": "right label, layer 2",
        "label": "labels, layer 2",
    }
    there = [name for name in INTERACTIONS if name in last.interaction.values]
    for i, name in enumerate(name for name in CONTRASTS if name in last.contrast.values):
        values = last["score_contrast"].sel(contrast=name, interaction=there).transpose("interaction", "seed").values
        mean, error = mean_and_error(values)
        at = np.arange(len(there)) + 0.18 * (i - 1)
        look = {"color": style.CATEGORIES[i], "marker": style.marker(i), "label": titles[name]}
        axes.errorbar(at, mean, np.nan_to_num(error), linestyle="none", **look)  # pyright: ignore[reportArgumentType]
    axes.set_xticks(range(len(there)), [name.replace("-", "\n") for name in there])
    axes.set(xlabel="part of the query, and below it of the key", ylabel=named(last, "score_contrast").label)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)


SMALL = {
    "contrast": CONTRASTS,
    "interaction": INTERACTIONS,
    "row": tuple(range(9)),
    "column": tuple(range(9)),
    "right_pair": tuple(range(4)),
}

experiment = Experiment(
    claim=(
        "Two of the nine query-key interactions suffice for an induction head: position with position in the first "
        "layer, content with buffer in the second."
    ),
    conditions=(
        "Networks trained by SGD, N = 4 pairs, 16 labels, 6 seeds. With the two alone accuracy is above 0.75, without "
        "the second below 2/N. A third, position with position in the second layer, tells labels from items; and the "
        "overlaps that the landscape takes as one number spread by more than a tenth of their mean."
    ),
    sources=("Reddy24",),
    axes=(
        Axis("interaction", "u, v", "parts of query and key"),
        Axis("right_pair", "k", "pair of the right label", least=0),
    ),
    quantities=(
        "accuracy",
        "item_label_attention",
        "target_attention",
        Quantity("score_contrast", r"\Delta s", "contrast of the scores"),
        Quantity("contrast_share", r"\Delta s/\Delta s_{\mathrm{all}}", "fraction of a contrast"),
        Quantity("first_pattern", "a_{ij}", "attention in the first layer"),
        Quantity("second_pattern", "a_j", "attention of the query in the second layer"),
        Quantity("overlap", r"\bar\zeta", "mean overlap of readout and labels"),
        Quantity("overlap_spread", r"\sigma_\zeta", "standard deviation of the overlaps"),
    ),
    static=(),
    outputs=("step", "kept", "contrast", "interaction", "row", "column", "right_pair"),
    fixed={"pairs": 4, "label_count": 16, "batch": 128, "prompts": 1024},
    sizes={
        "smoke": SMALL | {"step": (0,), "kept": ("all", "two"), "seed": 2},
        "small": SMALL | {"step": (800, 3000), "kept": tuple(KEPT), "seed": 6},
        "medium": SMALL
        | {"step": (400, 800, 1200, 1600, 2000, 3000, 6000), "kept": tuple(KEPT), "seed": Seeds(12, block=1)},
    },
    theory=theory,
    check=check,
    figure=figure,
    controls={
        "content_only": Control(
            "two others are kept: content with content in both layers",
            measure={"kept": KEPT | {"two": (("content-content",), ("content-content",))}},
            axes={"step": (2500,), "kept": ("all", "two"), "seed": (1, 2)},
            size="small",
        ),
    },
)
