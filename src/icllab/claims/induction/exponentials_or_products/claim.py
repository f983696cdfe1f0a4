r"""What makes the cliff: the exponentials of attention, that of the cross-entropy, or products of weights?

Each is there or not, in eight combinations: softmax or attention of first order in its scores, in both layers;
cross-entropy or squared error; strengths that are products of two weights or weights themselves. The same eight are
taken on the landscape, by gradient flow from strengths of 0.01, and in networks, whose strengths are matrices: products
of two or, from the very same matrices at the start, one.

The loss is timed over that of guessing among the labels of the context. The *relative width* of its drop is the time
from 0.9 to 0.25 of that over the time of 0.5. It does not change when all rates are made smaller.
"""

import functools
import itertools

import numpy as np
import xarray as xr

from icllab.claims.induction import _transitions
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory import induction_factors

# Of each factor: with it, without it.
FACTORS = {
    "attention": ("softmax", "first order"),
    "objective": ("cross-entropy", "squared error"),
    "strengths": ("products", "weights"),
}
SHORTER = 0.9  # relative width with a factor, over that without it
EDGES = (0.1, 0.75)  # of the way from the loss of guessing to none: 0.9 and 0.25 of the loss
START, HORIZON = 0.01, 1000.0  # of the flow


def theory(dataset: xr.Dataset, start: float = START) -> xr.Dataset:
    """The relative widths of the flow from a start of all strengths, for all eight, and those of the networks."""
    constants = fixed_values(dataset)
    widths = _flow_widths(constants["pairs"], constants["label_count"], start)
    guess = [
        induction_factors.guessing_loss(pairs=constants["pairs"], objective=str(o)) for o in dataset.objective.values
    ]
    over = dataset["label_loss"] / xr.DataArray(guess, dims="objective")
    network_widths = _transitions.risen(over, plateau=1.0, end=0.0, edges=EDGES)["relative_width"]
    flow = {f"flow_{name}": list(kinds) for name, kinds in FACTORS.items()}
    return dataset.assign(
        loss_over_guessing=over.transpose(*dataset["label_loss"].dims),
        drop_width=network_widths,
        drop_width_theory=widths.sel({name: dataset[name] for name in FACTORS}),
        flow_width=(tuple(flow), widths.values),
    ).assign_coords(flow)


@functools.cache
def _flow_widths(pairs: int, labels: int, start: float) -> xr.DataArray:
    """The relative widths of the flow, of all eight kinds."""
    widths = xr.DataArray(np.empty((2, 2, 2)), {name: list(kinds) for name, kinds in FACTORS.items()}, list(FACTORS))
    levels = (1 - EDGES[0], 0.5, 1 - EDGES[1])
    for attention, objective, strengths in itertools.product(*FACTORS.values()):
        kind = {"attention": attention, "objective": objective, "factors": 1 + (strengths == "products")}
        sizes = {"time": HORIZON, "levels": levels, "pairs": pairs, "labels": labels}
        top, half, foot = induction_factors.flow((start,) * 3, **kind, **sizes).crossings.values()
        widths.loc[attention, objective, strengths] = (foot - top) / half
    return widths


def check(dataset: xr.Dataset) -> list[Finding]:
    """Each factor shortens the drop, whichever of the others are there: on the flow, and in networks."""
    flow = dataset["flow_width"].rename({f"flow_{name}": name for name in FACTORS})
    widths = dataset["drop_width"]
    findings = checks.complete("dropped", "every loss drops", bool(widths.notnull().all()))
    for name, (having, lacking) in FACTORS.items():
        quantity = f"relative width with {having} / with {lacking}"
        ratio = flow.sel({name: having}, drop=True) / flow.sel({name: lacking}, drop=True)
        findings += checks.below(f"flow_{name}", f"{quantity}, on the flow", Estimate(ratio, 0.0), SHORTER)
        pair = widths.reindex({name: [having, lacking]})
        ratio = estimates.geometric_mean(pair.isel({name: 0}, drop=True) / pair.isel({name: 1}, drop=True))
        findings += checks.below(f"networks_{name}", f"{quantity}, in networks", ratio, SHORTER)
    return findings


def figure(dataset: xr.Dataset):
    """The loss over that of guessing against training, a panel for each kind, a line for each network."""
    part = dataset[["loss_over_guessing"]].isel(dim=0, drop=True)
    kinds = itertools.product(*(dataset[name].values for name in FACTORS))
    rows = [
        Panel(None, at=dict(zip(FACTORS, kind, strict=True)), line="loss_over_guessing", ylim=(0.0, 2.1))
        for kind in kinds
    ]
    return panels(part, rows, x="step", hue="seed", line_x="step", columns=2)


claim = Claim(
    title="Three causes of an abrupt fall",
    sentence=(
        "Softmax, cross-entropy and products of weights each shorten the drop in an induction head's loss relative to "
        "its time, with or without the others, on the landscape and in networks."
    ),
    conditions=(
        "N = 4, L = 16; by a tenth or more. Networks of three matrices with a linear readout, each matrix one or a "
        "product of two, by SGD at one rate each, ten seeds, the same start with and without."
    ),
    sources=("Reddy24",),
    axes=(
        Axis("objective", r"\mathcal{L}", "objective"),
        Axis("strengths", "W", "parametrisation of the strengths"),
        *(Axis(f"flow_{name}", "f", f"{name} on the flow") for name in FACTORS),
    ),
    quantities=(
        "label_loss",
        Quantity("loss_over_guessing", r"\mathcal{L}/\mathcal{L}_g", "loss over that of guessing"),
        Quantity("drop_width", "w/T", "relative width of the drop"),
        Quantity("flow_width", "w/T", "relative width of the drop on the flow"),
    ),
    static=("dim",),
    outputs=("step",),
    fixed={"pairs": 4, "label_count": 16, "batch": 64, "prompts": 512, "rate": 0.4, "scale": 0.8},
    sizes={
        "smoke": {"dim": (31,), "attention": ("first order",), "objective": ("cross-entropy",)}
        | {"strengths": ("weights",), "step": (0, 100), "seed": 3},
        "small": {"dim": (31,), **FACTORS, "step": tuple(range(0, 5001, 10)), "seed": Seeds(10, block=5)},
        "medium": {"dim": (31, 63), **FACTORS, "step": tuple(range(0, 10001, 10)), "seed": Seeds(24, block=6)},
    },
    key=1,
    controls={
        "given": Control(
            "both attention patterns are given: there is nothing for softmax to shorten",
            measure={"given": True},
            axes={"attention": FACTORS["attention"], "step": tuple(range(0, 801, 20)), "seed": (0, 1)},
        ),
        "formed_start": Control("the flow begins with all strengths at 3, beyond the plateau", theory={"start": 3.0}),
        "slower": Control(
            "in place of products of weights, weights at half the rate",
            measure={"slower": "strengths"},
            axes={"attention": ("first order",), "objective": ("cross-entropy",)},
        ),
        "slower_objective": Control(
            "in place of the cross-entropy, the squared error at half the rate",
            measure={"slower": "objective"},
            axes={"attention": ("first order",), "strengths": ("products",)},
        ),
    },
)
