r"""Are the transitions of several programs the superposition of each program's own transition?

The gradient of the loss is the sum of those of its programs, :math:`\nabla L = \sum_c \pi_c \nabla L_c`. If programs
had weights of their own, gradient descent on the sum would train each as if the others were not there; with momentum
too, which is linear in gradients. Here the same network is trained on the same prompts twice: all programs count, or
the loss of one alone does, the others' being multiplied by 0. A program is learned at the time T when the loss of its
own answers is half that of guessing a symbol. Superposed, the ratio of both times is 1.
"""

import numpy as np
import xarray as xr

from iclbook.claims.routing import _times
from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.results import fixed_values

TOGETHER, ALONE = "together", "alone"
PROGRAMS = ("a", "b", "c", "d", "e", "f")
STEPS = tuple(int(step) for step in np.unique(np.geomspace(10, 2000, 40).astype(int)))


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Times at which programs are learned, and their ratio; a lower bound if a program is not learned with others."""
    plateau, losses = np.log(fixed_values(dataset)["symbols"]), dataset["program_loss"].isel(layers=0)
    kinds = dataset.training.values
    parts = [_times.times(losses.sel(training=kind), plateau=plateau).drop_vars("layers") for kind in kinds]
    times = xr.concat(parts, dim=dataset.training)
    ratio = times["observed_time"].sel(training=TOGETHER, drop=True)
    ratio = ratio / times["transition_time"].sel(training=ALONE, drop=True)
    return dataset.merge(times).assign(time_ratio=ratio)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Every program is later with others than alone, by more than the spread of its own time over seeds."""
    ratio = dataset["time_ratio"]
    complete = bool((dataset["transitioned"].sel(training=ALONE) == 1).all())
    findings = checks.complete("learned", "every program is learned alone", complete)
    mean = estimates.geometric_mean(ratio)
    findings += checks.above("later", "T beside others / alone", mean, 1.0)
    log_times = xr.DataArray(np.log(dataset["transition_time"].sel(training=ALONE, drop=True)))
    beyond = mean / np.exp(log_times.std("seed", ddof=1))
    return findings + checks.above("beyond_spread", "T beside others / alone, over the spread alone", beyond, 1.0)


def figure(dataset: xr.Dataset):
    """Draw geometric means of times and ratios by program; a program that is not learned has the last step."""
    means = xr.Dataset(attrs=dataset.attrs)
    for name in ("observed_time", "time_ratio"):
        mean = estimates.geometric_mean(dataset[name])
        value = np.exp(mean.value)
        means = means.assign({name: value, f"{name}_error": value * mean.error})
    rows = [Panel("observed_time", hue="training", yscale="log"), Panel("time_ratio", yscale="log")]
    return panels(means, rows, x="program")


BOTH = {"training": (TOGETHER, ALONE)}
claim = Claim(
    title="Programs delay each other",
    sentence=(
        "Beside others a program is learned later than where it alone counts, by more than the spread over seeds: "
        "transitions of programs are not superposed."
    ),
    conditions=(
        "Transformers of two layers trained by SGD with momentum on six programs of frequencies 1/rank, random "
        "functions of two symbols; alone: in the same prompts the others' loss is left out. Chosen on two other seeds."
    ),
    sources=("SLT22",),
    axes=(_times.PROGRAM,),
    quantities=(
        _times.PROGRAM_LOSS,
        Quantity("time_ratio", r"T_c/T_c^{\rm alone}", "time beside others over time alone"),
        "transitioned",
        "observed_time",
        "transition_time",
    ),
    static=("layers",),
    outputs=("training", "program", "step"),
    fixed={"symbols": 5, "length": 2, "zipf_exponent": 1.0, "width": 16, "heads": 2} | {"batch": 64, "prompts": 64},
    sizes={
        "smoke": BOTH | {"layers": (1,), "program": ("a", "b"), "step": (10, 20, 30, 40, 60, 80, 110, 150), "seed": 2},
        "small": BOTH | {"layers": (2,), "program": PROGRAMS, "step": STEPS, "seed": 16},
        "medium": BOTH | {"layers": (2,), "program": PROGRAMS, "step": STEPS, "seed": Seeds(32, block=4)},
    },
    key=22,
    controls={
        "apart": Control("programs do not count for each other in either run", measure={"apart": True}),
        "alike": Control(
            "all programs do the same", measure={"alike": True}, axes={"seed": tuple(range(8)), "step": STEPS[:24]}
        ),
    },
)
