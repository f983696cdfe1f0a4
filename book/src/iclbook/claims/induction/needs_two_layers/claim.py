"""One layer of attention stays at 1/N where two layers learn to look labels up.

The label of an item is found in two steps: a label's token takes up the item before it, and the query attends to the
label whose item it is. A network of one layer can attend to labels, and guess one of the context: an accuracy of 1/N.
Without positions it certainly answers no better, since it sees pairs as a set of tokens; with positions that is a
matter of what is learned, which is measured here, at two rates and two dimensions of the items.
"""

import xarray as xr

from iclbook.claims.induction import _transitions
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks
from icllab.lab.results import fixed_values

NEAR = 0.05  # of the accuracy to 1/N


def check(dataset: xr.Dataset) -> list[Finding]:
    """No network of one layer learns it, every one of two does; and what one layer does instead."""
    guess, prompts = 1 / fixed_values(dataset)["pairs"], fixed_values(dataset)["prompts"]
    rises = _transitions.risen(dataset["accuracy"], plateau=guess, end=1.0)["transitioned"].sum("seed")
    shallow, deep = rises.sel(layers=rises.layers == 1), rises.sel(layers=rises.layers > 1)
    quantity = "networks that look labels up"
    findings = checks.equal("looked_up", quantity, shallow, 0)
    findings += checks.equal("looked_up", quantity, deep, dataset.sizes["seed"])
    # One layer in the second half of the training. A network may still be at chance.
    late = dataset.sel(layers=dataset.layers == 1).isel(step=slice(dataset.sizes["step"] // 2, None)).mean("step")
    # All steps are tested on the same prompts: their mean has the error of one.
    above = Estimate(late["accuracy"].max("seed") - guess, (guess * (1 - guess) / prompts) ** 0.5)
    findings += checks.below("above_guessing", "largest accuracy of a network - 1/N", above, NEAR)
    below = (late["label_loss"] < late["chance_loss"]).sum("seed")
    return findings + checks.equal("below_guessing", "networks with a loss below ln N", below, 0)


def figure(dataset: xr.Dataset):
    """Accuracy against training at the smaller dimension, a panel for each rate."""
    part = dataset.isel(dim=0, drop=True)[["accuracy", "accuracy_line"]].isel(step=slice(None, None, 4))
    rows = [Panel("accuracy", "accuracy_line", at={"rate": float(rate)}) for rate in dataset.rate.values]
    return panels(part, rows, x="step", hue="layers", line_x="step", line_name="1/N")


claim = Claim(
    title="One layer cannot look labels up",
    sentence=(
        "One layer of attention stays at the accuracy 1/N of guessing a label of the context, its loss above ln N, "
        "where every two-layer network learns to look labels up."
    ),
    conditions=(
        "N = 4, L = 16, novel classes in every prompt; SGD, as many steps for both depths, at two learning rates and "
        "two dimensions of the items."
    ),
    sources=("Reddy24",),
    quantities=("accuracy", "label_loss", "context_label_accuracy", "chance_loss"),
    static=("layers", "dim"),
    outputs=("step",),
    fixed={"pairs": 4, "label_count": 16, "batch": 128, "prompts": 1024},
    sizes={
        "smoke": {"layers": (1,), "dim": (31,), "rate": (0.3,), "step": (100, 200), "seed": 2},
        "small": {"layers": (1, 2), "dim": (31, 63), "rate": (0.1, 0.3), "step": tuple(range(50, 4001, 50)), "seed": 3},
        "medium": {"layers": (1, 2), "dim": (31, 63, 127), "rate": (0.03, 0.1, 0.3), "seed": Seeds(6, block=2)}
        | {"step": tuple(range(100, 20001, 100))},
    },
    theory=_transitions.guessing,
    controls={
        "depth_without_effect": Control(
            "every network has two layers, whatever depth is asked for",
            measure={"layers": 2},
            axes={"layers": (1,), "dim": (31,), "rate": (0.3,), "step": tuple(range(100, 1201, 100)), "seed": (0, 1)},
        )
    },
)
