"""The algorithm of trained softmax transformers, compared with linear attention of known algorithm.

:func:`~icllab.diagnostics.identification.comparison.identify` measures the fraction :math:`u_k` of the variance of
each network's answers and input gradients that a candidate algorithm leaves unexplained, its parameters fitted to the
network. It names a candidate only if :math:`u_k` is below 1 %. A verdict "none" on a transformer is informative only if
a trained network that is one of the candidates is named: linear attention that cannot change its inputs takes as many
steps of gradient descent as it has layers, and two layers of it have about the error of one block.

All are judged twice, on prompts like those of training and on inputs of twice the size, with the same fitted
parameters.
"""

import numpy as np
import xarray as xr

from icllab.core.axes import Axis
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, Subject, checks, estimates

SOFTMAX, LINEAR = "transformer", "linear attention"
DESCENT = ("1 step", "2 steps", "4 steps", "preconditioned step", "GD++, 2 steps")
CANDIDATES = (*DESCENT, "ridge", "least squares", "softmax smoother", "kernel ridge", "mean of labels")
SHOWN = ("1 step", "2 steps", "4 steps", "ridge", "softmax smoother", "kernel ridge")  # in the figure
KNOWN = {1: ("1 step", DESCENT), 2: ("2 steps", ("2 steps", "4 steps", "GD++, 2 steps"))}
"""Layers of linear attention -> its candidate, and the candidates that contain it."""
NONE, MANY, UNDECIDED = "none of these", "indistinguishable", "undecided"  # verdicts that name no candidate
STRICT = 0.01  # largest fraction unexplained of a candidate that is named
LEARNED = 1.25  # largest error of the deepest transformers over the least possible
ALIKE = 0.15  # largest log ratio of matched errors


def turned(dataset: xr.Dataset) -> xr.Dataset:
    """Swap networks of the fewest and the most layers, and the largest inputs with the inputs of training."""
    axes = ("layers", "input_scale")
    return dataset.assign_coords({axis: dataset[axis].values[::-1] for axis in axes}).sortby(list(axes))


def verdicts(dataset: xr.Dataset) -> xr.DataArray:
    """Verdict for every network: a candidate's name, or one of three other outcomes."""
    among = dataset["among"] > 0
    low = dataset["fraction_unexplained_interval"].sel(bound="low", drop=True)
    names = np.asarray([str(name) for name in dataset.candidate.values], object)
    count, rejection = among.sum("candidate"), (low > STRICT).all("candidate")
    best = xr.apply_ufunc(lambda flags: names[flags.argmax(-1)], among, input_core_dims=[["candidate"]])
    without = xr.where(rejection, NONE, UNDECIDED).astype(object)
    return xr.where(count == 1, best, xr.where(count > 1, MANY, without))


def recognise(dataset: xr.Dataset, layers: int) -> xr.DataArray:
    """Does linear attention of ``layers`` layers match its steps, and no candidate that does not contain them?"""
    name, containing = KNOWN[layers]
    accepted = dataset["accepted"] > 0
    foreign = [str(candidate) for candidate in dataset.candidate.values if candidate not in containing]
    return accepted.sel(candidate=name, drop=True) & ~accepted.sel(candidate=foreign).any("candidate")


def check(dataset: xr.Dataset) -> list[Finding]:
    """No candidate matches a transformer, near or far; linear attention of equal error matches its steps."""
    last = dataset.isel(step=-1, drop=True)
    kinds = [str(kind) for kind in last.network.values]
    findings: list[Finding] = []
    if SOFTMAX in kinds:
        findings += _of_transformers(last.sel(network=SOFTMAX, drop=True))
    if LINEAR in kinds:
        findings += _of_linear(last.sel(network=LINEAR, drop=True))
    depths = last.layers.values.tolist()
    if len(kinds) > 1 and {1, 2} <= set(depths):
        loss = last["loss_ratio"]
        block, linear = (
            estimates.geometric_mean(loss.sel(network=kind, layers=layers, drop=True))
            for kind, layers in ((SOFTMAX, 1), (LINEAR, 2))
        )
        quantity = "error of two layers of linear attention / of one block"
        findings += checks.near("matched", quantity, linear / block, 1.0, margin=ALIKE)
    complete = len(kinds) > 1 and len(depths) > 1
    return [*findings, *checks.complete("networks", "both kinds of networks, in several depths", complete)]


def check_network(dataset: xr.Dataset) -> list[Finding]:
    """No candidate matches the network, near or far; linear attention trained on its task matches one step."""
    last = dataset.isel(step=-1, drop=True)
    network, linear = (last.sel(network=kind, drop=True) for kind in (SOFTMAX, LINEAR))
    count = (verdicts(network) != NONE).sum("seed")
    quantity = f"draws on which the network has a verdict other than none at {STRICT:g}"
    return [*checks.equal("named", quantity, count, 0), *_further_off(network), *_of_linear(linear)]


def _further_off(dataset: xr.Dataset) -> list[Finding]:
    left = dataset["fraction_unexplained"].clip(1e-12)
    nearest = left.min("candidate")
    far = nearest.isel(input_scale=-1, drop=True) / nearest.isel(input_scale=0, drop=True)
    quantity = "fraction unexplained by the nearest candidate, large inputs / near training"
    return checks.above("further_off", quantity, estimates.geometric_mean(far), 1.0)


