r"""The in-context accuracy of a two-layer network: a plateau at 1/N, then a jump.

A query repeats one of N items with different labels out of L, of classes that are novel in every prompt. On the scale
:math:`u = (A - 1/N)/(1 - 1/N)` of the accuracy the transition is where u is first 1/2, and its width the time from 0.1
to 0.9; a learner that comes near its end exponentially has a width of 3.2 times that time. The plateau is the mean
accuracy while nine tenths of the answers are labels of the context, until a width before the transition.

The two steps of the head are attention from a label to its item in the first layer (ILA1) and from the query to the
right label in the second (TILA2); attention to labels (TLA2) and answers that are labels of the context (CLA) belong to
guessing. Their times and widths are taken between their own plateaus and ends.
"""

import xarray as xr

from icllab.claims.induction import _transitions
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.results import fixed_values

SHARP = 1 / 3  # of the relative width
GUESSED = 0.9  # of the answers are labels of the context, on the plateau
NEAR = 0.03  # of the plateau's accuracy to 1/N
TOGETHER = 0.15  # of the logarithms of times
EARLIER = 1.5  # ratio of times, and of relative widths
REFERENCE = (1450, 2100, 2050, 1250, 2150, 1500)  # steps to nine tenths of six networks of another program, D=31
REFERENCE_DIM, NINE_TENTHS = 31, 0.9
JUMPING = {"item_label_attention": "ILA1", "target_attention": "TILA2"}
GUESSING = {"label_attention": "TLA2", "context_label_accuracy": "CLA"}


def check(dataset: xr.Dataset) -> list[Finding]:
    """Every network waits at 1/N and then jumps, and both steps of the head jump with it."""
    guess = 1 / fixed_values(dataset)["pairs"]
    jump = _transitions.risen(dataset["accuracy"], plateau=guess, end=1.0)
    failures = (~jump["transitioned"]).sum("seed")
    findings = checks.equal("missed", "networks that do not jump", failures, 0)
    before = dataset.step < jump["transition_time"] - jump["transition_width"]
    waiting = before & (dataset["context_label_accuracy"] >= GUESSED)
    level = estimates.mean(dataset["accuracy"].where(waiting).mean("step"))
    findings += checks.near("plateau", "accuracy on the plateau", level, guess, margin=NEAR)
    width = estimates.mean(jump["relative_width"])
    findings += checks.below("relative_width", "relative width of the jump", width, SHARP)
    return [*findings, *_as_elsewhere(dataset), *_events(dataset, jump)]


def _as_elsewhere(dataset: xr.Dataset) -> list[Finding]:
    """The steps to nine tenths, beside those of another program."""
    part = dataset.sel(dim=dataset.dim == REFERENCE_DIM)
    above = (part["accuracy"] > NINE_TENTHS) & (part.step > 0)
    ours = estimates.geometric_mean(part.step.where(above).min("step"))
    ratio = ours / estimates.geometric_mean(xr.DataArray(list(REFERENCE), dims="seed"))
    quantity = f"first tested step with accuracy {NINE_TENTHS:g} / another program's"
    return checks.agrees("steps_elsewhere", quantity, ratio, 1.0, largest_error=0.25)


def _events(dataset: xr.Dataset, jump: xr.Dataset) -> list[Finding]:
    """Both steps of the head come with the jump, more abruptly than guessing, which has come before."""
    rises = {name: _transitions.risen(dataset[name]) for name in (*JUMPING, *GUESSING)}
    times = {name: rise["transition_time"].where(rise["transition_time"] > 0) for name, rise in rises.items()}
    findings = []
    for name, abbreviation in JUMPING.items():
        ratio, quantity = estimates.geometric_mean(times[name] / jump["transition_time"]), f"time of {abbreviation}"
        findings += checks.near(
            f"time_{abbreviation.lower()}", f"{quantity} / the accuracy's", ratio, 1.0, margin=TOGETHER
        )
        wider = rises["label_attention"]["relative_width"] / rises[name]["relative_width"]
        wider, quantity = (
            estimates.geometric_mean(wider.where(jump["transitioned"])),
            "relative width of TLA2 / that of",
        )
        findings += checks.above(f"width_{abbreviation.lower()}", f"{quantity} {abbreviation}", wider, EARLIER)
    for name, abbreviation in GUESSING.items():
        later = estimates.geometric_mean(jump["transition_time"] / times[name])
        findings += checks.above(
            f"before_{abbreviation.lower()}", f"time of the accuracy / that of {abbreviation}", later, EARLIER
        )
    return findings


def figure(dataset: xr.Dataset):
    """Accuracy, loss, and both steps of the head against training, a line for each network."""
    names = ("accuracy", "label_loss", *JUMPING)
    part = dataset.isel(dim=0, drop=True)[list(names)]
    return panels(part, [Panel(None, line=name) for name in names], x="step", hue="seed", line_x="step")


claim = Claim(
    title="Accuracy waits at 1/N, then jumps",
    sentence=(
        "Accuracy waits at 1/N, the level of guessing a label of the context, and then rises abruptly, in under a "
        "third of that time, together with both induction-head attention patterns."
    ),
    conditions=(
        "Two layers of attention without MLPs, N = 4, L = 16 (the published N = 8, L = 32 at size full), novel classes "
        "in every prompt, SGD at rate 0.1. Attention to labels as such, and answers that are labels of the context, "
        "come long before; at size full, where a prompt may begin at any position, attention to labels comes with the "
        "jump."
    ),
    sources=("Reddy24",),
    quantities=("accuracy", "label_loss", *JUMPING, *GUESSING),
    static=("dim",),
    outputs=("step",),
    fixed={"pairs": 4, "label_count": 16, "position_dim": 9, "learning_rate": 0.1, "batch": 128, "prompts": 1024},
    sizes={
        "smoke": {"dim": (31,), "step": (0, 60), "seed": 2},
        "small": {"dim": (31,), "step": tuple(range(0, 4001, 25)), "seed": 10},
        "medium": {"dim": (15, 31, 63), "step": tuple(range(0, 5001, 25)), "seed": Seeds(12, block=3)},
        # The published size; prompts begin at any of the positions that leave room for them.
        "full": {"dim": (63,), "step": tuple(range(0, 12001, 50)), "seed": Seeds(5, block=1)}
        | {"pairs": 8, "label_count": 32, "position_dim": 65},
    },
    key=1,
    controls={
        "patterns_given": Control(
            "both attention patterns are given, and the readout alone is learned: accuracy rises smoothly",
            measure={"given": True},
            axes={"step": tuple(range(0, 301, 5)), "seed": tuple(range(5))},
        ),
        "without_first": Control(
            "the first layer adds nothing", measure={"without_first": True}, axes={"seed": (0, 1)}
        ),
        "worse_guess": Control(
            "before the jump a label of the context is right in one of five prompts", measure={"made_up": "one of five"}
        ),
        "gradual": Control(
            "both attention patterns and the accuracy come near their ends exponentially, one after the other",
            measure={"made_up": "gradual"},
        ),
    },
)
