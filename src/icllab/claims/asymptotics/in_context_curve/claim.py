r"""Error against the number of examples, of networks beside the estimators of statistics, and past the trained length.

For tasks :math:`w \sim N(0, C)`, :math:`C_{jj} \propto r^{-j}`, least squares knows nothing of C, ridge of strength
:math:`\rho` its mean variance, the Bayes predictor all of it. A network that errs less than ridge after few examples
has learned C in training. Least squares has no mean error at d - 1 to d + 1 examples: it is compared before that.
"""

import numpy as np
import xarray as xr

from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks
from icllab.lab.estimates import geometric_mean, mean
from icllab.lab.results import fixed_values

ESTIMATORS = ("least squares", "ridge", "Bayes")
TRANSFORMERS = {"no positions": "none", "learned positions": "learned", "rotary positions": "rotary"}
CLAIMED = (*ESTIMATORS, "no positions", "learned positions", "linear attention")
CLOSED = 0.9  # fraction of the way from no example to the Bayes predictor, at least, after the trained length
STARTED = 0.25  # the same of one layer of linear attention
OVER_RIDGE = 2.0  # its error over that of ridge, at least


def check(dataset: xr.Dataset) -> list[Finding]:
    """Of every network: between Bayes and ridge after few examples, how far it gets, and what more examples do."""
    findings = []
    for dim in dataset.dim.values:
        length = round(fixed_values(dataset)["alpha"] * int(dim))
        loss = dataset["loss"].sel(dim=dim).isel(width=-1, step=-1, drop=True)
        findings += [*_learned(loss, length), *_beyond(loss, length)]
    there = set(CLAIMED) <= set(dataset.predictor.values)
    return [*findings, *checks.complete("predictors", "every predictor of the claim is there", there)]


def _learned(loss: xr.DataArray, length: int) -> list[Finding]:
    """Of transformers, better than estimators without the prior and worse than Bayes; and of linear attention."""
    few = np.arange(1, max(int(loss.dim) // 2, 1) + 1)
    seen = loss.position.values[(loss.position.values > 0) & (loss.position.values <= length)]
    own = loss.sel(predictor=[name for name in TRANSFORMERS if name in loss.predictor])
    others = loss.sel(predictor=[name for name in ("ridge", "least squares") if name in loss.predictor])
    ahead = mean((others.rename(predictor="other_predictor") - own).sel(position=few).mean("position"))
    behind = mean((own - loss.sel(predictor="Bayes", drop=True)).sel(position=seen).mean("position"))
    findings = checks.above("few_examples", f"error of an estimator - a network's, 1 to {few[-1]} examples", ahead)
    findings += checks.above("above_bayes", f"error of a network - Bayes, {seen[0]} to {seen[-1]} examples", behind)
    if length in loss.position:
        first, last = loss.sel(position=0, predictor="Bayes", drop=True), loss.sel(position=length)
        way, what = (first - last) / (first - last.sel(predictor="Bayes", drop=True)), "fraction of the way to Bayes"
        findings += checks.above("progress", what, mean(way.sel(predictor=own.predictor)), CLOSED)
        if "linear attention" in loss.predictor:
            linear, ridge = (last.sel(predictor=name, drop=True) for name in ("linear attention", "ridge"))
            started, excess = mean(way.sel(predictor="linear attention", drop=True)), mean(linear / ridge)
            findings += checks.above("linear_progress", f"linear attention's {what}", started, STARTED)
            findings += checks.above("linear_excess", "error of linear attention / ridge's", excess, OVER_RIDGE)
    return findings


def _beyond(loss: xr.DataArray, length: int) -> list[Finding]:
    """After more examples than in training: without positions the error goes on falling; learned ones harm."""
    findings, after = [], loss.position.values[(length in loss.position) & (loss.position.values > length)]
    if after.size and "no positions" in loss.predictor:
        own, what = loss.sel(predictor="no positions"), f"error at {length} examples"
        fall = mean(own.sel(position=length, drop=True) - own.sel(position=after).mean("position"))
        findings += checks.above("falls_beyond", f"{what} - mean of {after[0]:g} to {after[-1]:g}", fall)
    if after.size and "learned positions" in loss.predictor:
        excess = loss.sel(predictor="learned positions") / loss.sel(predictor="Bayes", drop=True)
        beyond = np.exp(xr.apply_ufunc(np.log, excess).sel(position=after).mean("position"))
        growth = geometric_mean(beyond / excess.sel(position=length, drop=True))
        what = f"error / Bayes, geometric mean of {after[0]:g} to {after[-1]:g} examples over that at {length}"
        findings += checks.above("departs_beyond", what, growth, 1.0)
    return findings


def figure(dataset: xr.Dataset):
    """Every predictor's error against the examples seen, at the largest d; the dashed line is the trained length."""
    shown, fixed = dataset.isel(dim=-1, width=-1, step=-1), fixed_values(dataset)
    rows = [Panel("loss", yscale="log", ylim=(0.9 * fixed["rho"], 8.0))]
    return panels(shown, rows, x="position", hue="predictor", vertical=round(fixed["alpha"] * int(shown.dim)))


COMMON = {"dim": (4,), "width": (32,)}
claim = Claim(
    sentence=(
        "A trained transformer uses the anisotropic task prior, beating ridge after few examples; past the trained "
        "length its error keeps falling without positions, and departs from Bayes with learned ones."
    ),
    conditions=(
        "Two layers, d = 4, tasks whose variances fall by a factor 4 from one direction to the next; Adam on prompts "
        "of 12 examples. By then nine tenths of the way to Bayes; linear attention a quarter, at twice ridge's error."
    ),
    sources=("Garg22", "Raventos23", "Lu24"),
    quantities=("loss",),
    static=("dim", "width", "step"),
    outputs=("position",),
    fixed={"alpha": 3.0, "ratio": 4.0, "rho": 0.25, "batch": 64, "rate": 3e-3, "prompts": 2048},
    sizes={
        # Few examples are learned first. Every network costs seconds, and longer contexts take longer training.
        "smoke": {"dim": (3,), "width": (16,), "step": (800,), "alpha": 2 / 3, "batch": 32, "rate": 0.01}
        | {"predictor": ("ridge", "Bayes", "no positions"), "position": (0, 1), "seed": 5},
        "small": COMMON
        | {"step": (1500,), "predictor": CLAIMED, "position": (*range(7), *range(8, 25, 2)), "seed": 10},
        "medium": COMMON
        | {"step": (20000,), "predictor": (*ESTIMATORS, *TRANSFORMERS, "linear attention")}
        | {"position": tuple(range(25)), "seed": Seeds(8, block=1)},
    },
    key=1,
    controls={
        "isotropic": Control("training tasks are isotropic: no prior can be learned", {"prior": "isotropic"}),
        "labels_of_noise": Control("training labels are noise, without a task", {"prior": "noise"}),
        "untrained": Control("the networks make a single step", {"updates": 1}),
    },
)
