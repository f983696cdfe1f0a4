r"""Copying repeated strings: two layers of attention learn it by previous-token attention or without, one does not.

A prompt is a string of different tokens over and over, and its period differs from prompt to prompt. A token that has
come before tells the next one; accuracies are over these positions. Whoever knows the position alone, not the tokens,
copies best from a fixed distance d, which is right if the period divides d:

.. math:: A_0 = \frac{\sum_i \max_{d \le i + 1} \#\{p \le i : p \mid d\}}{\sum_i \#\{p \le i\}}

over positions i from 0, with p of the periods of training. An ablation sets entries of a pattern to zero, after
training: those of the first layer for the *previous token*, or for earlier occurrences of the *same token*; those of
the last layer for the *induction target*, what followed an earlier occurrence of the token, or for all else. A network
*needs* previous-token attention if without it its accuracy is no more than that of a fixed distance. It does *not need*
it if without it it still copies, with an accuracy above 0.65. What is between the two is of neither kind. How many
networks of one layer copy is a fraction with its interval.
"""

import numpy as np
import xarray as xr

from iclbook.claims.induction import _transitions
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates, intervals
from icllab.lab.results import fixed_values

PREVIOUS, TARGET, TARGET_ALONE = "previous token", "induction target", "all but induction target"
ABLATIONS = (PREVIOUS, "same token", TARGET, TARGET_ALONE)
SCORES = ("previous_token_score", "induction_score")
NEAR = 0.1  # above the accuracy of a fixed distance
COPIES = 0.65  # accuracy above which a network copies; one of one layer also knows which pairs never come
FEW = 0.25  # of the networks of one layer
LEARNED, ALONE, HELD_OUT = 0.8, 0.8, 0.75  # accuracies of two layers; with the target alone; of held-out pairs
LONGER = {"needed": 0.7, "not needed": 0.4}  # accuracy at longer periods, by previous-token attention and without
WAITS = 1.0  # width over time; a learner that comes near its end exponentially has 3.2
TOGETHER = 0.4  # of the logarithms of times


