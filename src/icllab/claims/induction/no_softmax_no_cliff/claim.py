r"""Without softmax, no cliff? The jump of the accuracy, with the exponentials of attention taken out.

An induction head is three softmax operations, one inside the other, and these nested exponentials have been held to be
why it is learned abruptly. Two of them are the attention of the two layers. In their place stands attention of first
order in its scores,

.. math:: a_{ij} = \frac{1 + s_{ij}}{i}, \qquad s_{ij} = \langle x_i W_Q,\, x_j W_K \rangle, \quad j \le i,

which is as even as softmax where the scores are zero, has no exponential, and may be negative: in the first layer, in
the second, or in both. The softmax of the cross-entropy stays.

Compared is the width of the jump over its time, a number that does not change when all rates are made smaller. The
width is the time from a tenth to nine tenths of the way from 1/N to 1, or from chance, 1/L, to 1; the time is that of
half the way. Every kind is trained at two rates, so that a slow run is not read as a smooth one. A run that does not
jump in the steps given has no width. Some starts stay at chance, 1/L, for long before they do anything; what may not be
is a network that has come to guess among the labels of its context and does not jump.
"""

import numpy as np
import xarray as xr

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels

SOFTMAX = "softmax"
KINDS = {
    SOFTMAX: ("softmax", "softmax"),
    "first order, layer 1": ("linear", "softmax"),
    "first order, layer 2": ("softmax", "linear"),
    "first order, both": ("linear", "linear"),
}
LONG = 4000  # steps that are enough to tell
SHARP = 1 / 3  # of the width over the time
FEWEST = 3  # networks that must have left chance, where so many are trained
BOUNDS = {"pairs": ("1/N", 3), "label_count": ("chance", 2)}  # of the width over the time, over that of softmax


def measure(point, *, key):
    """One cell: networks of one kind of attention, from all starts and at all rates."""
    from icllab.claims.induction import _networks as induction_networks

    kinds = KINDS[point.attention]
    found = induction_networks.learning_curves(
        seeds=point.seed,
        steps=point.step,
        key=key,
        rates=point.rate,
        prompts=point.prompts,
        batch=point.batch,
        fields={"attention": kinds},
        prepared=induction_networks.first_order,
        labels=point.label_count,
        pairs=point.pairs,
        dim=point.dim,
    )
    names = ("accuracy", "label_loss", "context_label_accuracy")
    return {name: (("seed", "rate", "step"), found[name][1].reshape(found[name][1].shape[-3:])) for name in names}


def check(dataset: xr.Dataset) -> list[Finding]:
    """Every kind jumps at every rate, sharply, and not much more gradually than softmax."""
    findings, jumps = [], {}
    short = Outcome.UNDECIDED if dataset.step.values.max() < LONG else Outcome.FAILS
    for kind in map(str, dataset.attention.values):
        for rate in map(float, dataset.rate.values):
            part, at = dataset.sel(attention=kind, rate=rate), f"{kind}, rate {rate:g}"
            own = {floor: _jumps(part, floor) for floor in BOUNDS}
            jumps[kind, rate] = own
            found = own["pairs"]
            waiting = int((~found["transitioned"] & _above_chance(part, found)).sum())
            findings.append(exactly(f"networks that guess and do not jump, {at}", 0, waiting, otherwise=short))
            enough = int(found["transitioned"].sum()) >= FEWEST
            findings.append(exactly(f"at least {FEWEST} networks jump, {at}", 1, enough, otherwise=short))
            said = f"{SHARP:.3g} above the width of the jump over its time, {at}"
            findings.append(exceeds(said, *_mean(SHARP - found["relative_width"])))
    for (kind, rate), own in jumps.items():
        if kind == SOFTMAX or (SOFTMAX, rate) not in jumps:
            continue
        for floor, (called, bound) in BOUNDS.items():
            ours, theirs = (_mean(np.log(one[floor]["relative_width"])) for one in (own, jumps[SOFTMAX, rate]))
            said = f"ln {bound} above ln of the width from {called} over that of softmax, {kind}, rate {rate:g}"
            error = float(np.hypot(ours[1], theirs[1]))
            findings.append(exceeds(said, float(np.log(bound)) - (ours[0] - theirs[0]), error))
    known = [finding for finding in findings if np.isfinite(finding.tolerance)]
    seen = dataset.sizes["attention"] == len(KINDS) and len(known) == len(findings)
    return [*known, exactly("all kinds jump in the steps given", 1, seen, otherwise=Outcome.UNDECIDED)]


def _above_chance(part: xr.Dataset, found: xr.Dataset) -> xr.DataArray:
    """Whether a network ends nearer to guessing among the labels of the context than among all."""
    fixed = fixed_values(part)
    return found["end_level"] > (1 / fixed["pairs"] + 1 / fixed["label_count"]) / 2


def _jumps(part: xr.Dataset, floor: str) -> xr.Dataset:
    """Times and widths of the way from one over a fixed number to 1."""
    from icllab.diagnostics import transitions

    return transitions(part["accuracy"], plateau=1 / fixed_values(part)[floor], end=1.0)


def _mean(samples: xr.DataArray) -> tuple[float, float]:
    mean, error = mean_and_error(samples.values)
    return float(mean), float(error)


def figure(dataset: xr.Dataset):
    """Accuracy against training at the largest rate, a panel for each kind, a line for each network."""
    shown = dataset.isel(rate=-1, drop=True)[["accuracy"]]
    kinds = [kind for kind in KINDS if kind in dataset.attention.values]
    rows = [Panel(None, line="accuracy", at={"attention": kind}) for kind in kinds]
    return panels(shown, rows, x="step", hue="seed", line_x="step")


def gradual(dataset: xr.Dataset) -> xr.Dataset:
    """A wrong world: without softmax the accuracy comes near 1 exponentially."""
    chance = 1 / fixed_values(dataset)["label_count"]
    rest = np.exp(-5 * dataset.step / dataset.step.max())
    smooth = 1 - (1 - chance) * rest + 0 * dataset["accuracy"]
    return dataset.assign(accuracy=dataset["accuracy"].where(dataset.attention == SOFTMAX, smooth))


experiment = Experiment(
    claim=(
        "The jump needs no exponentials of attention: with attention of first order in its scores in the place of "
        "softmax, in the first layer, the second or both, networks still wait at 1/N and jump to the right label, in "
        "less than a third of the time until then, and in less than three times the share of it that softmax takes."
    ),
    sources=("Reddy24",),
    static=("attention",),
    fixed={"pairs": 4, "label_count": 16, "dim": 31, "batch": 128, "prompts": 1024},
    sizes={
        "smoke": {"attention": ("first order, both",), "rate": (0.3,), "step": (0, 50, 100, 150), "seed": 2},
        "small": {"attention": tuple(KINDS), "rate": (0.15, 0.3), "step": tuple(range(0, 4001, 25)), "seed": 4},
        "medium": {"attention": tuple(KINDS), "rate": (0.1, 0.2, 0.3), "step": tuple(range(0, 8001, 25)), "seed": 8},
    },
    precision="float32",
    measure=measure,
    check=check,
    figure=figure,
    worlds={"gradual": World("without softmax the accuracy comes near 1 exponentially", theory=gradual)},
)
