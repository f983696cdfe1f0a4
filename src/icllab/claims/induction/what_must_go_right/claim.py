r"""What has to be learned before the head works: interventions during training, and when the jump comes.

Networks of the reduced size (N = 4 pairs, L = 16 labels, novel classes in every prompt) are trained from one start many
times over, each time with one operation of the induction head supplied or withheld:

- *previous token*: every label attends to the item before it (the pattern of layer 1 is clamped);
- *match*: the query attends to the right label (the pattern of layer 2 is clamped), which needs no previous token;
- *copy*: the attention on each label is the answer, and no classifier is needed;
- *classifier frozen*: it stays as it was drawn; attention alone is trained;
- *no layer 1*, *no layer 2*, *no attention*: a head, or both, add nothing;
- *layer 1 transplanted*, *layer 2 transplanted*, *classifier transplanted*: a part starts from the network trained
  without intervention, and is trained on; the rest starts as always.

T is the step at which the accuracy on novel classes first reaches 0.9. An effect is the geometric mean over seeds of
:math:`T/T_0`, with :math:`T_0` of the same start and prompts without intervention. A run that does not get there is
censored at its last step: where there are such, groups are compared by the log-rank test.
"""

import dataclasses

import numpy as np
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from icllab.claims.induction import _transitions
from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.experiments import checks, estimates
from icllab.experiments.checks import Finding, Outcome
from icllab.experiments.estimates import Estimate
from icllab.experiments.experiment import Control, Experiment
from icllab.experiments.results import fixed_values
from icllab.figures import style

NONE, BLIND, FROZEN = "none", "no attention", "classifier frozen"
CLAMPS = ("previous token", "match", "copy")
TRANSPLANTS = ("layer 1 transplanted", "layer 2 transplanted", "classifier transplanted")
ABLATIONS = ("no layer 1", "no layer 2", BLIND)
INTERVENTIONS = (NONE, *CLAMPS, FROZEN, *TRANSPLANTS, *ABLATIONS)
REACHED = 0.9  # accuracy at which a network has made its transition
ORDER = (  # the later one first
    *((NONE, name) for name in (*CLAMPS, *TRANSPLANTS)),
    ("previous token", "copy"),
    ("copy", "match"),
    ("classifier transplanted", "layer 1 transplanted"),
    ("layer 1 transplanted", "layer 2 transplanted"),
)
STEPS = tuple(range(0, 3001, 50))


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Times, and the accuracy of guessing any label."""
    times = _transitions.risen(dataset["accuracy"], plateau=0.0, end=1.0, level=REACHED, edges=(0.5, 0.95))
    names = ["transition_time", "observed_time", "transitioned", "median_time"]
    return dataset.assign(times[names].astype(float)).assign(blind_accuracy=1 / fixed_values(dataset)["label_count"])


def check(dataset: xr.Dataset) -> list[Finding]:
    """What each intervention does to the time of the jump, and which operation it waits for."""
    groups = {name: dataset.isel(dim=0, drop=True).sel(intervention=name, drop=True) for name in _there(dataset)}
    findings = _blind(groups[BLIND]) if BLIND in groups else []
    for later, sooner in ORDER:
        if {later, sooner} <= set(groups):
            findings += _sooner(later, sooner, groups)
    for name in (FROZEN, *ABLATIONS):
        if {NONE, name} <= set(groups):
            findings += _later(name, groups)
    return [*findings, *checks.complete("whole", "all interventions", set(groups) == set(INTERVENTIONS))]


def _there(dataset: xr.Dataset) -> list[str]:
    return [name for name in INTERVENTIONS if name in dataset.intervention]


def _blind(group: xr.Dataset) -> list[Finding]:
    """Without any attention the query's token is all there is to answer by, whatever the training."""
    found = estimates.mean(group["accuracy"].isel(step=-1, drop=True))
    # Of few seeds the scatter may be small by chance; that of the prompts is known.
    least = (found.value * (1 - found.value) / (fixed_values(group)["prompts"] * group.sizes["seed"])) ** 0.5
    found = Estimate(found.value, xr.where(found.error < least, least, found.error))
    chance = float(group["blind_accuracy"])
    return checks.covers("blind", "accuracy without attention, after training", found, chance, largest_error=0.02)


