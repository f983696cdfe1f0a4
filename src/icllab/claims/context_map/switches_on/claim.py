r"""Does a functorial law from contexts to weights appear when in-context learning does?

:math:`f_c(w)` are the weights that answer without a context c as w does with it. That there are such weights shows the
capacity of the network; a law would also be compatible with changes of w (derivative test, :math:`\tau_c`) and with
contexts one after the other (composition, :math:`\kappa_c`). Both are measured at four stages of training: the start,
the *jump* (the first score that is half of that at the end), half the updates before it, and the end. Below a law ratio
:math:`\Lambda` of 1 both tests set the map apart from both nulls.

A query of one token does not feel queries and keys. So the classifier moves of the item-label network, and the dense
layers of the regression transformer; with queries of three tokens (two examples of their own) the attention moves. Fast
weights that a sum over the context writes show that the tests find a law where there is one. Points are hollow where
the fit of some context's weights has not converged.

Other items of the context's classes, asked without it, say what :math:`f_c(w)` has in its weights. The score is
accuracy, or the fraction of variance explained.
"""

import xarray as xr

from icllab.claims.context_map._law_ratios import (
    ANSWERED,
    AXES,
    EXACT,
    FIXED,
    LAW,
    QUANTITIES,
    of_contexts,
    with_ratios,
)
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates

STAGES = ("start", "before", "jump", "end")
FAMILIES = ("item_label", "regression", "three_tokens")
TRAINED = 0.6  # score at the end


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Each test over the least of its nulls, the larger of both, and the score with the context."""
    line, score = xr.ones_like(dataset.stage, dtype=float), dataset["score"].sel(answered_by="context", drop=True)
    return with_ratios(dataset).assign(ratio_line=line, score_line=score.mean(["seed", "context"]))


def check(dataset: xr.Dataset) -> list[Finding]:
    """No law before the onset and one at the end; and where there is one at all stages, it is found."""
    law = estimates.geometric_mean(of_contexts(dataset["law_ratio"]))
    networks = [name for name in FAMILIES if name in dataset.family]
    findings = []
    if EXACT in dataset.family:
        findings += checks.below("exact", LAW, law.sel(family=[EXACT]), 1.0)
    if "before" in dataset.stage:
        findings += checks.above("before", f"{LAW} before the onset", law.sel(family=networks, stage="before"), 1.0)
    if "end" in dataset.stage:
        findings += checks.below("after", f"{LAW} after training", law.sel(family=networks, stage="end"), 1.0)
        trained = bool((dataset["training_score"].sel(family=networks, stage="end") > TRAINED).all())
        findings += checks.complete("trained", f"every network ends with a score above {TRAINED:g}", trained)
    return findings


def figure(dataset: xr.Dataset):
    """Both tests over their nulls, the gap, and the score of the context's weights, along training."""
    networks = [name for name in FAMILIES if name in dataset.family] or [EXACT]
    part = dataset.sel(family=networks, stage=[stage for stage in STAGES if stage in dataset.stage])
    ratios = {name: of_contexts(part[name]) for name in ("derivative_ratio", "composition_ratio")}
    score = part["score"].sel(answered_by="map", drop=True).mean("context")
    part = part.assign(ratios).assign(map_gap=part["map_gap"].mean("context"), score=score)
    rows = [
        Panel("derivative_ratio", "ratio_line", yscale="log", hollow="unconverged"),
        Panel("composition_ratio", "ratio_line", yscale="log", hollow="unconverged"),
        Panel("map_gap", yscale="log", hollow="unconverged"),
        Panel("score", "score_line", ylim=(-1.05, 1.05), hollow="unconverged"),
    ]
    return panels(part, rows, x="stage", hue="family", line_name="least null; with the context", columns=2)


ASKED = {"stage": STAGES, "context": (0, 1, 2), "answered_by": ANSWERED}

claim = Claim(
    title="The context law comes with learning",
    sentence=(
        "A functorial law switches on with in-context learning: only after its onset do derivative and composition "
        "tests set the weights that replace a context apart from both nulls."
    ),
    conditions=(
        "Item-label networks by SGD (the classifier moves), regression transformers by Adam (dense layers; attention "
        "where queries have three tokens). Three contexts a seed; two draws of each null."
    ),
    sources=("SLT22",),
    axes=(*AXES, Axis("stage", "s", "stage of training")),
    quantities=(*QUANTITIES, Quantity("stage_step", "t", "updates")),
    static=("family",),
    outputs=("stage", "context", "answered_by"),
    fixed=FIXED | {"width": 16, "layers": 2, "heads": 2, "item_dim": 31, "updates": 4000, "every": 50, "loss": 0.1},
    sizes={
        "smoke": {"family": (EXACT,), "seed": 2, **ASKED, "stage": ("start",)},
        "small": {"family": (*FAMILIES, EXACT), "seed": 3, **ASKED},
        "medium": {"family": (*FAMILIES, EXACT), "seed": Seeds(12, block=3), **ASKED},
    },
    key=17,
    controls={
        "exact": Control(
            "fast weights that a sum over the context writes stand in a network's place: the law is always there",
            measure={"exact": True},
            axes={"family": ("regression",), "stage": ("before",)},
        ),
        "mean": Control(
            "fast weights that a mean over the context writes stand in a network's place, and do not compose",
            measure={"exact": True, "mean": True},
            axes={"family": ("regression", EXACT), "stage": ("end",), "seed": tuple(range(10))},
        ),
    },
)
