"""With as many labels as pairs a network stays at chance; with one label more it learns to look labels up.

Where L = N every label is in every context, so that guessing any label of the context is chance, and the slope that
leads a network to the induction head is gone. Runs without a transition are censored: times are compared by the exact
log-rank test, and by medians whose intervals have no upper limit where too few have learned. It is a statement about
times. On the
landscape of three numbers L = N is a saddle, left by all starts but those without match and readout. Of networks no
more is said than was seen, to the step at which their runs end.
"""

import numpy as np
import xarray as xr

from iclbook.claims.induction import _transitions
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates, intervals
from icllab.lab.results import fixed_values

WAIT = (2000, 4000)  # steps between which a network is at chance
CLOSE = 0.02  # nats, of the loss to ln N
NEAR = 0.03  # of the accuracy to 1/N
LONGER = 2.0  # ratio of median times
MEASURED = ("item_label_attention", "target_attention", "label_attention", "context_label_accuracy")


def check(dataset: xr.Dataset) -> list[Finding]:
    """With one label more most networks learn, in less than half the time for which one with L = N waits at chance."""
    pairs, counts = fixed_values(dataset)["pairs"], dataset.label_count
    times = _transitions.risen(dataset["accuracy"], plateau=1 / pairs, end=1.0)
    learners = intervals.fraction(times["transitioned"].sel(label_count=counts != pairs))
    findings = _at_chance(dataset.sel(label_count=counts == pairs))
    findings += checks.above("learned", "fraction of networks that learn", learners, 1 / 2)
    if {pairs, pairs + 1} <= set(counts.values):
        findings += _later(*(times.sel(label_count=count, drop=True) for count in (pairs + 1, pairs)))
    return findings


def _later(one_more: xr.Dataset, equal: xr.Dataset) -> list[Finding]:
    """Compare learning times at L = N with those at one label more."""
    ours, theirs = (intervals.median(group["observed_time"], group["transitioned"]) for group in (equal, one_more))
    quantity = "median time with L = N, or of the end, / that with one label more"
    return [
        *_transitions.delayed("log_rank", "learning with L = N comes later than with one label more", one_more, equal),
        *checks.above("time_ratio", quantity, ours / theirs, LONGER),
    ]


def _at_chance(equal: xr.Dataset) -> list[Finding]:
    """Loss and accuracy while others learn."""
    late = equal.sel(step=slice(*WAIT))
    loss, accuracy = (
        estimates.mean((late[name] - late[line]).mean("step"))
        for name, line in (("label_loss", "chance_loss"), ("accuracy", "accuracy_line"))
    )
    return [
        *checks.near("loss_at_chance", "loss - ln N", loss, 0.0, margin=CLOSE),
        *checks.near("accuracy_at_chance", "accuracy - 1/N", accuracy, 0.0, margin=NEAR),
    ]


def figure(dataset: xr.Dataset):
    """Accuracy and loss against training, panels for each number of labels, a line for each network."""
    curves = dataset[["accuracy", "label_loss"]]
    rows = [
        Panel(None, line=name, at={"label_count": int(count)}, ylim=(0.0, top))
        for name, top in (("accuracy", 1.05), ("label_loss", float(np.log(dataset.label_count.max())) + 0.3))
        for count in dataset.label_count.values
    ]
    return panels(curves, rows, x="step", hue="seed", line_x="step")


claim = Claim(
    title="As many labels as pairs: no learning",
    sentence=(
        "With as many labels as pairs in a context a two-layer network stays at chance more than twice the median time "
        "in which one with one label more learns."
    ),
    conditions=(
        "N = 4, novel classes in every prompt, SGD at rate 0.1, runs to step 14 000 at `medium`. Its 32 seeds were "
        "planned on ten of another key, of which one took 11 300 steps to learn with one label more, the others 4900."
    ),
    sources=("Reddy24",),
    quantities=("accuracy", "label_loss", "chance_loss", *MEASURED),
    static=("label_count",),
    outputs=("step",),
    fixed={"pairs": 4, "dim": 31, "learning_rate": 0.1, "batch": 128, "prompts": 1024},
    sizes={
        "smoke": {"label_count": (4,), "step": (60,), "seed": 4},
        "small": {"label_count": (4, 5), "step": tuple(range(200, 6001, 200)), "seed": 10},
        "medium": {"label_count": (4, 5), "step": tuple(range(200, 14001, 200)), "seed": Seeds(32, block=4, first=10)},
    },
    theory=_transitions.guessing,
    key=2,
    controls={
        "other_way": Control(
            "sixteen labels where as many as pairs are asked for, and as many as pairs where one more is",
            measure={"other_way": True},
            axes={"label_count": (4, 5), "step": tuple(range(200, 4001, 200)), "seed": tuple(range(10))},
        ),
    },
)
