r"""Attention to a frozen context, and attention to the query's own tokens that is to stand for it.

An entity of a prompt collects :math:`\sum_tp_tv_t` from frozen entities F of the context and unfrozen ones U. The
seminar has three ways to do without F: to leave it out; to count each frozen t with an unfrozen a(t) of a similar
value, whose score becomes a log-sum-exp; to take the largest score of each group in place of that, which modifies the
key of a(t). The last is a change of weights if one key matrix gives all modified keys: it is fitted by least squares to
half of the prompts of a context, and tested on the rest. Errors are root mean squares over queries, heads and contexts
of what a head writes into the stream, over the error of leaving the context out; a bound is at least its error.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates

LEFT_OUT, SHARED, WINNER, MATRIX = "left out", "shared values", "clear winner", "one key matrix"
REDUCTIONS = (LEFT_OUT, SHARED, WINNER, MATRIX)
LARGE = 0.5
ROUNDING = 1e-12


def check(dataset: xr.Dataset) -> list[Finding]:
    """The context matters, and no reduction makes up for half of it; all errors are within their bounds."""
    error, bound = dataset["reduction_error"], dataset["reduction_bound"]
    effect = estimates.mean(dataset["context_effect"])
    findings = checks.above("effect", "error of leaving the context out / what heads write", effect, LARGE)
    reductions = error.sel(reduction=[name for name in REDUCTIONS if name != LEFT_OUT])
    findings += checks.above("left", "error / error of leaving the context out", estimates.mean(reductions), LARGE)
    beyond = (error - bound).max(["seed", "step", "layer"]).dropna("reduction")
    return findings + checks.complete("bounds", "no error is above its bound", bool((beyond < ROUNDING).all()))


def figure(dataset: xr.Dataset):
    """Errors and bounds of every reduction in each layer, before and after training."""
    part = dataset.isel(dim=0, length=0, drop=True).sel(reduction=list(REDUCTIONS))
    steps = [f"{step} updates" for step in part.step.values]
    part = part.assign_coords(step=steps)
    limits_of = {"reduction_error": (0.0, 1.1), "reduction_bound": (0.0, 2.0)}
    rows = [Panel(name, at={"layer": layer}, ylim=limits) for name, limits in limits_of.items() for layer in (1, 2)]
    return panels(part, rows, x="reduction", hue="step", columns=2)


claim = Claim(
    title="Attention to a frozen context",
    sentence=(
        "Attention to a frozen context is not attention to the query's own tokens: neither shared values, winning keys "
        "nor one key matrix makes up for half of the context's effect."
    ),
    conditions=(
        "Regression transformers of two layers and two heads, at random weights and trained by Adam; two examples and "
        "a query after a context. Frozen values are counted with the nearest of their own, and the key matrix is "
        "fitted to the winning keys; root mean squares of what heads write, in every layer."
    ),
    sources=("SLT22",),
    axes=(Axis("reduction", "r", "attention to the query's own tokens"),),
    quantities=(
        Quantity("reduction_error", r"\epsilon_r/\epsilon_0", "relative error"),
        Quantity("reduction_bound", r"B_r/\epsilon_0", "relative bound"),
        Quantity("context_effect", r"\epsilon_0/|\Delta e|", "error of leaving the context out over what heads write"),
        Quantity("frozen_attention", "p_F", "attention on the frozen context"),
    ),
    static=("dim", "length"),
    outputs=("step", "layer", "reduction"),
    fixed={"layers": 2, "width": 32, "heads": 2, "batch": 64, "contexts": 8, "queries": 40},
    sizes={
        "smoke": {"dim": (4,), "length": (8,), "step": (0,), "layer": (1, 2), "reduction": REDUCTIONS, "seed": 3},
        "small": {"dim": (4,), "length": (8,), "step": (0, 2000), "layer": (1, 2), "reduction": REDUCTIONS, "seed": 10},
        "medium": {"dim": (4, 8), "length": (8, 16), "step": (0, 2000, 20_000), "layer": (1, 2)}
        | {"reduction": REDUCTIONS, "seed": Seeds(12, block=3)},
    },
    key=1,
    controls={
        "repeated": Control("the context repeats an example of the query's own", measure={"repeated": True}),
    },
)
