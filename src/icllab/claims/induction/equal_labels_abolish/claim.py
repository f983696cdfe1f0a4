r"""With as many labels as pairs a network stays at chance; with one label more it learns to look labels up.

Where L = N every label is in every context (the classes of a context have different labels), so that naming any label
of the context is chance, and the slope that leads a network to the induction head is gone. Both laws are trained from
as many starts for as many steps. Runs without a transition are censored: times are compared by the log-rank test, its
p-value counted over all divisions of the runs into two groups of these sizes, and by means in which the last step
stands for their time.

It is a statement about times. In the landscape of three numbers L = N is a saddle that only one set of starts never
leaves, and networks leave it too, if they are given several times as long.
"""

import functools

import numpy as np
import xarray as xr

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels

LONG = 10_000  # steps that are enough to tell
WAIT = (2000, 4000)  # steps between which a network is at chance
CLOSE = 0.02  # nats, of the loss to ln N
NEAR = 0.03  # of the accuracy to 1/N
RARE = 0.01  # of the p-value
TWICE = float(np.log(2.0))  # of the logarithms of times


def measure(point, *, key):
    """One cell: networks of all seeds at one number of labels, tested as they train."""
    from icllab.claims.induction import _networks as induction_networks

    found = induction_networks.learning_curves(
        seeds=point.seed,
        steps=point.step,
        key=key,
        rates=[point.learning_rate],
        prompts=point.prompts,
        batch=point.batch,
        labels=point.label_count,
        pairs=point.pairs,
        dim=point.dim,
    )
    return {name: (("seed", "step"), values.reshape(len(point.seed), -1)) for name, (_, values) in found.items()}


def theory(dataset: xr.Dataset, more: int = 0) -> xr.Dataset:
    """The loss and accuracy of answering any label, where there are ``more`` than N."""
    count = fixed_values(dataset)["pairs"] + more
    flat = xr.zeros_like(dataset.step, dtype=float)
    return dataset.assign(chance_loss=flat + np.log(count), accuracy_line=flat + 1 / count)


def check(dataset: xr.Dataset) -> list[Finding]:
    """One label more is learned from every start before any run learns where L = N, which waits at chance."""
    from icllab.diagnostics import transitions
    from icllab.diagnostics.curves.survival import delay

    pairs = fixed_values(dataset)["pairs"]
    short = Outcome.UNDECIDED if dataset.step.values.max() < LONG else Outcome.FAILS
    times, findings = {}, []
    for count in map(int, dataset.label_count.values):
        part = dataset.sel(label_count=count)
        times[count] = transitions(part["accuracy"], plateau=1 / pairs, end=1.0)
        if count == pairs:
            findings += _at_chance(part, f"L={count}")
            continue
        learned = int(times[count]["transitioned"].sum())
        findings.append(exactly(f"runs that learn with L={count}", part.sizes["seed"], learned, otherwise=short))
    if short is Outcome.FAILS and {pairs, pairs + 1} <= set(times):
        findings += _later(times[pairs + 1], times[pairs], delay(times[pairs + 1], times[pairs]), f"L={pairs}")
    else:
        findings.append(exactly("two numbers of labels, for long enough", 1, 0, otherwise=Outcome.UNDECIDED))
    return findings


def _later(one_more: xr.Dataset, equal: xr.Dataset, found: xr.Dataset, at: str) -> list[Finding]:
    """When runs learn where L = N, after those with one label more."""
    before = int((equal["transition_time"] < float(one_more["observed_time"].max())).sum())
    rare = float(found["exact_p_value"]) < RARE
    # All are censored at one time, so that the means of what was observed are restricted means.
    (ours, of_ours), (theirs, of_theirs) = (
        mean_and_error(np.log(one["observed_time"].values)) for one in (equal, one_more)
    )
    ratio, error = float(ours - theirs), float(np.hypot(of_ours, of_theirs))
    return [
        exactly(f"runs that learn with {at} before the last with one more", 0, before),
        exactly(f"log-rank p-value below {RARE:g}", 1, rare, otherwise=Outcome.UNDECIDED),
        exceeds(f"mean ln time with {at}, or of the end, above that with one more", ratio, error, bound=TWICE),
    ]


def _at_chance(part: xr.Dataset, at: str) -> list[Finding]:
    """Loss and accuracy while others learn."""
    first, last = WAIT
    late = part.sel(step=slice(min(first, int(part.step.max())), last))
    findings = []
    for name, line, near, called in (
        ("label_loss", "chance_loss", CLOSE, "loss from ln N"),
        ("accuracy", "accuracy_line", NEAR, "accuracy from 1/N"),
    ):
        mean, error = map(float, mean_and_error((late[name] - late[line]).mean("step").values))
        findings.append(exceeds(f"{near:g} above the distance of the {called}, {at}", near - abs(mean), error))
    return findings


def figure(dataset: xr.Dataset):
    """Accuracy and loss against training, panels for each number of labels, a line for each network."""
    shown = dataset[["accuracy", "label_loss"]]
    rows = [
        Panel(None, line=name, at={"label_count": int(count)}, ylim=(0.0, top))
        for name, top in (("accuracy", 1.05), ("label_loss", float(np.log(dataset.label_count.max())) + 0.1))
        for count in dataset.label_count.values
    ]
    return panels(shown, rows, x="step", hue="seed", line_x="step")


def exchanged(dataset: xr.Dataset) -> xr.Dataset:
    """A wrong world: what is called L = N has one label more, and the other way round."""
    if dataset.sizes["label_count"] < 2:
        return theory(dataset, more=1)
    turned = dataset.isel(label_count=slice(None, None, -1)).assign_coords(label_count=dataset.label_count)
    return theory(turned)


SETTING = {"pairs": 4, "dim": 31, "learning_rate": 0.1, "batch": 128, "prompts": 1024}

experiment = Experiment(
    claim=(
        "With as many labels as pairs in a context a two-layer network waits at chance, its loss at ln N, until after "
        "every network with one label more has learned to look labels up, and on average more than twice as long."
    ),
    sources=("Reddy24",),
    static=("label_count",),
    fixed=SETTING,
    sizes={
        "smoke": {"label_count": (4,), "step": (100, 200, 300), "seed": 2},
        "small": {"label_count": (4, 5), "step": tuple(range(200, 14001, 200)), "seed": 5},
        "medium": {"label_count": (4, 5, 6, 8, 16), "step": tuple(range(200, 40001, 200)), "seed": 12},
    },
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "one_more": World("chance is that of one label more", theory=functools.partial(theory, more=1)),
        "exchanged": World("the two numbers of labels are exchanged", theory=exchanged),
    },
)
