r"""Attention to a frozen context, and attention to the query's own tokens as a replacement for it.

The query of a prompt collects :math:`\sum_tp_tv_t` from frozen entities F of the context and unfrozen ones U. The
seminar has three ways to do without F: to leave it out; to count each frozen t with an unfrozen a(t) of a similar
value, whose score becomes a log-sum-exp; to take the largest score of each group in place of that, which modifies the
key of a(t). The last is a change of weights if one key matrix gives all modified keys: it is fitted by least squares to
half of the prompts of a context, and tested on the rest.

Sharing is plausible where tokens are discrete and recur: in the first layer an example (x, y) then has the value of
each of its copies, whatever stands before it. Errors are of what a head writes at the query: root mean squares over
heads, contexts and prompts, over the error of leaving the context out; and *recovered* is the fraction of heads,
contexts and prompts in which half of that error is made up for. At each of them a bound is at least its error.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates

LEFT_OUT, SHARED, WINNER, MATRIX = "left out", "shared values", "clear winner", "one key matrix"
REDUCTIONS = (LEFT_OUT, SHARED, WINNER, MATRIX)
NORMAL, DISCRETE = INPUTS = ("normal", "discrete")
FEW, MANY = 2, 24
LARGE = 0.5  # relative error
SMALL = 0.2  # relative error
MOST = 0.9  # of heads, contexts and prompts
ROUNDING = 1e-9


def check(dataset: xr.Dataset) -> list[Finding]:
    """With few own tokens nothing makes up for half of the context; with many discrete ones sharing does."""
    excess = dataset["bound_excess"].sel(reduction=[LEFT_OUT, SHARED, WINNER]).max()
    findings = checks.complete("bounds", "no error is above its bound, at any prompt", bool(excess < ROUNDING))
    error = dataset["reduction_error"]
    if FEW in dataset["own"]:
        few = dataset.sel(own=[FEW])
        effect = estimates.mean(few["context_effect"])
        findings += checks.above("effect", "error of leaving the context out / what heads write", effect, LARGE)
        left = estimates.mean(few["reduction_error"].sel(reduction=[SHARED, WINNER, MATRIX]))
        findings += checks.above("left", "error / error of leaving the context out", left, LARGE)
    if MANY in dataset["own"]:
        keys = estimates.mean(error.sel(own=[MANY], reduction=[WINNER, MATRIX]))
        findings += checks.above("left", "error / error of leaving the context out", keys, LARGE)
    if MANY in dataset["own"] and DISCRETE in dataset["inputs"]:
        first = dataset.sel(own=MANY, inputs=DISCRETE, layer=1, reduction=SHARED, drop=True)
        shared = estimates.mean(first["reduction_error"])
        findings += checks.below("shared", "error of sharing values of many discrete tokens", shared, SMALL)
        recovered = estimates.mean(first["recovered"])
        findings += checks.above("recovered", "prompts in which half is recovered by sharing", recovered, MOST)
    return findings


def figure(dataset: xr.Dataset):
    """Draw errors of the reductions in both layers, for few and for many tokens of the query's own."""
    part = dataset.isel(dim=0, step=-1, drop=True).sel(reduction=list(REDUCTIONS))
    rows = [
        Panel("reduction_error", at={"layer": layer, "own": own}, ylim=(0.0, 1.2))
        for layer in part["layer"].values.tolist()
        for own in part["own"].values.tolist()
    ]
    return panels(part, rows, x="reduction", hue="inputs", columns=part.sizes["own"])


claim = Claim(
    title="Attention to a frozen context",
    sentence=(
        "At random weights, shared values replace a frozen context in the first layer if own tokens are many and "
        "discrete; with few, or by modified keys, not half is recovered."
    ),
    conditions=(
        "Regression transformers of two layers and two heads, untrained; a context of six examples, two or 24 of the "
        "query's own, whose values may be shared; normal inputs and noisy labels, or four inputs in two dimensions "
        "and exact ones. After 1000 updates of Adam sharing was undecided on another key; bounds were set on a third."
    ),
    sources=("SLT22",),
    axes=(
        Axis("reduction", "r", "attention to the query's own tokens"),
        Axis("inputs", "X", "distribution of inputs"),
        Axis("own", "n", "examples of the query's own", least=1),
    ),
    quantities=(
        Quantity("reduction_error", r"\epsilon_r/\epsilon_0", "relative error"),
        Quantity("reduction_bound", r"B_r/\epsilon_0", "relative bound"),
        Quantity("bound_excess", r"\max(\epsilon_r - B_r)/\epsilon_0", "largest excess of an error over its bound"),
        Quantity("recovered", "q", "fraction of prompts in which half is recovered"),
        Quantity("context_effect", r"\epsilon_0/|\Delta e|", "error of leaving the context out over what heads write"),
        Quantity("frozen_attention", "p_F", "attention on the frozen context"),
    ),
    static=("dim", "inputs", "own"),
    outputs=("step", "layer", "reduction"),
    fixed={"layers": 2, "width": 32, "heads": 2, "batch": 64, "contexts": 8, "queries": 40, "frozen": 6},
    sizes={
        "smoke": {"dim": (2,), "inputs": (DISCRETE,), "own": (FEW,), "step": (0,), "layer": (1, 2)}
        | {"reduction": REDUCTIONS, "seed": 3},
        "small": {"dim": (2,), "inputs": INPUTS, "own": (FEW, MANY), "step": (0,), "layer": (1, 2)}
        | {"reduction": REDUCTIONS, "seed": 24},
    },
    key=461,
    controls={
        "repeated": Control(
            "the context repeats the query's own first example",
            measure={"repeated": True},
            axes={"inputs": (NORMAL,), "own": (FEW,)},
        ),
        "distinct": Control(
            "no token of the many recurs: inputs are normal",
            measure={"distinct": True},
            axes={"inputs": (DISCRETE,), "own": (MANY,)},
        ),
    },
)