def _of_transformers(dataset: xr.Dataset) -> list[Finding]:
    left = dataset["fraction_unexplained"].clip(1e-12)
    count = (verdicts(dataset) != NONE).sum("seed")
    findings = checks.equal("named", f"transformers with a verdict other than none at {STRICT:g}", count, 0)
    if dataset.sizes["layers"] > 1:
        deepest = estimates.geometric_mean(dataset["loss_ratio"].isel(layers=-1))
        findings += checks.below("learned", "error of the deepest transformers / the least", deepest, LEARNED)
    if dataset.sizes["input_scale"] > 1 and "ridge" in dataset.candidate:
        findings += _further_off(dataset)
        near = left.isel(input_scale=0, drop=True)
        by_ridge, by_step = (near.sel(candidate=name, drop=True) for name in ("ridge", "1 step"))
        quantity = "fraction unexplained by 1 step / by ridge"
        findings += checks.above("ridge_nearer", quantity, estimates.geometric_mean(by_step / by_ridge), 1.0)
        if dataset.sizes["layers"] > 1:
            first, deep = (estimates.geometric_mean(by_ridge.isel(layers=end, drop=True)) for end in (0, -1))
            quantity = f"fraction unexplained by ridge, {left.layers.values[0]} layers / {left.layers.values[-1]}"
            findings += checks.above("ridge_falls", quantity, first / deep, 1.0)
    return findings


def _of_linear(dataset: xr.Dataset) -> list[Finding]:
    findings: list[Finding] = []
    for layers in (depth for depth in KNOWN if depth in dataset.layers):
        count = (~recognise(dataset.sel(layers=layers, drop=True), layers)).sum("seed")
        quantity = "networks of linear attention whose steps are not named"
        findings += checks.equal("recognised", quantity, count, 0, at={"layers": layers})
    return findings


def figure(dataset: xr.Dataset):
    """Draw the fraction of variance unexplained against depth, one panel for each network and size of inputs."""
    part = dataset.isel(step=-1, rho=-1, drop=True)
    names = [name for name in SHOWN if name in part.candidate]
    table = part[["fraction_unexplained"]].sel(candidate=names)
    table["fraction_unexplained_line"] = xr.full_like(table.layers, STRICT, dtype=float)
    look = ("fraction_unexplained", "fraction_unexplained_line", "log", (1e-5, 30.0))
    rows = [
        Panel(*look, {"network": str(kind), "input_scale": float(scale)})
        for kind in part.network.values
        for scale in part.input_scale.values
    ]
    return panels(table, rows, x="layers", hue="candidate", line_name=f"{100 * STRICT:g} %")


OUTPUTS = {"bound": ("low", "high"), "input_scale": (1.0, 2.0)}
COMMON = OUTPUTS | {"candidate": CANDIDATES, "network": (SOFTMAX, LINEAR)}
claim = Claim(
    title="No known algorithm fits softmax",
    sentence=(
        "The network is none of ten algorithms to within 1 %, on doubled inputs still less; linear attention "
        "trained on the same task is named the steps it takes."
    ),
    conditions=(
        "d = 2, four examples, noise of variance 0.25, 4000 steps of Adam; 1 to 4 blocks of width 16, one and two "
        "layers of linear attention, two of which have the error of one block. Ridge regression explains transformers "
        "better than one step, and more with depth."
    ),
    sources=("vonOswald23", "Ahn23"),
    axes=(Axis("network", "f", "kind of network"),),
    quantities=("fraction_unexplained", "accepted", "among", "loss_ratio"),
    static=("network", "layers", "rho", "step"),
    outputs=("candidate", "bound", "input_scale"),
    fixed={"dim": 2, "width": 16, "batch": 64, "rate": 0.01, "std": 0.3, "clip": 1.0, "prompts": 2048, "fitting": 512},
    sizes={
        "smoke": OUTPUTS
        | {"network": (LINEAR,), "candidate": ("1 step", "ridge"), "layers": (1,), "rho": (0.25,), "step": (600,)}
        | {"seed": 2},
        "small": COMMON | {"layers": (1, 2, 4), "rho": (0.25,), "step": (4000,), "seed": 10},
        "medium": COMMON | {"layers": (1, 2, 4, 6), "rho": (0.05, 0.25, 1.0), "step": (20000,), "seed": 10},
    },
    key=2,
    subject=Subject(
        "regression",
        "softmax transformers of one to four blocks",
        axes={"network": (SOFTMAX, LINEAR), "layers": (1,), "rho": (0.25,)},
        controls=("constructed", "turned"),
        check=check_network,
    ),
    controls={
        "untrained": Control(
            "the networks are left as they start", measure={"learn": False}, axes={"seed": (0, 1, 2, 3)}
        ),
        "constructed": Control(
            "the transformers take steps of gradient descent, as many as blocks",
            measure={"constructed": True},
            axes={"network": (SOFTMAX,)},
        ),
        "turned": Control("shallow networks on large inputs are deep ones on those of training", theory=turned),
    },
)
