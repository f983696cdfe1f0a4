r"""One layer of attention stays at one in N where two layers learn to look labels up.

The label of an item is found by two steps: a label's token takes up the item before it, and the query attends to the
label whose item it is. A network of one layer can attend to labels, and name one of the context: 1/N of the answers are
right. Both are trained alike, at two rates and two dimensions of the items, so that it is no matter of size or speed.

That a network without places answers no better is certain: it sees pairs as a set of tokens, in which items and labels
may be paired in any way. With places it is a matter of what is learned, which is measured here.
"""

import numpy as np
import xarray as xr

from icllab.experiments.checks import Finding, Outcome, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels

LONG = 4000  # steps that are enough to tell
NEAR = 0.05  # of the accuracy to 1/N


def measure(point, *, key):
    """One cell: networks of one depth and dimension, from all starts and at all rates."""
    from icllab.claims.induction import _networks as induction_networks

    found = induction_networks.learning_curves(
        seeds=point.seed,
        steps=point.step,
        key=key,
        rates=point.rate,
        prompts=point.prompts,
        batch=point.batch,
        fields={"layers": point.layers},
        labels=point.label_count,
        pairs=point.pairs,
        dim=point.dim,
    )
    names = ("accuracy", "label_loss", "context_label_accuracy")
    return {name: (("seed", "rate", "step"), found[name][1].reshape(found[name][1].shape[-3:])) for name in names}


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """What naming any label of the context gives: one in N, and ln N."""
    count = fixed_values(dataset)["pairs"]
    flat = xr.zeros_like(dataset.step, dtype=float)
    return dataset.assign(accuracy_line=flat + 1 / count, chance_loss=flat + np.log(count))


def check(dataset: xr.Dataset) -> list[Finding]:
    """No network of one layer learns it, every one of two does; and what one layer does instead."""
    from icllab.diagnostics import transitions

    findings = []
    short = dataset.step.values.max() < LONG
    for layers in dataset.layers.values:
        for dim in dataset.dim.values:
            for rate in dataset.rate.values:
                part = dataset.sel(layers=layers, dim=dim, rate=rate)
                at = f"{layers} layer{'s' * int(layers > 1)}, D={dim}, rate {float(rate):g}"
                found = transitions(part["accuracy"], plateau=float(part["accuracy_line"][0]), end=1.0)
                learned = int(found["transitioned"].sum())
                wanted = dataset.sizes["seed"] if layers > 1 else 0
                otherwise = Outcome.UNDECIDED if short and layers > 1 else Outcome.FAILS
                findings.append(exactly(f"networks that look labels up, {at}", wanted, learned, otherwise=otherwise))
                if layers == 1 and not short:
                    findings += _guessing(part, at)
    both = dataset.sizes["layers"] > 1 and not short
    findings.append(exactly("both depths, for long enough", 1, both, otherwise=Outcome.UNDECIDED))
    return findings


def _guessing(part: xr.Dataset, at: str) -> list[Finding]:
    """In the second half of the training no network is above one in N or below ln N. One may still be at chance."""
    late = part.isel(step=slice(part.sizes["step"] // 2, None)).mean("step")
    most, guess = float(late["accuracy"].max()), float(late["accuracy_line"])
    # All steps are tested on the same prompts: their mean has the error of one.
    error = (guess * (1 - guess) / fixed_values(part)["prompts"]) ** 0.5
    below = int((late["label_loss"] < late["chance_loss"]).sum())
    return [
        exceeds(f"{NEAR:g} above the largest accuracy less 1/N, {at}", NEAR - (most - guess), error),
        exactly(f"networks with a loss below ln N, {at}", 0, below),
    ]


def figure(dataset: xr.Dataset):
    """Accuracy against training at the smaller dimension, a panel for each rate."""
    shown = dataset.isel(dim=0, drop=True)[["accuracy", "accuracy_line"]]
    rows = [Panel("accuracy", "accuracy_line", at={"rate": float(rate)}) for rate in dataset.rate.values]
    shown = shown.isel(step=slice(None, None, 4))
    return panels(shown, rows, x="step", hue="layers", line_x="step", line_name="one in N")


def learned(dataset: xr.Dataset) -> xr.Dataset:
    """A wrong world: networks of one layer look labels up in the end."""
    late = (dataset.step >= 0.8 * dataset.step.max()) & (dataset.layers == 1)
    return theory(dataset.assign(accuracy=xr.where(late, 1.0, dataset["accuracy"])))


experiment = Experiment(
    claim=(
        "A network of one layer of attention gets no further than one in N, its loss above ln N, in as many steps as "
        "bring every network of two layers to look labels up, at two learning rates and two dimensions of the items."
    ),
    sources=("Reddy24",),
    static=("layers", "dim"),
    fixed={"pairs": 4, "label_count": 16, "batch": 128, "prompts": 1024},
    sizes={
        "smoke": {"layers": (1,), "dim": (31,), "rate": (0.1,), "step": (50, 100, 150), "seed": 2},
        "small": {"layers": (1, 2), "dim": (31, 63), "rate": (0.1, 0.3), "step": tuple(range(50, 4001, 50)), "seed": 3},
        "medium": {
            "layers": (1, 2),
            "dim": (31, 63, 127),
            "rate": (0.03, 0.1, 0.3),
            "step": tuple(range(100, 20001, 100)),
            "seed": 6,
        },
    },
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={"learned": World("networks of one layer look labels up in the end", theory=learned)},
)
