r"""The same regression in context by attention and by networks without it, at equal numbers of parameters.

Every network T learns from the same fresh prompts and is as wide as a number of parameters allows. Labels have noise of
variance 1/4: ridge of that strength is the best predictor, and the error of T exceeds the least by
:math:`E\,(T_i - \text{ridge}_i)^2 = E\,(T_i - y_i)^2 - E\,(\text{ridge}_i - y_i)^2`. The left side has the smaller
variance and is measured. Smaller differences are judged at ``medium``.
"""

import math

import numpy as np
import xarray as xr

from iclbook.claims.asymptotics._statistics import best_for_others
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks
from icllab.lab.estimates import geometric_mean, mean

BLOCKS = {  # layers and heads
    "attention 1 layer": (1, 2),
    "attention 2 layers": (2, 2),
    "attention 4 layers": (4, 2),
    "attention 1 head": (2, 1),
    "attention 4 heads": (2, 4),
}
WITHOUT = ("MLP", "recurrent", "DeepSets")
REFERENCES = ("no examples", "least squares")  # predictors without parameters
STANDARD = "attention 2 layers"
SETS = [STANDARD, "DeepSets"]  # equivariant under permutations of the examples
LONG = 3000  # steps from which other differences are judged: before, seeds of one network differ as much
LEARNED = 0.5  # fraction of the way from no examples to ridge, at least
USED = 0.75  # fraction of the parameters allowed that a network has, at least


def at_best_rate(excess: xr.DataArray) -> xr.DataArray:
    """Excess of each seed at the last position, at the learning rate that is best for the other seeds."""
    last = excess.isel(position=-1, drop=True).transpose(..., "rate", "seed")
    values = np.where(np.isfinite(last.values), last.values, np.inf)
    best = np.take_along_axis(values, best_for_others(-values)[..., None, :], axis=-2)[..., 0, :]
    present = ~np.isnan(last.values).all(axis=-2)
    return last.isel(rate=0, drop=True).copy(data=np.where(present, best, np.nan))


def check(dataset: xr.Dataset) -> list[Finding]:
    """Attention and DeepSets compared with the MLP; after longer training, the other differences."""
    excess = at_best_rate(dataset["excess"].isel(step=-1, drop=True))
    excess = excess.reindex(predictor=[*BLOCKS, *WITHOUT, *REFERENCES])
    progress = mean(1 - excess.sel(predictor=SETS) / excess.sel(predictor="no examples", drop=True))
    findings = checks.above("learned", "fraction of the way from no examples to ridge", progress, LEARNED)
    findings += [*_ratios(excess, "MLP", SETS), *_ratios(excess, "attention 1 layer", ["attention 4 layers"])]
    if dataset.step[-1] >= LONG:
        for name in ("attention 1 layer", "recurrent", "DeepSets"):
            findings += _ratios(excess, name, [STANDARD])
        if excess.sizes["parameters"] > 1:
            smallest, largest = (excess.sel(predictor=list(BLOCKS)).isel(parameters=end, drop=True) for end in (0, -1))
            fall = geometric_mean(smallest / largest)
            findings += checks.above("larger", "excess error with the fewest / most parameters", fall, 1.0)
    findings = [finding for finding in findings if not math.isnan(finding.measured)]  # NaN: a cell not asked for
    fraction = dataset["parameter_count"] / dataset["parameters"]
    enough = float(fraction.where(fraction > 0).min()) > USED
    used = checks.complete("parameters_used", f"networks have {USED:g} of the parameters allowed, or more", enough)
    complete = {*SETS, "MLP", "no examples"} <= set(dataset.predictor.values)
    return [*findings, *used, *checks.complete("predictors", "every predictor of the claim", complete)]


def _ratios(excess: xr.DataArray, worse: str, better: list[str]) -> list[Finding]:
    """Is the excess error of one network larger than the errors of the others?"""
    ratio = geometric_mean(excess.sel(predictor=worse, drop=True) / excess.sel(predictor=better))
    name = f"{worse} worse".lower().replace(" ", "_")
    return checks.above(name, f"excess error of {worse} / of the other", ratio, 1.0)


def figure(dataset: xr.Dataset):
    """Draw the excess error after the whole prompt against the number of parameters."""
    last = at_best_rate(dataset["excess"].isel(dim=-1, step=-1))
    names = [name for name in (*BLOCKS, *WITHOUT) if name in last.predictor]
    level = last.reindex(predictor=["least squares"]).mean()
    line = xr.full_like(last.parameters, float(level), dtype=float)
    part = xr.Dataset({"excess": last.sel(predictor=names), "excess_line": line}, attrs=dataset.attrs)
    rows = [Panel("excess", "excess_line" if np.isfinite(level) else None, "log")]
    return panels(part, rows, x="parameters", hue="predictor", line_name="least squares", xscale="log")


COMMON = {"dim": (4,), "rate": (3e-3, 1e-2, 3e-2), "position": tuple(range(9)), "seed": 10}
claim = Claim(
    title="Attention and DeepSets beat an MLP",
    sentence=(
        "At equal parameters and prompts, two layers of attention and DeepSets go more than half the way to ridge, and "
        "farther than an MLP on the whole prompt."
    ),
    conditions=(
        "d = 4, 8 examples, 2048 to 32768 parameters; Adam on the same fresh prompts in 1500 or 3000 steps, the rate "
        "chosen by the other seeds. The way is the excess error over ridge's, from that without examples."
    ),
    sources=("Garg22", "Zaheer17"),
    quantities=("excess", "parameter_count"),
    static=("dim", "predictor", "parameters", "step"),
    outputs=("position",),
    fixed={"alpha": 2.0, "batch": 64, "prompts": 2048},
    sizes={
        "smoke": {"dim": (1,), "predictor": (STANDARD, "MLP", "no examples"), "parameters": (2048,), "alpha": 8.0}
        | {"step": (200,), "rate": (1e-2,), "position": (0, 8), "seed": 4, "batch": 16, "prompts": 255},
        "small": COMMON | {"predictor": (STANDARD, *WITHOUT, *REFERENCES), "parameters": (2048, 8192), "step": (1500,)},
        "medium": COMMON
        | {"predictor": (*BLOCKS, *WITHOUT, *REFERENCES), "parameters": (2048, 8192, 32768), "step": (3000,)},
    },
    key=1,
    controls={
        "untrained": Control("the networks make a single step", {"updates": 1}),
        "blind": Control("attention does not see the labels of its examples", {"blind": True}),
    },
)
