r"""What makes the cliff: the exponentials of attention, that of the cross-entropy, or products of weights?

Each is there or not, in eight combinations: softmax or attention of first order in its scores, in both layers;
cross-entropy or squared error; strengths that are products of two weights or weights themselves. The same eight are
taken on the landscape, by gradient flow from strengths of 0.01, and in networks, whose strengths are matrices: products
of two or, from the very same matrices at the start, one.

The loss is timed over that of guessing among the labels of the context. The *relative width* of its drop is the time
from 0.9 to 0.25 of that over the time of 0.5. It does not change when all rates are made smaller. Two objectives do not
fall alike where attention is the same, so what they do is timed by attention: by the share that the right label has of
the attention to labels, on the scale :math:`u = (s - 1/N)/(1 - 1/N)`. The relative width of its rise is the time from u
= 0.1 to 0.5 over the time of 0.5.
"""

import functools
import itertools

import numpy as np
import xarray as xr

from iclbook.claims.induction import _transitions
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks, estimates, intervals
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
RISE = (0.1, 0.5)  # of the way from even attention among labels to that to the right one
MOST = 1 / 2  # of the networks
START, HORIZON = 0.01, 1000.0  # of the flow


def theory(dataset: xr.Dataset, start: float = START) -> xr.Dataset:
    """The relative widths of the flow from a start of all strengths, for all eight, and those of the networks."""
    constants = fixed_values(dataset)
    drops, rises = _flow_widths(constants["pairs"], constants["label_count"], start)
    guess = [
        induction_factors.guessing_loss(pairs=constants["pairs"], objective=str(o)) for o in dataset.objective.values
    ]
    over = dataset["label_loss"] / xr.DataArray(guess, dims="objective")
    network_widths = _transitions.risen(over, plateau=1.0, end=0.0, edges=EDGES)["relative_width"]
    flow = {f"flow_{name}": list(kinds) for name, kinds in FACTORS.items()}
    at = {name: dataset[name] for name in FACTORS}
    return dataset.assign(
        loss_over_guessing=over.transpose(*dataset["label_loss"].dims),
        drop_width=network_widths,
        drop_width_theory=drops.sel(at),
        rise_width=rise_widths(dataset["right_share"], 1 / constants["pairs"]),
        rise_width_theory=rises.sel(at),
        flow_width=(tuple(flow), drops.values),
        flow_rise_width=(tuple(flow), rises.values),
    ).assign_coords(flow)


def rise_widths(shares: xr.DataArray, even: float) -> xr.DataArray:
    """Time of the rise of a share of attention over the time at which it ends; NaN where it does not end."""
    first, last = (
        _transitions.risen(shares, plateau=even, end=1.0, level=level, edges=(level / 2, 0.9))["transition_time"]
        for level in RISE
    )
    return (last - first) / last.where(last > 0)


@functools.cache
def _flow_widths(pairs: int, labels: int, start: float) -> tuple[xr.DataArray, xr.DataArray]:
    """The relative widths of drop and rise on the flow, of all eight kinds."""
    coords = {name: list(kinds) for name, kinds in FACTORS.items()}
    drops, rises = (xr.DataArray(np.empty((2, 2, 2)), coords, list(FACTORS)) for _ in range(2))
    levels = (1 - EDGES[0], 0.5, 1 - EDGES[1])
    for attention, objective, strengths in itertools.product(*FACTORS.values()):
        kind = {"attention": attention, "objective": objective, "factors": 1 + (strengths == "products")}
        sizes = {"time": HORIZON, "levels": levels, "pairs": pairs, "labels": labels}
        flow = induction_factors.flow((start,) * 3, **kind, **sizes)
        top, half, foot = flow.crossings.values()
        drops.loc[attention, objective, strengths] = (foot - top) / half
        share = induction_factors.right_share(*flow.strengths.T[:2], pairs=pairs, attention=attention)
        curve = xr.DataArray(np.asarray(share)[None], dims=("seed", "step"), coords={"step": flow.time})
        rises.loc[attention, objective, strengths] = float(rise_widths(curve, 1 / pairs)[0])
    return drops, rises


