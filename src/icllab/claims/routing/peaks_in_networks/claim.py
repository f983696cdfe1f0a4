r"""Does the susceptibility of a program's loss peak before the loss tells, in networks?

A share h of the data is exchanged for prompts of one program. To first order, with the Gauss-Newton matrix G of the
loss at the resolution :math:`\rho`, the loss of that program responds by

.. math:: -\chi_c = g_c^\top (G + \rho)^{-1} (g_c - g)

for its gradient :math:`g_c` and that of the whole, g. A program is learned at the time T at which half of what guessing
costs is gone from its loss. The peak is where the running median of the response is highest, after the first updates,
in which the network only learns which tokens are symbols. The last program never comes. Derived: docs/routing.md, Three
routes.
"""

import numpy as np
import xarray as xr

from icllab.claims.routing import _times
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.results import fixed_values

PROGRAMS = "abcde"
JUDGED = ("b", "c", "d")  # the first is learned while the network learns what symbols are
ABSENT = "e"
FROM = 50  # updates
SMOOTHED = 5  # records
FALLEN = 0.1
LEARNED = 0.9  # of the programs that are judged


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Assign learning times, times of the responses' peaks, and responses at the end."""
    plateau = float(np.log(fixed_values(dataset)["symbols"]))
    losses = dataset["program_loss"].isel(layers=0, drop=True)
    times = _times.times(losses, plateau=plateau)[["transitioned", "transition_time"]]
    response = smoothed(dataset["own_response"].isel(layers=0, drop=True))
    response = response.sel(step=response["step"] >= FROM)
    peak = response["step"][response.argmax("step")]
    variables = {
        "peak_time": peak.drop_vars("step").astype(float),
        "peak_ratio": peak.drop_vars("step") / times["transition_time"],
        "left_over": response.isel(step=-1, drop=True) / response.max("step"),
        "loss_at_peak": losses.sel(step=peak).drop_vars("step") / plateau,
    }
    return dataset.assign(times).assign(variables)


def smoothed(values: xr.DataArray) -> xr.DataArray:
    """The running median over the records."""
    return values.rolling(step=SMOOTHED, center=True, min_periods=1).median()


def check(dataset: xr.Dataset) -> list[Finding]:
    """Peaks come before half of the loss is gone, and responses fall again; not so where a program never comes."""
    part = dataset.sel(program=list(JUDGED))
    fraction = float((part["transitioned"] == 1).mean())
    findings = checks.complete("learned", "nine of ten programs are learned", fraction >= LEARNED)
    ratio = _times.geometric(part["peak_ratio"], "program")
    findings += checks.below("before", "time of the peak / T", estimates.geometric_mean(ratio), 1.0)
    left = dataset["left_over"]
    remainder = _times.geometric(left.sel(program=list(JUDGED)), "program")
    quantity = "response at the end / at its peak"
    findings += checks.below("falls", f"{quantity}, of programs that come", estimates.geometric_mean(remainder), FALLEN)
    never = estimates.geometric_mean(left.sel(program=ABSENT, drop=True))
    return findings + checks.above("absent", f"{quantity}, of the program that never comes", never, FALLEN)


def reduce(dataset: xr.Dataset) -> xr.Dataset:
    """The numbers in single precision."""
    return dataset.astype("float32")


def figure(dataset: xr.Dataset):
    """Losses and responses of one network, and the time of the peak against that of the program's transition."""
    part = dataset.isel(layers=0, drop=True)
    curves = part[["program_loss"]].assign(own_response=smoothed(part["own_response"])).isel(seed=0)
    steps = np.unique(np.geomspace(1, curves.sizes["step"], 40).astype(int)) - 1
    curves = curves.isel(step=steps)
    rows = [Panel("program_loss", xscale="log"), Panel("own_response", xscale="log", yscale="log")]
    programs = [name for name in JUDGED if name in part["program"]]
    if "peak_ratio" in part and len(programs) == len(JUDGED):
        mean = estimates.geometric_mean(part["peak_ratio"].sel(program=programs).rename(program="context"))
        ratio = xr.apply_ufunc(np.exp, mean.value)
        curves = curves.assign(peak_ratio=ratio, peak_ratio_error=ratio * mean.error)
        curves = curves.assign(peak_ratio_line=xr.ones_like(ratio))
        rows.append(Panel("peak_ratio", "peak_ratio_line", x="context"))
    return panels(curves, rows, x="step", hue="program", line_name="T", columns=3)


STEPS = tuple(range(10, 2001, 10))

claim = Claim(
    title="Response peaks before the loss falls",
    sentence=(
        "The loss of a network's program responds most to more of its data before it has halved; that of a program "
        "that never comes has no such peak."
    ),
    conditions=(
        "Transformers of one layer and about 500 weights, by Adam on four programs of power-law frequencies; the three "
        "rarer ones, to first order at a resolution of 0.001. Chosen on five other seeds."
    ),
    sources=("Baker25",),
    axes=(_times.PROGRAM, Axis("context", "c", "program")),
    quantities=(
        Quantity("program_loss", "L_c", "loss of the program's answers", "nats"),
        Quantity("own_response", r"-\chi_c", "response of the loss to more of the program's data", "nats"),
        Quantity("peak_time", "t_c", "time of the peak", "updates"),
        Quantity("peak_ratio", "t_c/T", "time of the peak over that of the transition"),
        Quantity("left_over", "r", "response at the end over that at the peak"),
        Quantity("loss_at_peak", r"L_c/\ln V", "loss at the peak over that of guessing"),
        "transitioned",
        "transition_time",
    ),
    static=("layers",),
    outputs=("program", "step"),
    fixed={"symbols": 6, "length": 1, "zipf_exponent": 1.5, "width": 6, "heads": 2, "batch": 64, "resolution": 1e-3},
    sizes={
        "smoke": {"layers": (1,), "program": tuple(PROGRAMS[:3]), "step": (20, 600), "seed": 2},
        "small": {"layers": (1,), "program": tuple(PROGRAMS), "step": STEPS, "seed": 24},
        "medium": {"layers": (1,), "program": tuple(PROGRAMS), "step": STEPS, "seed": Seeds(48, block=6)},
    },
    key=33,
    precision="float64",
    controls={
        "untrained": Control("networks are not trained", measure={"trained": False}),
        "of_the_next": Control("responses are those of the next program", measure={"shift": 1}),
    },
)
