r"""Breaks in the loss of an in-context regression transformer, and estimates of its learning coefficient over them.

Prompts of eight pairs, :math:`x \sim N(0, I_4)`, noise of variance 1/8, a pool of k tasks from :math:`N(0, I_4)`; two
layers of four heads: the published setting, smaller. At checkpoints Langevin dynamics estimates :math:`\hat\lambda =
n\beta(E[L] - L(w))`, L the mean squared error over positions. It counts the directions in which the loss bends by more
than :math:`\gamma/n\beta`; if the checkpoint is no minimum, the number depends on the procedure. Distances are mean
squares on prompts of fresh tasks, over d, and not claimed. For exact coefficients across a transition see
``singular/effective_dimension_across_the_cliff``.
"""

import numpy as np
import xarray as xr

from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks, estimates

RIVALS = ("dMMSE", "ridge")
LONG = 1000  # least number of updates for estimates of coefficients


def check(dataset: xr.Dataset) -> list[Finding]:
    """Training lowers the loss; over each reported break the estimated coefficient rises, if no estimate warns."""
    loss = dataset["held_out_loss"]
    fall = estimates.geometric_mean(loss.isel(step=0, drop=True) / loss.isel(step=-1, drop=True))
    findings = checks.above("fall", "loss at the start / at the end", fall, 1.0)
    if dataset["step"].values[-1] < LONG:
        return findings
    for tasks in dataset["tasks"].values:
        part, at = dataset.sel(tasks=tasks, drop=True), {"tasks": int(tasks)}
        findings += _rises(part, at)
        smallest, largest, last = part.nbeta.values.min(), part.nbeta.values.max(), part.isel(checkpoint=-1)
        if smallest < largest:
            quantity = f"estimate at nbeta={largest:g} - at {smallest:g}"
            findings += _greater("growth", quantity, last.sel(nbeta=largest), last.sel(nbeta=smallest), at)
    return findings


def _rises(part: xr.Dataset, at: checks.At) -> list[Finding]:
    """Rise from the last checkpoint before a reported break to the first after it, at the common temperature."""
    from icllab.diagnostics.curves.breakpoints import change_points

    breaks = change_points(part["held_out_loss"].transpose("seed", "step"))
    intervals = breaks["change_interval"].values[breaks["reported"].values]
    checkpoints, estimate = part["checkpoint"].values, part["learning_coefficient"]
    nbeta = part["nbeta"].values[int(np.argmax(estimate.notnull().all(("checkpoint", "seed")).values))]
    sides = [(checkpoints[checkpoints <= low], checkpoints[checkpoints >= high]) for low, high in intervals]
    sides = [{"first": int(before[-1]), "last": int(after[0])} for before, after in sides if len(before) and len(after)]
    findings = checks.complete("breaks", "a change point of the loss is reported", len(intervals) > 0, at=at)
    findings += checks.complete("covered", "a reported break has checkpoints on both sides", bool(sides), at=at)
    for side in sides:
        after, before = (part.sel(nbeta=nbeta, checkpoint=side[end]) for end in ("last", "first"))
        findings += _greater("rise", "rise of the estimate over a reported break", after, before, {**at, **side})
    return findings


def _greater(id: str, quantity: str, upper: xr.Dataset, lower: xr.Dataset, at: checks.At) -> list[Finding]:
    """Is an estimate above another? Undecided if either warns."""
    differences = estimates.stored(upper, "learning_coefficient") - estimates.stored(lower, "learning_coefficient")
    over_seeds, within_chains = estimates.mean(differences.value), differences.average("seed")
    larger = over_seeds.error >= within_chains.error
    error, freedom = (
        getattr(over_seeds, part).where(larger, getattr(within_chains, part)) for part in ("error", "freedom")
    )
    difference = Estimate(over_seeds.value, error, freedom=freedom)
    findings = checks.above(id, quantity, difference, at=at)
    count = int(sum(part["sampler_warnings"].fillna(0).max() for part in (upper, lower)))
    advice = f"{count} warnings of these estimates"
    return checks.withheld(findings, advice) if count else findings


def figure(dataset: xr.Dataset):
    """Draw the loss, the coefficient and distances from the two predictors against the step."""
    part = dataset.isel(tasks=-1, step=dataset.step.values > 0, checkpoint=dataset.checkpoint.values > 0)
    by_checkpoint = {"learning_coefficient": "nbeta", "fresh_distance": "predictor"}
    rows = [Panel(name, x="checkpoint", hue=hue) for name, hue in by_checkpoint.items()]
    return panels(part, [Panel(None, "held_out_loss", x="step", hue="seed"), *rows], x="step", xscale="log")


def _log_steps(last: int, records: int) -> tuple[int, ...]:
    return (0, *sorted({round(last ** (i / records)) for i in range(1, records + 1)}))


COMMON = {"predictor": RIVALS, "tasks": (8,), "seed": 3, "nbeta": (60.0, 20.0, 180.0)}

claim = Claim(
    title="The coefficient rises at breaks",
    sentence=(
        "Over each break in the loss of a small in-context regression transformer the estimated learning coefficient, "
        "which grows with the inverse temperature, rises."
    ),
    conditions=(
        "A pool of 8 or 64 tasks in four dimensions, Adam, breaks of the loss known to within a decade; SGLD at n beta "
        "of some tens. An estimate that warns decides nothing, and three seeds of 3000 steps have shown no break."
    ),
    sources=("Hoogland24",),
    quantities=("held_out_loss", "fresh_distance", "learning_coefficient", "sampler_warnings"),
    static=("tasks",),
    outputs=("predictor", "step", "checkpoint", "nbeta"),
    fixed={"dim": 4, "length": 8, "width": 16, "batch": 128, "rate": 3e-3, "prompts": 1024}
    | {"chains": 4, "warm_up": 100, "step_size": 1e-4, "localization": 100.0},
    sizes={
        "smoke": COMMON | {"step": (0, 30), "checkpoint": (0, 30), "nbeta": (60.0,), "seed": 2},
        "small": COMMON | {"step": _log_steps(3000, 48), "checkpoint": (0, 60, 300, 800, 1500, 3000)},
        "medium": COMMON
        | {"tasks": (8, 64), "seed": Seeds(4, block=1), "step": _log_steps(20000, 60)}
        | {"checkpoint": (0, 60, 300, 800, 1500, 3000, 6000, 10000, 20000)},
    },
    controls={"ascent": Control("every step goes up the gradient", measure={"ascent": True})},
)
