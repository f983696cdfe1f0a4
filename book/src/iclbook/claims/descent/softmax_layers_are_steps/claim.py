r"""Softmax attention that takes the steps of two algorithms, with the errors that are stated for them.

A layer of softmax attention is one step of descent on the exponential loss, divided by the loss. Its classifier tends
to the largest margin :math:`\gamma`, with a relative gap of at most :math:`(\ln n + \frac12)/\eta\gamma^2L`. A layer
that is trained to imitate one such step is applied repeatedly, to other prompts. With ReLU layers of
:math:`2m + 3` units, blocks take the steps of Richardson's iteration for kernel ridge regression. Its error falls at
least at the rate of the slowest direction, down to an error of order :math:`m^{-2}` that the ReLU layers leave.
"""

import numpy as np
import xarray as xr

from iclbook.claims.descent import _softmax_steps
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds, tabulated
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks, estimates
from icllab.lab.results import fixed_values

ROUNDING = 1e-9  # relative distance of equal classifiers
IMITATED = 1e-3  # relative distance of the classifiers of a trained layer
REPEATED = 16  # times that a trained layer is applied
LATE = 1024  # layers from which the power of the gap is measured
POWER, RATE = 0.15, 0.3  # margins of a power, and of a rate over the rate of the slowest direction
LINEAR = 1.25  # power of the number of examples; the width that is stated has 1


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Bounds of the gap in the margin and of the distance from kernel ridge regression, and lines of their powers."""
    fixed, layers, pieces = fixed_values(dataset), dataset["layers"], dataset["pieces"]

    def bound(ridge, length, layers, pieces):
        size = {"examples": int(length), "ridge": ridge, "size": fixed["size"]}
        return {"ridge_error_theory": _softmax_steps.ridge_bound(**size, layers=int(layers), pieces=int(pieces))}

    axes = {name: dataset[name].values.tolist() for name in ("ridge", "length", "layers", "pieces")}
    lines = {
        "margin_scaled_theory": np.log(fixed["examples"]) + 0.5,
        "margin_gap_line": dataset["margin_gap"].mean("seed").isel(layers=-1, drop=True) * layers[-1] / layers,
        "dense_error_line": dataset["dense_error"].mean("seed").isel(pieces=-1, drop=True) * (pieces[-1] / pieces) ** 2,
    }
    bounds = dataset.assign(tabulated(bound, **axes)).assign(lines)
    measured = dataset["ridge_error"].notnull().any("seed")
    return bounds.assign(ridge_error_theory=bounds["ridge_error_theory"].where(measured))


def power(values: xr.DataArray, along: str) -> xr.DataArray:
    """Slope of the logarithm of positive values against the logarithm of an axis."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithms = xr.DataArray(np.log(values)).assign_coords({along: np.log(values[along])})
    return logarithms.polyfit(along, 1)["polyfit_coefficients"].sel(degree=1, drop=True)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Steps are exact or imitated, and errors fall in depth and width as stated."""
    late, widest = dataset.sel(layers=dataset.layers >= LATE), dataset.isel(pieces=-1)
    step, scaled = (Estimate(dataset[name].max(), 0.0) for name in ("step_distance", "margin_scaled"))
    imitated = dataset["trained_distance"].sel(layers=REPEATED, drop=True)
    over = Estimate((dataset["ridge_error"] / dataset["ridge_error_theory"]).max(), 0.0)
    rate, width = widest["rate_ratio"], power(dataset["dense_error"], "pieces").mean(("ridge", "length"))
    findings = [
        *checks.below("steps", "largest relative distance from normalised descent", step, ROUNDING),
        *checks.below("margin", "largest L (gap in the margin)", scaled, dataset["margin_scaled_theory"]),
        *checks.below("imitated", "distance of a trained layer", estimates.geometric_mean(imitated), IMITATED),
        *checks.below("ridge", "largest distance from kernel ridge regression / bound", over, 1.0),
        *checks.near("rate", "rate / that of the slowest direction", estimates.mean(rate), 1.0, margin=RATE),
        *checks.near("width", "power of m in the error of ReLU layers", estimates.mean(width), -2.0, margin=POWER),
    ]
    deep, several = late.sizes["layers"] > 1, dataset.sizes["length"] > 1
    if deep:
        depth = estimates.mean(power(late["margin_gap"], "layers"))
        findings += checks.near("depth", "power of L in the gap in the margin", depth, -1.0, margin=POWER)
    if several:
        growth = estimates.mean(power(widest["dense_error"], "length").mean("ridge"))
        findings += checks.below("examples", "power of n in the error of ReLU layers", growth, LINEAR)
    findings += checks.complete("axes", f"two lengths, and two depths from {LATE} on", deep and several)
    inside = bool((dataset["product_size"] < 1).all())
    return [*findings, *checks.complete("products", "products of the iteration within their bound", inside)]


def figure(dataset: xr.Dataset):
    """Draw the gap in the margin, the distance from ridge regression by depth, and the error by width."""
    part = dataset.isel(length=-1)
    rows = [
        Panel("margin_gap", "margin_gap_line", "log", x="layers"),
        Panel("ridge_error", "ridge_error_theory", "log", at={"ridge": float(part.ridge[0])}, x="layers", hue="pieces"),
        Panel("dense_error", "dense_error_line", "log", x="pieces", hue="ridge"),
    ]
    return panels(part, rows, x="layers", line_name="stated", xscale="log", columns=3)


KERNEL = {"ridge": (1.0, 4.0), "length": (8, 32), "pieces": (16, 64, 256)}
DEPTHS = tuple(4**i for i in range(7))
OUTPUTS = {"layers": DEPTHS, **KERNEL}
FEW = {"seed": tuple(range(4))}
claim = Claim(
    title="Softmax layers as steps",
    sentence=(
        "Softmax layers, constructed or trained on single steps, take normalised descent steps for classification; "
        "with ReLU layers, Richardson steps for kernel ridge regression; errors fall as derived."
    ),
    conditions=(
        "Separable signs of 15 examples on the sphere, d = 5; a Gaussian kernel on 8 and 32 examples in three "
        "dimensions, ridges 1 and 4; constructed, except for the layer that is trained on single steps of descent and "
        "repeated 16 times, on 30 inputs of unequal variances. Powers of depth (from 1024 steps on) and width within "
        "0.15, that of n below 1.25; the rate within 0.3 of the slowest direction's, which it reaches late. The "
        "papers' weights were not read. The margins and the 16 repetitions were chosen on other keys."
    ),
    sources=("ZhangCao26", "Yan26"),
    axes=(Axis("pieces", "m", "pieces of each square", least=1),),
    quantities=(
        Quantity("step_distance", r"\delta", "relative distance from the classifier of normalised descent"),
        Quantity("trained_distance", r"\delta_t", "relative distance of a trained layer, repeated"),
        Quantity("margin_gap", r"1 - m/\gamma", "gap in the margin"),
        Quantity("margin_scaled", r"\eta\gamma^2L(1 - m/\gamma)", "largest scaled gap in the margin"),
        Quantity("ridge_error", r"|\hat y - \hat y_\infty|", "largest distance from kernel ridge regression"),
        Quantity("dense_error", r"\epsilon_m", "error of ReLU layers"),
        Quantity("rate_ratio", r"r/r_1", "rate of the error over that of the slowest direction"),
        Quantity("slowest", r"\rho", "factor of the slowest direction in a step"),
        Quantity("product_size", "B'/B", "largest product of the iteration over its bound"),
    ),
    static=(),
    outputs=("layers", "ridge", "length", "pieces"),
    fixed={"dim": 5, "examples": 15, "rate": 1.0, "inputs": 3, "temperature": 2.0, "size": 1.2, "prompts": 12}
    | {"blocks": 256, "repeated": 64, "updates": 6000, "batch": 32, "learning_rate": 0.02},
    sizes={
        "smoke": {"layers": (1, 16), "ridge": (4.0,), "length": (8,), "pieces": (16, 64), "seed": 2}
        | {"prompts": 2, "updates": 20, "batch": 4},
        "small": OUTPUTS | {"seed": 12},
        "medium": OUTPUTS | {"seed": Seeds(32, block=4)},
    },
    precision="float64",
    key=30,
    theory=theory,
    controls={
        "plain": Control(
            "the weights of the examples are not divided by their sum",
            measure={"plain": True, "learn": False},
            axes=FEW | {"length": (8,), "ridge": (4.0,), "pieces": (16, 64)},
        ),
        "exchanged": Control(
            "keys and queries are exchanged",
            measure={"exchanged": True, "learn": False},
            axes=FEW | {"length": (8,), "pieces": (16, 64)},
        ),
        "narrow": Control("ReLU layers keep the least width", measure={"narrow": True, "learn": False}, axes=FEW),
        "grows": Control(
            "ReLU layers are built for products that grow with the square of the examples",
            measure={"grows": True, "learn": False},
            axes=FEW,
        ),
        "warmer": Control(
            "the attention has a higher temperature than the kernel",
            measure={"warmer": 1.3, "learn": False},
            axes=FEW | {"layers": DEPTHS[:5]},
        ),
        "untrained": Control(
            "the layer that is repeated is left as it starts",
            measure={"learn": False},
            axes=FEW | {"layers": DEPTHS[:5], "length": (8,), "pieces": (16, 64)},
        ),
    },
)
