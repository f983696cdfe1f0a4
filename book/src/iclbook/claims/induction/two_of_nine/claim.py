r"""Of the nine interactions of content, position and buffer two make an induction head, and a third finds the labels.

The score of a key for a query is a sum of nine terms. A term counts by its *contrast*: its value at the keys a head is
to attend to, above its mean over others: in the first layer at the item before a label, in the second at the right
label among labels, and at labels among all tokens. Measured too is what the network does with some of the terms only,
and the spread of the overlaps :math:`\zeta_{ij} = \gamma_i^\top\ell_i - \gamma_i^\top\ell_j` of readout and labels,
which the landscape takes as one number :math:`\xi`.
"""

import xarray as xr

from iclbook.claims.induction._learned import LEARNED
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates, intervals
from icllab.lab.results import fixed_values

CONTRASTS = ("previous", "match", "label")
PARTS = ("content", "position", "buffer")
INTERACTIONS = tuple(f"{query}-{key}" for query in PARTS for key in PARTS)
ONE, TWO, THIRD = "position-position", "content-buffer", "position-position"
RIVAL = "content-content"


def kept_terms(one: str, two: str) -> dict[str, tuple[tuple[str, ...] | None, tuple[str, ...] | None]]:
    """Which terms each layer keeps; None: all."""
    return {
        "all": (None, None),
        "two": ((one,), (two,)),
        "three": ((one,), (two, THIRD)),
        "without the first": (tuple(name for name in INTERACTIONS if name != one), None),
        "without the second": (None, tuple(name for name in INTERACTIONS if name != two)),
    }


KEPT = kept_terms(ONE, TWO)
WITHOUT = ("without the first", "without the second")
MOST, SPREAD = 0.75, 0.1  # of a contrast; of the mean overlap


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Shares of the contrasts."""
    return dataset.assign(contrast_share=dataset["score_contrast"] / dataset["score_contrast"].sum("interaction"))


def check(dataset: xr.Dataset) -> list[Finding]:
    """The shares of the two, what is left with them alone and without them, the third, and the spread of overlaps."""
    chance, dataset = 1 / fixed_values(dataset)["pairs"], dataset.isel(step=-1, drop=True)
    learners = dataset["accuracy"].sel(kept="all", drop=True) > LEARNED
    learned = intervals.fraction(learners)
    findings = checks.above("learned", "fraction of networks that have learned the task", learned, 1 / 2)
    if not learners.any():
        return findings
    dataset = dataset.isel(seed=learners.values)
    share, accuracy = dataset["contrast_share"], dataset["accuracy"].reindex(kept=list(KEPT))
    for contrast, interaction in (("previous", ONE), ("match", TWO)):
        fraction = estimates.mean(share.sel(contrast=contrast, interaction=interaction))
        findings += checks.above("share", "share of the contrast", fraction, MOST)
    labels = share.sel(contrast="label", drop=True)
    third = estimates.mean(labels.sel(interaction=THIRD, drop=True) - labels.sel(interaction=TWO, drop=True))
    findings += checks.above("third_share", f"share of {THIRD} - {TWO} in the contrast of labels", third)
    spread = estimates.mean(dataset["overlap_spread"] / dataset["overlap"])
    findings += checks.above("spread", "spread of the overlaps / their mean", spread, SPREAD)
    whole, two, three, _, without_second = (accuracy.sel(kept=name, drop=True) for name in KEPT)
    findings += checks.above("two_alone", "accuracy with the two alone", estimates.mean(two), MOST)
    gain = estimates.mean(three - two)
    findings += checks.above("third_helps", "accuracy with the third besides - with the two alone", gain)
    loss = estimates.mean(whole - accuracy.sel(kept=list(WITHOUT)))
    findings += checks.above("loss_without", "accuracy with all terms - without some", loss, 0.2)
    left, quantity = estimates.mean(without_second), "accuracy without the second"
    return findings + checks.agrees("left_without", quantity, left, chance, largest_error=0.02)


def figure(dataset: xr.Dataset):
    """Contrasts of all nine terms, and what networks do when their scores have some of the terms only."""
    last = dataset.isel(step=-1, drop=True)
    order = {"interaction": INTERACTIONS, "contrast": CONTRASTS, "kept": KEPT}
    selection = {dim: [name for name in names if name in last[dim].values] for dim, names in order.items()}
    rows = [Panel("score_contrast", x="interaction", hue="contrast"), Panel("accuracy", x="kept")]
    return panels(last.sel(selection), rows, x="interaction", columns=2)


SMALL = {"contrast": CONTRASTS, "interaction": INTERACTIONS, "kept": tuple(KEPT)}
SMALL |= {"row": tuple(range(9)), "column": tuple(range(9)), "right_pair": tuple(range(4))}

claim = Claim(
    title="Two of nine interactions suffice",
    sentence=(
        "Two of the nine query-key interactions suffice for an induction head: position with position in the first "
        "layer, content with buffer in the second."
    ),
    conditions=(
        "Networks trained by SGD, N = 4 pairs, 16 labels, 10 seeds. With the two alone accuracy is above 0.75, "
        "without the second 1/N. A third, position with position in the second layer, tells labels from items; and the "
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
        "small": SMALL | {"step": (800, 6000), "seed": 10},
        "medium": SMALL | {"step": (400, 800, 1200, 1600, 2000, 3000, 6000), "seed": Seeds(12, block=1)},
    },
    key=1,
    controls={
        "content_only": Control(
            "the two are content with content, in both layers: a label looks for its like, the query for its item",
            measure={"kept": kept_terms(RIVAL, RIVAL)},
            axes={"step": (4000,), "seed": tuple(range(6))},
        ),
        "contents": Control(
            "made-up scores of contents alone, a third term that points at items, and overlaps that are one number",
            measure={"made_up": "contents"},
        ),
        "untrained": Control(
            "networks are left as they start",
            measure={"learn": False},
            axes={"step": (6000,), "seed": tuple(range(12))},
        ),
    },
)