def check(dataset: xr.Dataset) -> list[Finding]:
    """Each factor shortens the drop, or of weights the rise of attention, on the flow and in networks."""
    dropping = intervals.fraction(dataset["drop_width"].notnull())
    findings = checks.complete("dropping", "most losses of every kind drop", bool((dropping.low > MOST).all()))
    for name, (having, lacking) in FACTORS.items():
        timed = "rise" if name == "objective" else "drop"
        flow = dataset["flow_rise_width" if timed == "rise" else "flow_width"]
        flow = flow.rename({f"flow_{factor}": factor for factor in FACTORS})
        quantity = f"relative width of the {timed} with {having} / with {lacking}"
        ratio, pairs = (
            part.sel({name: having}, drop=True) / part.sel({name: lacking}, drop=True)
            for part in (flow, dataset[f"{timed}_width"].reindex({name: [having, lacking]}))
        )
        if timed == "rise":  # of products it depends on the start
            ratio, pairs = (part.sel(strengths=part.strengths == "weights") for part in (ratio, pairs))
            pairs = pairs.sel(attention=pairs.attention == "softmax")  # that of first order forms in no network
            formed = bool(pairs.notnull().any()) if pairs.size else False
            findings += checks.complete("forming", "attention forms in some networks", formed)
        findings += checks.below(f"flow_{name}", f"{quantity}, on the flow", Estimate(ratio, 0.0), SHORTER)
        for part in _parts(pairs) if name == "attention" else [pairs]:
            networks = estimates.geometric_mean(part)
            findings += checks.below(f"networks_{name}", f"{quantity}, in networks", networks, SHORTER)
    return findings


def _parts(pairs: xr.DataArray) -> list[xr.DataArray]:
    """All but the exception of the sentence, products with squared error."""
    weights, entropy = (pairs.strengths == "weights").values, (pairs.objective == "cross-entropy").values
    parts = [pairs.isel(strengths=weights), pairs.isel(strengths=~weights, objective=entropy)]
    return [part for part in parts if part.size]


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
        "Products of weights shorten an induction head's drop relative to its time; so does softmax, unless products "
        "meet squared error; without products, cross-entropy shortens the forming of softmax attention."
    ),
    conditions=(
        "N = 4, L = 16; by a tenth or more, on the landscape and in networks. Networks of three matrices with a "
        "linear readout, each matrix one or a product of two, by SGD at one rate each, twelve seeds or more, the same"
        " start with and without. Timed by losses, two objectives were compared by two yardsticks. The exception was "
        "seen on another key, where attention of first order formed in no network."
    ),
    sources=("Reddy24",),
    axes=(
        Axis("objective", r"\mathcal{L}", "objective"),
        Axis("strengths", "W", "parametrisation of the strengths"),
        *(Axis(f"flow_{name}", "f", f"{name} on the flow") for name in FACTORS),
    ),
    quantities=(
        "label_loss",
        Quantity("loss_over_guessing", r"\mathcal{L}/\mathcal{L}_g", "loss relative to guessing"),
        Quantity("drop_width", "w/T", "relative width of the drop"),
        Quantity("flow_width", "w/T", "relative width of the drop on the flow"),
        Quantity("right_share", "s", "share of the attention to labels that the right one has"),
        Quantity("rise_width", "w/T", "relative width of the rise of attention"),
        Quantity("flow_rise_width", "w/T", "relative width of the rise of attention on the flow"),
    ),
    static=("dim",),
    outputs=("step",),
    fixed={"pairs": 4, "label_count": 16, "batch": 64, "prompts": 512, "rate": 0.4, "scale": 0.8},
    sizes={
        "smoke": {"dim": (31,), "attention": ("first order",), "objective": ("cross-entropy",)}
        | {"strengths": ("weights",), "step": (0, 100), "seed": 3},
        "small": {"dim": (31,), **FACTORS, "step": tuple(range(0, 5001, 10)), "seed": Seeds(12, block=4)},
        "medium": {"dim": (31, 63), **FACTORS, "step": tuple(range(0, 10001, 10))}
        | {"seed": Seeds(24, block=6, first=12)},
    },
    key=402,
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
            axes={"attention": ("first order",), "objective": ("cross-entropy",), "seed": tuple(range(6))},
        ),
        "slower_objective": Control(
            "in place of the cross-entropy, the squared error at half the rate",
            measure={"slower": "objective"},
            axes={"attention": ("softmax",), "strengths": ("weights",), "seed": tuple(range(6))},
        ),
    },
)
