r"""Are programs learned one by one, in order of frequency?

A transformer is trained on strings after one of twelve programs, whose frequencies are those of a power law,
:math:`\pi_c \propto c^{-\alpha}`. Eight programs are single functions, four are two functions one after the other. A
program is learned at the time T when its own answers' loss, on prompts held out, is half that of guessing a symbol. If
each program were learned from its own prompts alone, and from as many of them, :math:`T \propto 1/\pi_c`: a slope of -1
of :math:`\ln T` on :math:`\ln \pi`. Functions are a group, so that compositions are functions too; the claim is of the
eight that are asked as such.
"""

import numpy as np
import xarray as xr

from iclbook.claims.routing import _times
from icllab.core.axes import Axis
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, Subject, checks, estimates
from icllab.lab.results import fixed_values

PROGRAMS = ("a", "b", "gh", "c", "hf", "d", "e", "ab", "f", "ba", "g", "h")
CHANCE = 0.5
STEPS = tuple(int(step) for step in np.unique(np.geomspace(10, 2000, 40).astype(int)))
SHOWN = ("a", "gh", "ab", "h")


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Frequencies, and the times at which programs are learned."""
    numbers = fixed_values(dataset)
    frequency = _times.frequencies(dataset.program, PROGRAMS, numbers["zipf_exponent"])
    losses = dataset["program_loss"]
    parts = [_times.times(losses.sel(width=b), plateau=np.log(numbers["symbols"])) for b in dataset.width.values]
    dataset = dataset.assign(frequency=frequency)
    return dataset.merge(xr.concat(parts, dim=dataset.width))


def check(dataset: xr.Dataset) -> list[Finding]:
    """Frequent functions come first, but T falls more slowly than in proportion."""
    single = functions(dataset)
    order = _times.concordance(single, single["frequency"])
    quantity = "pairs of functions of which the more frequent is learned first"
    findings = checks.above("order", quantity, estimates.mean(order), CHANCE)
    findings += _times.mostly_learned(dataset["transitioned"])
    slope = estimates.mean(_times.slope(single, single["frequency"])["slope"])
    findings += checks.below("later", "slope of ln T on ln frequency", slope, 0.0)
    return findings + checks.above("less_than_in_proportion", "slope of ln T on ln frequency", slope, -1.0)


def functions(dataset: xr.Dataset) -> xr.Dataset:
    """The programs that consist of one function."""
    return dataset.sel(program=[name for name in dataset.program.values if len(name) == 1])


def figure(dataset: xr.Dataset):
    """Draw times against frequency, and losses of four programs along training."""
    part = dataset.isel(width=-1, drop=True)
    kind = np.where(part.program.str.len() > 1, "composition", "function")
    kinds = xr.DataArray(["function", "composition"], dims="kind")
    times = part["transition_time"].where(kinds == xr.DataArray(kind, dims="program"))
    times = times.assign_coords(program=part["frequency"].values, kind=kinds).rename(program="frequency")
    coefficients = _times.slope(functions(part), functions(part)["frequency"]).mean("seed")
    line = np.exp(coefficients["intercept"] + coefficients["slope"] * np.log(times["frequency"]))
    losses = part[["program_loss"]].sel(program=[name for name in SHOWN if name in part.program])
    table = xr.Dataset({"transition_time": times, "transition_time_line": line}, attrs=dataset.attrs).merge(
        losses.rename(program="context")
    )
    rows = [
        Panel("transition_time", "transition_time_line", x="frequency", hue="kind", xscale="log", yscale="log"),
        Panel("program_loss", x="step", hue="context", xscale="log"),
    ]
    return panels(table, rows, x="step", hue="context", line_name="least squares")


claim = Claim(
    title="Rarer programs are learned later",
    sentence=(
        "The rarer a program the later the network learns it, but less than in proportion: the slope of ln T on ln "
        "frequency is between -1 and 0."
    ),
    conditions=(
        "Transformers of two layers trained by Adam on twelve programs of frequencies 1/rank, each of one or two "
        "random functions of strings of three symbols. The sentence was chosen on two other seeds."
    ),
    sources=("SLT22",),
    axes=(
        _times.PROGRAM,
        Axis("context", "c", "program"),
        Axis("kind", "k", "kind of program"),
        Axis("frequency", r"\pi_c", "frequency of the program", above=0),
    ),
    quantities=(_times.PROGRAM_LOSS, "transitioned", "observed_time", "transition_time"),
    static=("width",),
    outputs=("program", "step"),
    fixed={"symbols": 5, "length": 3, "zipf_exponent": 1.0, "layers": 2, "heads": 2, "batch": 128, "prompts": 64},
    sizes={
        "smoke": {"layers": 1, "width": (16,), "program": PROGRAMS, "step": (50, 100), "seed": 2},
        "small": {"width": (32,), "program": PROGRAMS, "step": STEPS, "seed": Seeds(12, block=3)},
        "medium": {"width": (40,), "program": PROGRAMS, "step": STEPS, "seed": Seeds(32, block=4)},
    },
    key=36,
    subject=Subject("tokens", "transformers of two layers", run=True, controls=()),
    controls={
        "reversed": Control(
            "the last program comes most often, the first least",
            measure={"reversed": True},
            axes={"seed": tuple(range(8))},
        ),
        "discounted": Control(
            "a program's loss counts with the square of its relative frequency",
            measure={"discount": 2.0},
            axes={"seed": tuple(range(16))},
        ),
    },
)
