"""In-context learning that comes first, and fades after the weights have memorised and the attention decays.

The network is that of ``race_of_memorising``, with twice as many classes as at the threshold: all runs learn in context
first. What they leave of the error is small but not zero, and the weights go on memorising. With a decay of the
attention's two numbers the context then loses what nothing renews.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates

LEARNED, KEPT, LOST, LEAST = 1.5, 0.9, 0.5, 0.02  # copy's logit; parts of its largest value; loss in nats


def check(dataset: xr.Dataset) -> list[Finding]:
    """The context is learned at any decay, kept without decay, and lost with it, while the answers stay right."""
    if dataset.sizes["step"] < 3:
        return []
    peak, last = dataset["copy_logit"].max("step"), dataset.isel(step=-1, drop=True)
    findings = checks.above("learned", "largest copy's logit", estimates.mean(peak), LEARNED)
    kept = estimates.mean(last["copy_logit"] / peak)
    quantity = "copy's logit at the end / largest"
    for decay in dataset.decay.values:
        part = kept.sel(decay=decay)
        side, name, bound = (checks.below, "fades", LOST) if decay > 0 else (checks.above, "stays", KEPT)
        findings += side(name, quantity, part, bound)
    return findings + checks.below("answers", "loss at the end", estimates.mean(last["race_loss"]), LEAST)


def figure(dataset: xr.Dataset):
    """Draw the copy's logit and the loss against training, one colour for each decay."""
    rows = [Panel("copy_logit"), Panel("race_loss", yscale="log")]
    return panels(dataset.isel(step=slice(None, None, 4)), rows, x="step", hue="decay")


claim = Claim(
    title="Weight decay makes the context fade",
    sentence=(
        "In-context learning that has won the race fades if its attention decays, once the labels are memorised, and "
        "stays without decay; answers stay right."
    ),
    conditions=(
        "The network of `race_of_memorising`, 8 pairs, 160 classes, decay 0.001 and 0.003 of the attention's two "
        "numbers a unit of time, 4000 steps at rate 0.5, 8 seeds. Bounds were set on another key."
    ),
    sources=("Nguyen25", "Singh25"),
    axes=(Axis("decay", r"\lambda", "decay of the attention in a unit of time", least=0),),
    quantities=(
        Quantity("copy_logit", "wp", "copy's logit"),
        Quantity("race_loss", "L", "loss on the training prompts", "nats"),
    ),
    static=("decay",),
    outputs=("step",),
    fixed={"pairs": 8, "number": 160, "dim": 63, "hidden": 128, "batch": 64, "rate": 0.5, "std": 0.1},
    sizes={
        "smoke": {"decay": (0.003,), "step": (40, 80), "seed": 2},
        "small": {"decay": (0.0, 0.001, 0.003), "step": tuple(range(40, 4001, 40)), "seed": 8},
        "medium": {"decay": (0.0, 0.0003, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02)}
        | {"step": tuple(range(40, 16001, 40)), "seed": Seeds(16, block=16)},
    },
    key=14,
    controls={
        "no_decay": Control("nothing decays", measure={"decay": 0.0}, axes={"decay": (0.001, 0.003)}),
        "decay": Control("attention decays everywhere", measure={"decay": 0.003}, axes={"decay": (0.0,)}),
        "reshuffled": Control(
            "all labels of a prompt are turned at random: nothing can be memorised",
            measure={"reshuffled": True},
            axes={"decay": (0.003,)},
        ),
        "nothing": Control(
            "attention stays as it starts, and nothing can be memorised",
            measure={"frozen": True, "reshuffled": True, "decay": 0.0},
            axes={"decay": (0.003,), "step": tuple(range(40, 401, 40)), "seed": (0, 1, 2, 3)},
        ),
    },
)
