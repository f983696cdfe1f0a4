r"""Two mechanisms that share factors: the toy model of coopetition, in full and as a flow of eight numbers.

Vectors a, b, c, d of ten entries; the loss is :math:`(E_1+\mu_1)(E_2+\mu_2)+\frac\alpha2\overline{(a\otimes d)^2}`. Of
each run errors are over those of a zero product. *Alone*, d is zero and stays so: the second error is a constant, which
multiplies the first as it does at the start of a run in which both are learned. Three aligned vectors of one small size
take :math:`\ln(1+\sqrt2)/\sqrt2 = 0.62` of the time that they take alone; from random starts times differ.
"""

import numpy as np
import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory import coopetition

FLOORS = {"second free": (0.1, 0.0), "first free": (0.0, 0.1), "both floored": (0.1, 0.02)}
MECHANISMS = ("first", "second")
TOGETHER, ALONE = "together", "alone"
LEARNED, LEAST = 0.5, 0.3  # of the error of a zero product: when it counts as learned, and how far it comes
NEAR = 0.01
FLOWS = 16  # seeds whose curves are predicted


def theory(dataset: xr.Dataset, *, cost: float | None = None) -> xr.Dataset:
    """Add the curves of the flow of eight numbers from the first seeds' starts. ``cost``: another value."""
    fixed = fixed_values(dataset)
    curves = dataset["relative_error"].transpose(..., "step", "mechanism")
    predicted = xr.full_like(curves, np.nan)
    predicted_seeds = set(dataset.seed.values[:FLOWS].tolist())
    for index in np.ndindex(curves.shape[:-2]):
        at = {name: curves[name].values[i] for name, i in zip(curves.dims, index, strict=False)}
        if at["seed"] not in predicted_seeds:
            continue
        start = dataset.sel(at)
        squares = start["target_square"].values
        path = coopetition.flow(
            start["overlap"].values,
            start["size_beside"].values,
            squares=squares,
            floors=FLOORS[str(at["setting"])],
            cost=fixed["cost"] if cost is None else cost,
            dim=fixed["dim"],
            times=fixed["rate"] * curves.step.values,
            held=("d",) if at["arrangement"] == ALONE else (),
        )
        null = np.array([squares[:3].prod(), squares[1:].prod()]) / 2
        predicted[index] = (path.errors / null)[:, [MECHANISMS.index(name) for name in curves.mechanism.values]]
    return dataset.assign(relative_error_theory=predicted)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Cooperation in time, competition at the end, persistence with two floors, and the flow of eight numbers."""
    findings = []
    curves = dataset["relative_error"]
    both = curves.sel(arrangement=TOGETHER, drop=True)
    last = both.isel(step=-1, drop=True)
    times = dataset["learned_step"]
    ratio = times.sel(arrangement=TOGETHER, drop=True) / times.sel(arrangement=ALONE, drop=True)
    if "second free" in dataset.setting:
        at = {"setting": "second free"}
        quantity = "step at which the first mechanism is learned, together / alone"
        findings += checks.below("earlier", quantity, estimates.geometric_mean(ratio.sel(at, drop=True)), 1.0)
        least = estimates.mean(dataset["least_error"].sel(at, drop=True).sel(arrangement=TOGETHER, drop=True))
        findings += checks.below("learned", "least relative error of the first mechanism", least, LEAST)
        end = estimates.mean(last.sel(at, drop=True))
        findings += checks.above("fades", "last relative error of the first", end.sel(mechanism="first"), 0.9)
        findings += checks.below("stays", "last relative error of the second", end.sel(mechanism="second"), 0.1)
    if "first free" in dataset.setting:
        end = estimates.mean(last.sel(setting="first free", drop=True))
        findings += checks.below("stays", "last relative error of the first", end.sel(mechanism="first"), 0.1)
        findings += checks.above("fades", "last relative error of the second", end.sel(mechanism="second"), 0.9)
    if "both floored" in dataset.setting:
        largest = estimates.mean(last.sel(setting="both floored", drop=True).max("mechanism"))
        findings += checks.below("both", "larger of the last relative errors", largest, 0.1)
    distance = abs(curves - dataset["relative_error_theory"]).mean(("step", "mechanism"))
    findings += checks.below("flow", "mean distance of the curves from the flow's", estimates.mean(distance), NEAR)
    return findings


def figure(dataset: xr.Dataset):
    """Draw errors of both mechanisms against training for joint runs of the seeds that have flows."""
    part = dataset.isel(seed=slice(FLOWS))
    means = part.assign(relative_error_line=part["relative_error_theory"].mean("seed"))
    rows = [
        Panel("relative_error", "relative_error_line", at={"setting": setting, "arrangement": TOGETHER}, ylim=(0, 1.1))
        for setting in dataset.setting.values
    ]
    return panels(means, rows, x="step", hue="mechanism", line_x="step", line_name="reduced flow")


STEPS = tuple(range(0, 4001, 200))
claim = Claim(
    title="Coopetition of two mechanisms",
    sentence=(
        "Of two mechanisms sharing factors, one with an error floor is learned earlier than alone and then fades if "
        "the other has none; with two floors, both stay."
    ),
    conditions=(
        "Four vectors of ten entries, targets of mean square 1, cost 0.05, gradient descent at rate 1 from N(0, 0.3²); "
        "floors 0.1 and 0, or 0.1 and 0.02; 128 seeds. Alone: d stays zero. Bounds were set on another key."
    ),
    sources=("Singh25",),
    axes=(
        Axis("mechanism", "m", "mechanism"),
        Axis("vector", "v", "vector"),
    ),
    quantities=(
        Quantity("relative_error", r"E_m/E_m^0", "relative error of a mechanism"),
        Quantity("learned_step", "t_1", "step at which the first mechanism is learned, or the last", "updates"),
        Quantity("least_error", r"\min E_1/E_1^0", "least relative error of the first mechanism"),
        Quantity("overlap", "x_v", "overlap of a vector with its target at the start"),
        Quantity("size_beside", "r_v", "root mean square of the part beside the target at the start"),
        Quantity("target_square", "T_v", "mean square of a target"),
    ),
    static=("setting",),
    outputs=("step", "mechanism", "vector"),
    fixed={"dim": 10, "cost": 0.05, "rate": 1.0, "std": 0.3},
    sizes={
        "smoke": {"setting": ("second free",), "arrangement": (TOGETHER, ALONE), "step": (0, 200, 400)}
        | {"mechanism": MECHANISMS, "vector": tuple("abcd"), "seed": 2},
        "small": {"setting": tuple(FLOORS), "arrangement": (TOGETHER, ALONE), "step": STEPS, "seed": 128}
        | {"mechanism": MECHANISMS, "vector": tuple("abcd")},
        "medium": {"setting": tuple(FLOORS), "arrangement": (TOGETHER, ALONE), "step": STEPS}
        | {"mechanism": MECHANISMS, "vector": tuple("abcd"), "seed": Seeds(192, block=64)},
    },
    key=11,
    controls={
        "unshared": Control(
            "the second mechanism has b and c of its own",
            measure={"shared": False},
            axes={"setting": ("second free",), "seed": tuple(range(64))},
        ),
        "no_cost": Control(
            "having both mechanisms costs nothing",
            measure={"cost": 0.0},
            axes={"setting": ("second free",), "seed": tuple(range(16))},
        ),
        "exchanged": Control(
            "the floors of the mechanisms are exchanged",
            measure={"exchanged": True},
            axes={"setting": ("second free", "first free"), "seed": tuple(range(16))},
        ),
        "one_floor": Control(
            "the lower of two floors is zero",
            measure={"lower": 0.0},
            axes={"setting": ("both floored",), "seed": tuple(range(16))},
        ),
        "free_flow": Control("the flow of eight numbers has no cost", theory={"cost": 0.0}),
    },
)
