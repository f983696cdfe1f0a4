r"""What has to be learned before the head works: interventions during training, and when the jump comes.

Networks are trained from one start many times over, each time with one operation of the induction head supplied or
withheld: *previous token* and *match* clamp the pattern of layer 1 (a label attends to the item before it) or 2 (the
query attends to the right label); with *copy* the attention on each label is the answer; a *frozen* classifier stays as
it was drawn; a *transplanted* part starts from the network trained without intervention. The time of the jump is the
step at which the accuracy on novel classes first reaches 0.9. Runs that do not get there are censored at their last.
"""

import numpy as np
import xarray as xr

from iclbook.claims.induction import _transitions
from iclbook.claims.induction._learned import mean_accuracy
from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, Outcome, checks, estimates
from icllab.lab.results import fixed_values

NONE, BLIND, FROZEN = "none", "no attention", "classifier frozen"
CLAMPS = ("previous token", "match", "copy")
TRANSPLANTS = ("layer 1 transplanted", "layer 2 transplanted", "classifier transplanted")
ABLATIONS = ("no layer 1", "no layer 2", BLIND)
INTERVENTIONS = (NONE, *CLAMPS, FROZEN, *TRANSPLANTS, *ABLATIONS)
TIMES = ["transition_time", "observed_time", "transitioned", "median_time"]
CENSORED = "runs were censored before they got there; longer ones would tell"
REACHED = 0.9  # accuracy at which a network has made its transition
# The later one first.
ORDER = [(NONE, name) for name in (*CLAMPS, *TRANSPLANTS)] + [("previous token", "copy"), ("copy", "match")]
ORDER += [("classifier transplanted", "layer 1 transplanted"), ("layer 1 transplanted", "layer 2 transplanted")]


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Times, and the accuracy of guessing any label."""
    times = _transitions.risen(dataset["accuracy"], plateau=0.0, end=1.0, level=REACHED, edges=(0.5, 0.95))
    return dataset.assign(times[TIMES].astype(float)).assign(blind_accuracy=1 / fixed_values(dataset)["label_count"])


def check(dataset: xr.Dataset) -> list[Finding]:
    """Each intervention moves the time of the jump as claimed."""
    dataset, interventions = (
        dataset.isel(dim=0, drop=True),
        [name for name in INTERVENTIONS if name in dataset.intervention],
    )
    groups, findings = {name: dataset.sel(intervention=name, drop=True) for name in interventions}, []
    if BLIND in groups:  # the query's token is all there is to answer by, whatever the training
        last, quantity = (
            groups[BLIND]["accuracy"].isel(step=-1, drop=True),
            "accuracy without attention, after training",
        )
        estimate = mean_accuracy(last, fixed_values(dataset)["prompts"])
        findings += checks.agrees("blind", quantity, estimate, float(dataset["blind_accuracy"]), largest_error=0.02)
    for later, sooner in ORDER:
        if {later, sooner} <= set(groups):
            findings += _sooner(later, sooner, groups)
    for name in (FROZEN, *ABLATIONS):
        if {NONE, name} <= set(groups):
            findings += _later(name, groups)
    return findings


def _sooner(later: str, sooner: str, groups: dict[str, xr.Dataset]) -> list[Finding]:
    """Pairs of one start. The time of a run that is censored is longer than its last step, which stands for it."""
    a, b = groups[later], groups[sooner]
    ratio = estimates.geometric_mean(a["observed_time"].clip(min=1) / b["observed_time"].clip(min=1))
    quantity = f"time without intervention / with {sooner}" if later == NONE else f"time with {later} / with {sooner}"
    (finding,) = checks.above("sooner", quantity, ratio, 1.0, at={"later": later, "sooner": sooner})
    # Censored on the later side the ratio is larger than it looks, on the other side smaller.
    decisive = {Outcome.HOLDS: [b], Outcome.FAILS: [a], Outcome.UNDECIDED: []}[finding.outcome]
    return [finding] if all(group["transitioned"].all() for group in decisive) else checks.withheld([finding], CENSORED)


def _later(name: str, groups: dict[str, xr.Dataset]) -> list[Finding]:
    """The log-rank test against the same starts left alone; without a layer it does not come at all."""
    at = f"[intervention={name}]"
    findings = _transitions.delayed(f"later{at}", f"the jump comes later, {name}", groups[NONE], groups[name])
    if name in ABLATIONS:
        count = groups[name]["transitioned"].sum()
        findings += checks.equal("transitions", "transitions", count, 0, at={"intervention": name})
    return findings if groups[NONE]["transitioned"].any() else checks.withheld(findings, CENSORED)


def figure(dataset: xr.Dataset):
    """The time of every run, marked at the frame where it is censored, and the Kaplan-Meier medians."""
    interventions = [name for name in INTERVENTIONS if name in dataset.intervention]
    part = dataset.isel(dim=0, drop=True).sel(intervention=interventions)
    part["transition_time"] = part["transition_time"].where(part["transitioned"] > 0, np.inf)
    rows = [Panel("transition_time", "median_time", yscale="log")]
    return panels(part, rows, x="intervention", hue="seed", line_name="median", columns=2)


COMMON = {"dim": (31,), "intervention": INTERVENTIONS, "step": tuple(range(0, 3001, 50))}

claim = Claim(
    title="Which step the head waits for",
    sentence=(
        "The induction head forms sooner when any one of its operations is supplied, least for previous-token "
        "attention and most for the match, and not at all without either layer."
    ),
    conditions=(
        "N = 4, L = 16, novel classes in every prompt, SGD at rate 0.1. Of the parts of a trained network, layer 2 "
        "brings it forward most and the classifier least. With a frozen classifier it comes later. "
        "The order was read off ten seeds of another key."
    ),
    sources=("Reddy24",),
    quantities=("accuracy", *TIMES, Quantity("blind_accuracy", "1/L", "accuracy without attention")),
    static=("dim",),
    outputs=("step",),
    fixed={"label_count": 16, "pairs": 4, "loss": 0.15, "prompts": 512},
    sizes={
        "smoke": COMMON | {"intervention": (BLIND,), "step": (0, 100), "seed": 2},
        "small": COMMON | {"seed": 10},
        "medium": COMMON | {"step": tuple(range(0, 8001, 50)), "seed": Seeds(20, block=1)},
    },
    key=1,
    controls={
        "even": Control(
            "operations are supplied at a ninth of their strength: attention is fixed, but nearly even",
            measure={"strength": 1 / 9},
            axes={"intervention": (NONE, "match")},
        ),
        "unwithheld": Control(
            "no layer is withheld while training, and the frozen classifier is a trained network's",
            measure={"unwithheld": True},
            axes={"intervention": (NONE, FROZEN, *ABLATIONS)},
        ),
    },
)
