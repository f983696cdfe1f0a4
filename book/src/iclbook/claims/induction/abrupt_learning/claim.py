r"""The in-context accuracy of a two-layer network: a plateau at 1/N, then a jump.

A query repeats one of N items with different labels out of L, of classes that are novel in every prompt. On the scale
:math:`u = (A - 1/N)/(1 - 1/N)` of the accuracy the transition is where u is first 1/2, and its width the time from 0.1
to 0.9; a learner that comes near its end exponentially has a width of 3.2 times that time. The plateau is the mean
accuracy while nine tenths of the answers are labels of the context, until a width before the transition.

The two steps of the head are attention from a label to its item in the first layer (ILA1) and from the query to the
right label in the second (TILA2). Answers that are labels of the context (CLA) belong to guessing. Their times and
widths are taken between their own plateaus and ends.
"""

import xarray as xr

from iclbook.claims.induction import _transitions
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, Subject, checks, estimates, intervals
from icllab.lab.results import fixed_values

SHARP = 1 / 3  # of the relative width
PATTERN = 1 / 2  # of that of an attention pattern, which rises from its own plateau to its own end
GUESSED = 0.9  # of the answers are labels of the context, on the plateau
NEAR = 0.03  # of the plateau's accuracy to 1/N
TOGETHER = 0.15  # of the logarithms of times
MOST = 1 / 2  # of the networks
REFERENCE = (1450, 2100, 2050, 1250, 2150, 1500)  # steps to nine tenths of six networks of another program, D=31
REFERENCE_DIM, NINE_TENTHS = 31, 0.9
JUMPING = {"item_label_attention": "ILA1", "target_attention": "TILA2"}
GUESSING = "context_label_accuracy"


def check(dataset: xr.Dataset) -> list[Finding]:
    """Most networks wait at 1/N and then jump, both steps of the head with them, and when another program's do."""
    return [*check_network(dataset), *_as_elsewhere(dataset)]


def check_network(dataset: xr.Dataset) -> list[Finding]:
    """Most networks wait at 1/N and then jump, and both steps of the head jump with them."""
    guess = 1 / fixed_values(dataset)["pairs"]
    jump = _transitions.risen(dataset["accuracy"], plateau=guess, end=1.0)
    jumping = intervals.fraction(jump["transitioned"])
    findings = checks.above("jumping", "fraction of networks that jump", jumping, MOST)
    before = dataset.step < jump["transition_time"] - jump["transition_width"]
    waiting = before & (dataset[GUESSING] >= GUESSED)
    level = estimates.mean(dataset["accuracy"].where(waiting).mean("step"))
    findings += checks.near("plateau", "accuracy on the plateau", level, guess, margin=NEAR)
    width = estimates.mean(jump["relative_width"])
    findings += checks.below("relative_width", "relative width of the jump", width, SHARP)
    return [*findings, *_events(dataset, jump)]


def _as_elsewhere(dataset: xr.Dataset) -> list[Finding]:
    """The steps to nine tenths, beside those of another program."""
    part = dataset.sel(dim=dataset.dim == REFERENCE_DIM)
    above = (part["accuracy"] > NINE_TENTHS) & (part.step > 0)
    ours = estimates.geometric_mean(part.step.where(above).min("step"))
    ratio = ours / estimates.geometric_mean(xr.DataArray(list(REFERENCE), dims="seed"))
    quantity = f"first tested step with accuracy {NINE_TENTHS:g} / another program's"
    return checks.agrees("steps_elsewhere", quantity, ratio, 1.0, largest_error=0.25)


def _events(dataset: xr.Dataset, jump: xr.Dataset) -> list[Finding]:
    """Both steps of the head come with the jump, as abruptly, and guessing has come before."""
    rises = {name: _transitions.risen(dataset[name]) for name in (*JUMPING, GUESSING)}
    times = {name: rise["transition_time"].where(rise["transition_time"] > 0) for name, rise in rises.items()}
    findings = []
    for name, abbreviation in JUMPING.items():
        ratio, quantity = estimates.geometric_mean(times[name] / jump["transition_time"]), f"time of {abbreviation}"
        findings += checks.near(
            f"time_{abbreviation.lower()}", f"{quantity} / the accuracy's", ratio, 1.0, margin=TOGETHER
        )
        width = estimates.mean(rises[name]["relative_width"].where(jump["transitioned"]))
        findings += checks.below(f"width_{abbreviation.lower()}", f"relative width of {abbreviation}", width, PATTERN)
    later = estimates.geometric_mean(jump["transition_time"] / times[GUESSING])
    return findings + checks.above("before_cla", "time of the accuracy / that of CLA", later, 1.0)


def figure(dataset: xr.Dataset):
    """Accuracy, loss, and both steps of the head against training, a line for each network."""
    names = ("accuracy", "label_loss", *JUMPING)
    part = dataset.isel(dim=0, drop=True)[list(names)]
    return panels(part, [Panel(None, line=name) for name in names], x="step", hue="seed", line_x="step")


claim = Claim(
    title="Accuracy waits at 1/N, then jumps",
    sentence=(
        "The network's accuracy waits at 1/N, the level of guessing a context label, then rises abruptly, in under a "
        "third of that time, together with both induction-head attention patterns."
    ),
    conditions=(
        "Two layers of attention without MLPs, N = 4, L = 16 (the published N = 8, L = 32 at size full, where a prompt "
        "may begin at any position), novel classes in every prompt, SGD at rate 0.1. Answers that are labels of the "
        "context come before. The 16 seeds of size full were planned on five of another key."
    ),
    sources=("Reddy24",),
    quantities=("accuracy", "label_loss", *JUMPING, "label_attention", GUESSING),
    static=("dim",),
    outputs=("step",),
    fixed={"pairs": 4, "label_count": 16, "position_dim": 9, "learning_rate": 0.1, "batch": 128, "prompts": 1024},
    sizes={
        "smoke": {"dim": (31,), "step": (0, 60), "seed": 2},
        "small": {"dim": (31,), "step": tuple(range(0, 4001, 25)), "seed": 14},
        "medium": {"dim": (15, 31, 63), "step": tuple(range(0, 5001, 25)), "seed": Seeds(12, block=3, first=14)},
        # The published size; prompts begin at any of the positions that leave room for them.
        "full": {"dim": (63,), "step": tuple(range(0, 12001, 50)), "seed": Seeds(16, block=1, first=26)}
        | {"pairs": 8, "label_count": 32, "position_dim": 65},
    },
    key=2,
    subject=Subject(
        "item labels",
        "two layers of attention without MLPs",
        run=True,
        axes={"dim": (31,)},
        controls=("worse_guess", "gradual"),
        check=check_network,
    ),
    controls={
        "patterns_given": Control(
            "both attention patterns are given, and the readout alone is learned: accuracy rises smoothly",
            measure={"given": True},
            axes={"step": tuple(range(0, 301, 5)), "seed": tuple(range(12))},
        ),
        "without_first": Control(
            "the first layer adds nothing",
            measure={"without_first": True},
            axes={"step": tuple(range(0, 2501, 25)), "seed": tuple(range(10))},
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
