r"""Which algorithm do softmax transformers implement, across depth and noise, after a short training?

:func:`~icllab.diagnostics.identification.comparison.identify` measures the fraction :math:`u_k` of the variance of
each network's answers and input gradients that a candidate algorithm leaves unexplained, its parameters fitted to the
network. It names a candidate only if :math:`u_k` is below a tolerance, 1 % or 5 %. At large T the exponential kernel
tends to the linear one and a constant, so kernel ridge regression comes near to ridge regression.

At ``smoke`` networks are not trained: there it is seen that a network as it is drawn is named nothing, and one that
takes steps of descent what it is.
"""

import numpy as np
import xarray as xr

from icllab.experiments import Control, Experiment, Finding, checks, estimates
from icllab.figures.curves import Panel, panels

CANDIDATES = (
    *("1 step", "2 steps", "4 steps", "preconditioned step", "GD++, 2 steps", "ridge", "least squares"),
    *("softmax smoother", "kernel ridge", "mean of labels"),
)
SHOWN = ("1 step", "4 steps", "GD++, 2 steps", "ridge", "softmax smoother", "kernel ridge")  # in the figure
NONE, MANY, UNDECIDED = "none of these", "indistinguishable", "undecided"  # verdicts that name no candidate
STRICT, LOOSE = 0.01, 0.05  # largest fractions unexplained of a candidate that is named
LONG = 1000  # steps of training from which candidates are compared
LITTLE = 2.0  # factor by which a fraction may fall that counts as little


def verdicts(dataset: xr.Dataset, tolerance: float) -> xr.DataArray:
    """The verdict on every network: a candidate's name, or one of three others."""
    among = dataset["among"].sel({"tolerance": tolerance}, drop=True) > 0  # as a keyword it is an argument of sel
    low = dataset["fraction_unexplained_interval"].sel(bound="low", drop=True)
    names = np.asarray([str(name) for name in dataset.candidate.values], object)
    several, refused = among.sum("candidate"), (low > tolerance).all("candidate")
    named = xr.apply_ufunc(lambda one: names[one.argmax(-1)], among, input_core_dims=[["candidate"]])
    without = xr.where(refused, NONE, UNDECIDED).astype(object)
    return xr.where(several == 1, named, xr.where(several > 1, MANY, without))


def check(dataset: xr.Dataset) -> list[Finding]:
    """No candidate is named; ridge is nearer than one step, and nearer in deeper networks; and what else depth does."""
    dataset, findings = dataset.isel(step=-1), []
    left = dataset["fraction_unexplained"].clip(1e-12)
    named = (verdicts(dataset, STRICT) != NONE).sum("seed")
    findings += checks.equal("named", f"networks that are not none of these at {STRICT:g}", named, 0)
    if dataset.step >= LONG:
        apart = left.sel(candidate="1 step", drop=True) / left.sel(candidate="ridge", drop=True)
        what = "fraction unexplained by 1 step / by ridge"
        findings += checks.above("ridge_nearer", what, estimates.geometric_mean(apart), 1.0)
        if dataset.sizes["layers"] > 1:
            findings += _over_depth(left)
    return [*findings, *checks.included("depths", "several depths", dataset.sizes["layers"] > 1)]


def _over_depth(left: xr.DataArray) -> list[Finding]:
    """From the shallowest to the deepest; networks of two depths share no seed, so that their errors add."""
    by_ridge, by_step = (left.sel(candidate=name, drop=True) for name in ("ridge", "1 step"))
    ends = [
        [estimates.geometric_mean(samples.isel(layers=end, drop=True)) for end in (0, -1)]
        for samples in (by_ridge, by_step, by_ridge / by_step)
    ]
    ridge, step, relative = (shallowest / deepest for shallowest, deepest in ends)
    said = f"{left.layers.values[0]} layers / {left.layers.values[-1]} layers"
    return [
        *checks.above("ridge_falls", f"fraction unexplained by ridge, {said}", ridge, 1.0),
        *checks.above("ridge_falls_more", f"fraction unexplained by ridge / by 1 step, {said}", relative, 1.0),
        *checks.below("step_falls_little", f"fraction unexplained by 1 step, {said}", step, LITTLE),
    ]


def figure(dataset: xr.Dataset):
    """Fraction of variance unexplained against depth, one panel for each noise."""
    dataset = dataset.isel(step=-1)
    names = [name for name in SHOWN if name in dataset.candidate]
    shown = dataset[["fraction_unexplained"]].sel(candidate=names)
    shown["fraction_unexplained_line"] = xr.full_like(shown.layers, STRICT, dtype=float)
    drawn = ("fraction_unexplained", "fraction_unexplained_line", "log", (0.008, 1.2))
    rows = [Panel(*drawn, {"rho": float(rho)}) for rho in dataset.rho.values]
    return panels(shown, rows, x="layers", hue="candidate", line_name=f"{100 * STRICT:g} %", xscale="log")


COMMON = {"candidate": CANDIDATES, "tolerance": (STRICT, LOOSE), "bound": ("low", "high")}
experiment = Experiment(
    claim=(
        "Softmax transformers trained for a short time are none of ten algorithms to within 1 %; ridge explains more "
        "of them than one gradient step, and more with depth."
    ),
    conditions=(
        "d = 2, width 16, 1 to 4 blocks, two noise variances, 4000 steps of Adam; what one step leaves unexplained "
        "does not shrink to half from one block to four."
    ),
    sources=("vonOswald23", "Ahn23"),
    quantities=("fraction_unexplained", "accepted", "among"),
    static=("layers", "rho", "step"),
    outputs=("candidate", "tolerance", "bound"),
    fixed={"dim": 2, "width": 16, "batch": 64, "rate": 0.01, "prompts": 2048, "fitting": 512},
    sizes={
        "smoke": COMMON
        | {"layers": (1,), "rho": (0.25,), "step": (0,), "candidate": ("1 step",), "tolerance": (STRICT,), "seed": 2},
        "small": COMMON | {"layers": (1, 2, 4), "rho": (0.05, 0.25), "step": (4000,), "seed": 10},
        "medium": COMMON | {"layers": (1, 2, 4, 6), "rho": (0.05, 0.25, 1.0), "step": (20000,), "seed": 6},
    },
    key=1,
    controls={
        "constructed": Control(
            "the networks take steps of gradient descent, as many as layers", measure={"constructed": True}
        )
    },
)
