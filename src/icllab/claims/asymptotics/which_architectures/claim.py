r"""The same regression in context by attention and by networks without it, at equal numbers of parameters.

Every network T learns from the same fresh prompts and is as wide as a number of parameters allows. Labels have noise of
variance 1/4: ridge of that strength is the best predictor, and the error of T exceeds the least by
:math:`E\,(T_i - \text{ridge}_i)^2 = E\,(T_i - y_i)^2 - E\,(\text{ridge}_i - y_i)^2`, of which the left side has the
smaller variance and is measured. Smaller differences are judged at ``medium``.
"""

import math

import numpy as np
import xarray as xr

from icllab.claims.asymptotics._statistics import best_for_others
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks
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
SETS = [STANDARD, "DeepSets"]  # they do the same with every example, wherever it stands
LONG = 3000  # steps from which other differences are judged: before, seeds of one network differ as much
LEARNED = 0.5  # fraction of the way from no examples to ridge, at least
USED = 0.75  # fraction of the parameters allowed that a network has, at least


def chosen(excess: xr.DataArray) -> xr.DataArray:
    """For each seed the excess at the last position, at the learning rate that was best for the other seeds."""
    last = excess.isel(position=-1, drop=True).transpose(..., "rate", "seed")
    values = np.where(np.isfinite(last.values), last.values, np.inf)
    taken = np.take_along_axis(values, best_for_others(-values)[..., None, :], axis=-2)[..., 0, :]
    measured = ~np.isnan(last.values).all(axis=-2)
    return last.isel(rate=0, drop=True).copy(data=np.where(measured, taken, np.nan))


def check(dataset: xr.Dataset) -> list[Finding]:
    """What attention and DeepSets reach, against the MLP; after longer training, what else matters."""
    reached = chosen(dataset["excess"].isel(step=-1, drop=True)).reindex(predictor=[*BLOCKS, *WITHOUT, *REFERENCES])
    progress = mean(1 - reached.sel(predictor=SETS) / reached.sel(predictor="no examples", drop=True))
    findings = checks.above("learned", "fraction of the way from no examples to ridge", progress, LEARNED)
    findings += [*_ratios(reached, "MLP", SETS), *_ratios(reached, "attention 1 layer", ["attention 4 layers"])]
    if dataset.step[-1] >= LONG:
        for name in ("attention 1 layer", "recurrent", "DeepSets"):
            findings += _ratios(reached, name, [STANDARD])
        if reached.sizes["parameters"] > 1:
            few, many = (reached.sel(predictor=list(BLOCKS)).isel(parameters=end, drop=True) for end in (0, -1))
            fall = geometric_mean(few / many)
            findings += checks.above("larger", "excess error with the fewest / most parameters", fall, 1.0)
    findings = [finding for finding in findings if not math.isnan(finding.measured)]  # NaN: a cell not asked for
    fraction = dataset["parameter_count"] / dataset["parameters"]
    least = Estimate(fraction.where(fraction > 0).min(), 0.0)
    used = checks.above("parameters_used", "least fraction of the parameters allowed that a network has", least, USED)
    there = {*SETS, "MLP", "no examples"} <= set(dataset.predictor.values)
    return [*findings, *used, *checks.complete("predictors", "every predictor of the claim is there", there)]


def _ratios(reached: xr.DataArray, worse: str, better: list[str]) -> list[Finding]:
    """The excess error of one network over those of others is larger than 1."""
    ratio = geometric_mean(reached.sel(predictor=worse, drop=True) / reached.sel(predictor=better))
    name = f"{worse} worse".lower().replace(" ", "_")
    return checks.above(name, f"excess error of {worse} / of the other", ratio, 1.0)


def figure(dataset: xr.Dataset):
    """The excess error after the whole prompt against the number of parameters."""
    last = chosen(dataset["excess"].isel(dim=-1, step=-1))
    names = [name for name in (*BLOCKS, *WITHOUT) if name in last.predictor]
    level = last.reindex(predictor=["least squares"]).mean()
    line = xr.full_like(last.parameters, float(level), dtype=float)
    shown = xr.Dataset({"excess": last.sel(predictor=names), "excess_line": line}, attrs=dataset.attrs)
    rows = [Panel("excess", "excess_line" if np.isfinite(level) else None, "log")]
    return panels(shown, rows, x="parameters", hue="predictor", line_name="least squares", xscale="log")


COMMON = {"dim": (4,), "rate": (3e-3, 1e-2, 3e-2), "position": tuple(range(9)), "seed": 10}
claim = Claim(
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
