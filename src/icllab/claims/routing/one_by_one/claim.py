r"""Are programs learned one by one, in order of frequency, and does a composition wait for its parts?

A transformer is trained on strings after one of twelve programs, whose frequencies are those of a power law,
:math:`\pi_c \propto c^{-\alpha}`. Eight programs are single functions, four are two functions one after the other:
two *early* compositions come more often than the functions that they are made of, two *late* ones less often. A program
is learned at the time T when its own answers' loss, on prompts held out, is half that of guessing a symbol. If each
program were learned from its own prompts alone, and from as many of them, :math:`T \propto 1/\pi_c`: a slope of -1 of
:math:`\ln T` on :math:`\ln \pi`.
"""

import numpy as np
import xarray as xr

from icllab.claims.routing import _times
from icllab.core.axes import Axis
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.results import fixed_values

PROGRAMS = ("a", "b", "gh", "c", "hf", "d", "e", "ab", "f", "ba", "g", "h")
EARLY, LATE = ("gh", "hf"), ("ab", "ba")
CHANCE = 0.5
DEEP = 2
STEPS = tuple(int(step) for step in np.unique(np.geomspace(10, 2000, 40).astype(int)))
SHOWN = ("a", "gh", "ab", "h")


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Frequencies, and the times at which programs are learned."""
    numbers = fixed_values(dataset)
    frequency = _times.frequencies(dataset.program, PROGRAMS, numbers["zipf_exponent"])
    losses = dataset["program_loss"]
    parts = [_times.times(losses.sel(layers=b), plateau=np.log(numbers["symbols"])) for b in dataset.layers.values]
    dataset = dataset.assign(frequency=frequency)
    return dataset.merge(xr.concat(parts, dim=dataset.layers))


def check(dataset: xr.Dataset) -> list[Finding]:
    """Frequent functions come first, but T falls more slowly than in proportion; early compositions do not wait."""
    single = functions(dataset)
    order = _times.concordance(single, single["frequency"])
    quantity = "pairs of functions of which the more frequent is learned first"
    findings = checks.above("order", quantity, estimates.mean(order), CHANCE)
    failures = int((dataset["transitioned"] == 0).sum())
    findings += checks.complete("all", "every program is learned", failures == 0)
    slope = estimates.mean(_times.slope(single, single["frequency"])["slope"])
    findings += checks.below("later", "slope of ln T on ln frequency", slope, 0.0)
    findings += checks.above("less_than_in_proportion", "slope of ln T on ln frequency", slope, -1.0)
    ratio = estimates.geometric_mean(waited(dataset, EARLY))
    findings += checks.below("does_not_wait", "T of an early composition / of the later of its parts", ratio, 1.0)
    return findings


def functions(dataset: xr.Dataset) -> xr.Dataset:
    """The programs of one function."""
    return dataset.sel(program=[name for name in dataset.program.values if len(name) == 1])


def waited(dataset: xr.Dataset, compositions: tuple[str, ...]) -> xr.DataArray:
    """Geometric mean over compositions of their time over that of the later of their parts."""
    times = dataset["transition_time"]
    whole = times.sel(program=list(compositions))
    later = [times.sel(program=list(name)).max("program") for name in compositions]
    ratio = whole / xr.concat(later, dim=whole.program)
    return ratio.prod("program", skipna=False) ** (1 / len(compositions))


def figure(dataset: xr.Dataset):
    """Times against frequency, and losses of four programs along training."""
    part = dataset.isel(layers=-1, drop=True)
    kind = np.where(
        part.program.isin(EARLY), "early composition", np.where(part.program.isin(LATE), "late composition", "function")
    )
    kinds = xr.DataArray(["function", "early composition", "late composition"], dims="kind")
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
        "The rarer a program the later it is learned, but less than in proportion; a composition that comes more often "
        "than its parts does not wait for them."
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
    static=("layers",),
    outputs=("program", "step"),
    fixed={"symbols": 5, "length": 3, "zipf_exponent": 1.0, "width": 32, "heads": 2, "batch": 128, "prompts": 64},
    sizes={
        "smoke": {"layers": (1,), "program": PROGRAMS, "step": (50, 100), "seed": 2},
        "small": {"layers": (DEEP,), "program": PROGRAMS, "step": STEPS, "seed": 12},
        "medium": {"layers": (DEEP,), "program": PROGRAMS, "step": STEPS, "seed": Seeds(32, block=4)},
    },
    key=21,
    controls={
        "reversed": Control("the last program comes most often, the first least", measure={"reversed": True}),
    },
)