def _sooner(later: str, sooner: str, groups: dict[str, xr.Dataset]) -> list[Finding]:
    """Pairs of one start. The time of a run that is censored is longer than its last step, which stands for it."""
    a, b = groups[later], groups[sooner]
    ratio = estimates.geometric_mean(a["observed_time"].clip(min=1) / b["observed_time"].clip(min=1))
    what = f"time without intervention / with {sooner}" if later == NONE else f"time with {later} / with {sooner}"
    findings = checks.above("sooner", what, ratio, 1.0, at={"later": later, "sooner": sooner})
    # Censored on the later side the ratio is larger than it looks, on the other side smaller.
    complete = {Outcome.HOLDS: b, Outcome.FAILS: a}
    return [
        one if one.outcome not in complete or bool(complete[one.outcome]["transitioned"].all()) else _withheld(one)
        for one in findings
    ]


def _later(name: str, groups: dict[str, xr.Dataset]) -> list[Finding]:
    """The log-rank test against the same starts left alone; without a layer it does not come at all."""
    at = f"[intervention={name}]"
    findings = _transitions.delayed(f"later{at}", f"the jump comes later, {name}", groups[NONE], groups[name])
    if name in ABLATIONS:
        count = groups[name]["transitioned"].sum()
        findings += checks.equal("transitions", "transitions", count, 0, at={"intervention": name})
    return findings if groups[NONE]["transitioned"].any() else [_withheld(one) for one in findings]


def _withheld(finding: Finding) -> Finding:
    advice = "runs were censored before they got there; longer ones would tell"
    return dataclasses.replace(finding, outcome=Outcome.UNDECIDED, advice=advice)


def figure(dataset: xr.Dataset):
    """The time of every run, open where it is censored; Kaplan-Meier medians as bars."""
    dataset = dataset.isel(dim=0)
    names = [name for name in INTERVENTIONS if name in dataset.intervention]
    with style.context():
        figure = Figure(figsize=(style.COLUMN, 0.85 + 0.22 * len(names)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for row, name in enumerate(names):
            part = dataset.sel(intervention=name)
            time, there = part["observed_time"].values, part["transitioned"].values > 0
            colour = style.INK if name == NONE else style.CATEGORIES[0]
            spread = row + np.linspace(-0.24, 0.24, len(time)) if len(time) > 1 else np.array([float(row)])
            look = {"linestyle": "none", "color": colour, "markeredgewidth": 0.7, "clip_on": False}
            axes.plot(time[there], spread[there], "o", markersize=3.0, **look)
            axes.plot(time[~there], spread[~there], ">", markersize=3.4, markerfacecolor="white", **look)
            median = float(part["median_time"])
            if np.isfinite(median):
                axes.plot([median] * 2, [row - 0.36, row + 0.36], color=colour, linewidth=1.4)
        axes.set_xscale("log")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"step at which the accuracy reaches {REACHED:g}")
        shown = [
            Line2D([], [], linestyle="none", marker="o", markersize=3.0, color=style.INK, label="one run"),
            Line2D([], [], linestyle="none", marker=">", markersize=3.4, color=style.INK, label="censored"),
            Line2D([], [], color=style.INK, linewidth=1.4, label="median"),
        ]
        shown[1].set_markerfacecolor("white")
        figure.legend(handles=shown, loc="outside upper left", ncols=3)
    return figure


experiment = Experiment(
    claim=(
        "The induction head forms sooner when any one of its operations is supplied, least for previous-token "
        "attention and most for the match, and not at all without either layer."
    ),
    conditions=(
        "N = 4, L = 16, novel classes in every prompt, SGD at rate 0.1. Of the parts of a trained network, layer 2 "
        "brings it forward most and the classifier least. With a frozen classifier it comes later."
    ),
    sources=("Reddy24",),
    quantities=(
        "accuracy",
        "transition_time",
        "observed_time",
        "transitioned",
        "median_time",
        Quantity("blind_accuracy", "1/L", "accuracy without attention"),
    ),
    static=("dim",),
    outputs=("step",),
    fixed={"label_count": 16, "pairs": 4, "loss": 0.15, "prompts": 512},
    sizes={
        "smoke": {"dim": (31,), "intervention": (BLIND,), "step": (0, 100), "seed": 3},
        "small": {"dim": (31,), "intervention": INTERVENTIONS, "step": STEPS, "seed": 10},
        "medium": {
            "dim": (31,),
            "intervention": INTERVENTIONS,
            "step": tuple(range(0, 8001, 50)),
            "seed": Seeds(20, block=1),
        },
    },
    theory=theory,
    check=check,
    figure=figure,
    controls={
        "unablated": Control(
            "the match is supplied where attention should add nothing", measure={"instead": {BLIND: "match"}}
        ),
        "exchanged": Control(
            "the copy is supplied in the place of the match, and the other way round",
            measure={"instead": {"match": "copy", "copy": "match"}},
            axes={"intervention": ("match", "copy"), "step": tuple(range(0, 801, 50))},
        ),
    },
)
