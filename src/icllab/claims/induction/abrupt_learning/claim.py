r"""The in-context accuracy of a two-layer network: a plateau at one in N, then a jump.

Prompts have N items with different labels out of L, and a query that repeats one of the items; classes are fresh in
every prompt. Chance is 1/L, and naming any label of the context is right in 1/N. On the scale of

.. math:: u = \frac{A - 1/N}{1 - 1/N}

the transition is where the accuracy A first has u = 1/2, and its width is the time from u = 0.1 to u = 0.9. A learner
that comes near its end exponentially has a width of 3.2 times that time; the claim is of less than a third. The plateau
is the mean accuracy while nine tenths of the answers are labels of the context, until a width before the transition. It
is one of the accuracy, not of the loss at ln N.

The two steps of an induction head are read off the attention: from a label to its item in the first layer (ILA1), and
from the query to the right label in the second (TILA2). Attention to labels as such (TLA2) and answers that are labels
of the context (CLA) belong to guessing. Their times and widths are taken between their own plateaus and ends.
"""

import numpy as np
import xarray as xr

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, agreement, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels

LONG = 4000  # steps by which a network without a transition is one
SHARP = 1 / 3  # of the width over the time
GUESSED = 0.9  # of the answers are labels of the context, on the plateau
NEAR = 0.03  # of the plateau's accuracy to 1/N
TOGETHER = 0.15  # of the logarithms of times
EARLIER = float(np.log(1.5))  # likewise, and of the logarithms of widths over times
REFERENCE = (1450, 2100, 2050, 1250, 2150, 1500)  # steps to nine tenths of six networks of another program, D=31
REFERENCE_DIM, NINE_TENTHS = 31, 0.9
JUMPING = {"item_label_attention": "ILA1", "target_attention": "TILA2"}
GUESSING = {"label_attention": "TLA2", "context_label_accuracy": "CLA"}


def measure(point, *, key):
    """One cell: networks of all seeds, tested as they train."""
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


def check(dataset: xr.Dataset) -> list[Finding]:
    """Every network waits at one in N and then jumps, and both steps of the head jump with it."""
    from icllab.diagnostics import transitions

    findings = []
    for dim in dataset.dim.values:
        part, at = dataset.sel(dim=dim, drop=True), f"D={dim}"
        guess = 1 / fixed_values(part)["pairs"]
        found = transitions(part["accuracy"], plateau=guess, end=1.0)
        missed = int((~found["transitioned"]).sum())
        short = Outcome.UNDECIDED if part.step.values.max() < LONG else Outcome.FAILS
        findings.append(exactly(f"networks that do not jump, {at}", 0, missed, otherwise=short))
        before = part.step < found["transition_time"] - found["transition_width"]
        waiting = before & (part["context_label_accuracy"] >= GUESSED)
        level, error = _mean(part["accuracy"].where(waiting).mean("step"))
        said = f"{NEAR:g} above the distance of the plateau from 1/N, {at}"
        findings.append(exceeds(said, NEAR - abs(level - guess), error))
        said = f"{SHARP:.3g} above the width of the jump over its time, {at}"
        findings.append(exceeds(said, *_mean(SHARP - found["relative_width"])))
        if dim == REFERENCE_DIM:
            findings.append(_as_elsewhere(part, at))
        own = {name: transitions(part[name]) for name in (*JUMPING, *GUESSING)}
        findings += _events(found, own, at)
    known = [finding for finding in findings if np.isfinite(finding.tolerance)]
    seen = len(known) == len(findings)
    return [*known, exactly("all that is compared is seen in the steps given", 1, seen, otherwise=Outcome.UNDECIDED)]


def _as_elsewhere(part: xr.Dataset, at: str) -> Finding:
    """The steps to nine tenths, beside those of another program: the means of their logarithms."""
    there = part["accuracy"] > NINE_TENTHS
    mean, error = _mean(_log(part.step.where(part.step > 0)[there.argmax("step")].where(there.any("step"))))
    expected, of_expected = mean_and_error(np.log(REFERENCE))
    said = f"ln of the first tested step with {NINE_TENTHS:g} right, {at}"
    return agreement(said, float(expected), mean, float(np.hypot(error, of_expected)), largest_error=0.25)


def _events(found: xr.Dataset, own: dict[str, xr.Dataset], at: str) -> list[Finding]:
    """Both steps of the head come with the jump, more at once than guessing, which has come before."""
    findings = []
    time = _log(found["transition_time"])
    for name, called in JUMPING.items():
        apart, error = _mean(_log(own[name]["transition_time"]) - time)
        said = f"{TOGETHER:g} above the distance of the ln time of {called} from that of the accuracy, {at}"
        findings.append(exceeds(said, TOGETHER - abs(apart), error))
        wider = _log(own["label_attention"]["relative_width"] / own[name]["relative_width"])
        said = f"ln width over time of TLA2 above that of {called}, {at}"
        findings.append(exceeds(said, *_mean(wider.where(found["transitioned"])), bound=EARLIER))
    for name, called in GUESSING.items():
        earlier = time - _log(own[name]["transition_time"])
        said = f"ln time of the accuracy above that of {called}, {at}"
        findings.append(exceeds(said, *_mean(earlier), bound=EARLIER))
    return findings


def _log(values: xr.DataArray) -> xr.DataArray:
    return values.copy(data=np.log(values.values))


def _mean(samples: xr.DataArray) -> tuple[float, float]:
    mean, error = mean_and_error(samples.values)
    return float(mean), float(error)


def figure(dataset: xr.Dataset):
    """Accuracy, loss, and both steps of the head against training, a line for each network."""
    names = ("accuracy", "label_loss", *JUMPING)
    shown = dataset.isel(dim=0, drop=True)[list(names)]
    return panels(shown, [Panel(None, line=name) for name in names], x="step", hue="seed", line_x="step")


def steady(dataset: xr.Dataset) -> xr.Dataset:
    """A wrong world: the accuracy rises evenly from chance."""
    share = dataset.step / dataset.step.max()
    chance = 1 / fixed_values(dataset)["label_count"]
    return dataset.assign(accuracy=(chance + (1 - chance) * share + 0 * dataset["accuracy"]))


def without_guessing(dataset: xr.Dataset) -> xr.Dataset:
    """A wrong world: nothing is learned before the jump."""
    later = dataset.step > dataset.step.values[len(dataset.step) // 2]
    chance = 1 / fixed_values(dataset)["label_count"]
    return dataset.assign(accuracy=xr.where(later, 1.0, chance) + 0 * dataset["accuracy"])


experiment = Experiment(
    claim=(
        "A two-layer attention-only network first learns to name any label of the context, right in 1/N, and then to "
        "look the label up at once: in less than a third of the time until then, together with the attention of both "
        "steps of an induction head, and long after the attention to labels as such."
    ),
    sources=("Reddy24",),
    static=("dim",),
    fixed={"pairs": 4, "label_count": 16, "learning_rate": 0.1, "batch": 128, "prompts": 1024},
    sizes={
        "smoke": {"dim": (31,), "step": (0, 50, 100, 150), "seed": 2},
        "small": {"dim": (31,), "step": tuple(range(0, 4001, 25)), "seed": 6},
        "medium": {"dim": (15, 31, 63), "step": tuple(range(0, 5001, 25)), "seed": 12},
    },
    precision="float32",
    measure=measure,
    check=check,
    figure=figure,
    worlds={
        "steady": World("the accuracy rises evenly from chance", theory=steady),
        "without_guessing": World("nothing is learned before the jump", theory=without_guessing),
    },
)