def guessing(*, shortest: int, longest: int, tokens: int) -> float:
    """The accuracy of copying from the best distance at every position, over the positions that can be copied."""
    periods = np.arange(shortest, longest + 1)
    right, total = 0, 0
    for i in range(shortest, tokens - 1):
        possible = periods[periods <= i]
        right += max(int(np.sum(d % possible == 0)) for d in range(1, i + 2))
        total += len(possible)
    return right / total


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Assign the accuracy of copying from a fixed distance."""
    constants = fixed_values(dataset)
    level = guessing(**{name: constants[name] for name in ("shortest", "longest", "tokens")})
    return dataset.assign(accuracy_line=xr.zeros_like(dataset.step, dtype=float) + level)


def check(dataset: xr.Dataset) -> list[Finding]:
    """One layer does not copy; two layers do, with previous-token attention and without."""
    end = dataset["accuracy"].isel(step=-1, drop=True)
    findings = []
    if 1 in dataset.layers:
        copying = intervals.fraction(end.sel(layers=1, drop=True) > COPIES)
        quantity = f"fraction of one-layer networks with an accuracy above {COPIES:g}"
        findings += checks.below("one_layer", quantity, copying, FEW)
    if 2 in dataset.layers:
        findings += _two_layers(dataset.sel(layers=2, drop=True), float(dataset["accuracy_line"][-1]))
    return findings


def _two_layers(part: xr.Dataset, level: float) -> list[Finding]:
    """Judge all two-layer networks, and compare both kinds."""
    end = part["accuracy"].isel(step=-1, drop=True)
    findings = checks.above("learned", "accuracy of two layers", estimates.mean(end), LEARNED)
    accuracies = part["ablation_accuracy"]
    without, target_alone = (
        estimates.mean(accuracies.sel(ablation=name, drop=True)) for name in (TARGET, TARGET_ALONE)
    )
    findings += checks.below("without_target", f"accuracy without attention to the {TARGET}", without, level + NEAR)
    findings += checks.above("target_alone", f"accuracy without attention to {TARGET_ALONE}", target_alone, ALONE)
    kind = kinds(part, level)
    rise = _transitions.risen(part["accuracy"], plateau=level, end=1.0)
    return [*findings, *_generalisation(part, kind), *_times(part, kind, rise)]


def kinds(part: xr.Dataset, level: float) -> dict[str, xr.DataArray]:
    """Which networks need attention to the previous token, and which do not."""
    without = part["ablation_accuracy"].sel(ablation=PREVIOUS, drop=True)
    return {"needed": without <= level, "not needed": without > COPIES}


def _generalisation(part: xr.Dataset, kind: dict[str, xr.DataArray]) -> list[Finding]:
    """Periods longer than those of training, and pairs of tokens that are held out of it."""
    longer = part["period_accuracy"].sel(period=part.period > fixed_values(part)["longest"]).mean("period")
    by, without = (estimates.mean(longer.where(members)) for members in kind.values())
    quantity = "accuracy at longer periods, previous-token attention"
    findings = checks.above("longer_needed", f"{quantity} needed", by, LONGER["needed"])
    findings += checks.below("longer_not_needed", f"{quantity} not needed", without, LONGER["not needed"])
    held_out = estimates.mean(part["held_out_accuracy"].isel(step=-1, drop=True).where(kind["needed"]))
    quantity = "accuracy of held-out pairs, previous-token attention needed"
    return findings + checks.above("held_out", quantity, held_out, HELD_OUT)


def _times(part: xr.Dataset, kind: dict[str, xr.DataArray], rise: xr.Dataset) -> list[Finding]:
    """The networks that need it learn sooner, in a transition in which the induction score has its own."""
    time = rise["transition_time"].where(rise["transition_time"] > 0)
    by, without = (estimates.geometric_mean(time.where(members)) for members in kind.values())
    quantity = "time of the transition, previous-token attention not needed / needed"
    findings = checks.above("sooner", quantity, without / by, 1.0)
    width = estimates.mean(rise["relative_width"].where(kind["needed"]))
    findings += checks.below("width", "width of the transition / its time, needed", width, WAITS)
    induction_time = _transitions.risen(part["induction_score"])["transition_time"]
    ratio = estimates.geometric_mean((induction_time.where(induction_time > 0) / time).where(kind["needed"]))
    quantity = "time of the induction score / the accuracy's, needed"
    return findings + checks.near("time_induction", quantity, ratio, 1.0, margin=TOGETHER)


def figure(dataset: xr.Dataset):
    """Accuracy and scores along training, and the accuracy at every period, of each kind of the deepest network."""
    deep = dataset.isel(layers=-1, step=slice(None, None, 4), drop=True)
    kind = kinds(deep, float(deep["accuracy_line"][-1]))
    names = xr.DataArray(list(kind), dims="previous_token", name="previous_token")
    curves = deep[["accuracy", *SCORES, "period_accuracy"]]
    groups = xr.concat([curves.where(members) for members in kind.values()], dim=names)
    groups = groups.assign(accuracy_line=deep["accuracy_line"])
    rows = [Panel("accuracy", "accuracy_line"), *(Panel(name) for name in SCORES), Panel("period_accuracy", x="period")]
    return panels(groups, rows, x="step", hue="previous_token", line_x="step", line_name="fixed distance", columns=2)


COMMON = {"period": tuple(range(2, 13)), "ablation": ABLATIONS}

claim = Claim(
    title="Copying strings needs two layers",
    sentence=(
        "Two-layer networks that need previous-token attention to copy repeated strings copy longer strings than in "
        "training; those that do not need it do not; one layer does not copy."
    ),
    conditions=(
        "Strings of 4 to 8 different tokens out of 32, repeated up to 20 tokens; longer ones of 9 to 12. Attention "
        "alone, one head a layer, learned positions, Adam. Both kinds come from the same training, by the seed alone. "
        "The 48 seeds of `medium` were planned on 16 of another key."
    ),
    sources=("Olsson22",),
    axes=(
        Axis("period", "p", "period", "tokens", least=1),
        Axis("ablation", "a", "ablated attention"),
        Axis("previous_token", "k", "attention to the previous token"),
    ),
    quantities=(
        "accuracy",
        *SCORES,
        Quantity("held_out_accuracy", "A_h", "accuracy of held-out pairs"),
        Quantity("period_accuracy", "A_p", "accuracy at a period"),
        Quantity("ablation_accuracy", "A_a", "accuracy under an ablation"),
    ),
    static=("layers",),
    outputs=("step", "period", "ablation"),
    fixed={"vocabulary": 32, "shortest": 4, "longest": 8, "tokens": 20, "held_out": 4, "width": 32}
    | {"learning_rate": 3e-3, "batch": 32, "prompts": 1024},
    sizes={
        "smoke": COMMON | {"layers": (1,), "step": (0, 100, 200), "seed": 2, "prompts": 256},
        "small": COMMON | {"layers": (1, 2), "step": tuple(range(0, 2501, 25)), "seed": 16},
        "medium": COMMON | {"layers": (1, 2), "step": tuple(range(0, 2501, 25)), "seed": Seeds(48, block=4, first=16)},
    },
    theory=theory,
    key=5,
    controls={
        "depth_without_effect": Control(
            "every network has two layers, whatever depth is asked for",
            measure={"layers": 2},
            axes={"layers": (1,), "step": (0, 2500), "seed": tuple(range(6))},
        ),
        "shuffled": Control(
            "the tokens of a prompt of training come in any order",
            measure={"shuffled": True},
            axes={"layers": (2,), "step": (0, 400, 800), "seed": (0, 1, 2)},
        ),
        "token_itself": Control(
            "set to zero, or kept alone, is attention to the token's earlier self, not to what followed it",
            measure={"shifted": True},
            axes={"layers": (2,), "step": (0, 2500), "seed": tuple(range(6))},
        ),
        "gradual": Control(
            "both kinds copy longer strings, come near their ends exponentially, those without first, the score later",
            measure={"made_up": "gradual"},
            axes={"layers": (2,)},
        ),
    },
)
