r"""Does a law from contexts to weights appear when in-context learning does?

:math:`f_c(w)` are the weights that answer without a context c as w does with it. There is a law where they carry nine
tenths of three things, each beside another context's map: the effect of the context, its change with w, and the
composition of its halves. A fit alone has the first two, and a network in which nothing moves the third.

Three stages of training are measured: the *jump* (the first score that is half of that at the end), half the updates
before it, and the end. The read-out moves in the item-label network. In regression transformers the dense
layers move for queries of one token, the attention for queries of three. Linear attention with a direct term, trained
as they are, has an exact law at every stage and shows that the tests find one.

Contexts whose fits have not converged are left out; a "no" counts where a planted law at the same size would have been
found in these networks with probability 0.8. The score is accuracy, or the fraction of variance explained.
"""

import xarray as xr

from iclbook.claims.context_map._law import ASKED, AXES, FIXED, QUANTITIES, TESTS, TRAINED, WORST, judged, with_ratios
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.diagnostics.contexts.verdicts import LEVEL
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks

STAGES = ("before", "jump", "end")
FAMILIES = ("item_label", "dense", "attention")
EXACT = "linear_attention"


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Every test's ratio, and the level of a law."""
    return with_ratios(dataset).assign(ratio_line=xr.full_like(dataset["stage"], LEVEL, dtype=float))


def check(dataset: xr.Dataset) -> list[Finding]:
    """No law before the jump and one at the end; and where there is one at all stages, it is found."""
    networks = [name for name in FAMILIES if name in dataset.family]
    findings = []
    if EXACT in dataset.family:
        stages = dataset.stage.values.tolist()
        findings += [judged("exact", WORST, dataset, has_law=True, family=EXACT, stage=stage) for stage in stages]
    if "before" in dataset.stage:
        findings += [judged("before", WORST, dataset, has_law=False, family=f, stage="before") for f in networks]
    if "end" in dataset.stage:
        findings += [judged("after", WORST, dataset, has_law=True, family=f, stage="end") for f in networks]
        trained = bool((dataset["training_score"].sel(family=networks, stage="end") > TRAINED).all())
        findings += checks.complete("trained", f"every network ends with a score above {TRAINED:g}", trained)
    return findings


def figure(dataset: xr.Dataset):
    """What weights leave of effects, changes and compositions, along training."""
    rows = [Panel(f"{name}_ratio", "ratio_line", yscale="log") for name in TESTS]
    in_order = [stage for stage in STAGES if stage in dataset.stage]
    return panels(dataset.sel(stage=in_order), rows, x="stage", hue="family", line_name="threshold", columns=3)


ASKED_HERE = ASKED | {"stage": STAGES}

claim = Claim(
    title="The context law comes with learning",
    sentence=(
        "A law for contexts switches on with in-context learning: after training, and not before its jump, weights "
        "carry nine tenths of a context's effect, change and composition."
    ),
    conditions=(
        "Regression transformers by Adam (attention moves, queries of three tokens; beyond small dense layers too), "
        "item-label networks by SGD at full (the read-out moves). Four contexts of each of six networks or more."
    ),
    sources=("SLT22",),
    axes=(*AXES, Axis("stage", "s", "stage of training")),
    quantities=(*QUANTITIES, Quantity("stage_step", "t", "updates")),
    static=("family",),
    outputs=("stage", "context", "world", "test"),
    fixed=FIXED | {"width": 16, "layers": 2, "heads": 2, "item_dim": 31, "updates": 4000, "every": 50, "loss": 0.1},
    sizes={
        "smoke": {"family": (EXACT,), "seed": 2, **ASKED_HERE, "context": (0, 1), "stage": ("start",), "queries": 8},
        "small": {"family": ("attention", EXACT), "seed": tuple(range(100, 106)), **ASKED_HERE},
        "medium": {"family": (*FAMILIES[1:], EXACT), "seed": Seeds(8, block=2), **ASKED_HERE},
        "full": {"family": (*FAMILIES, EXACT), "seed": Seeds(8, block=1), **ASKED_HERE},
    },
    key=38,
    controls={
        "exact": Control(
            "linear attention stands in a network's place: the law is always there",
            measure={"exact": True},
            axes={"family": ("dense",), "stage": ("before",)},
        ),
        "mean": Control(
            "linear attention whose context writes a mean stands in a network's place, and does not compose",
            measure={"exact": True, "mean": True},
            axes={"family": ("dense", EXACT), "stage": ("end",)},
        ),
    },
)
