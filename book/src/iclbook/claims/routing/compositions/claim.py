r"""Does a composition wait for its parts, and does it help to know them, where compositions are no functions?

A function turns a string by a number of symbols that depends on the first symbol, and replaces the symbols:
:math:`f(x)_i = \sigma(x_{1 + (i - 1 + r(x_1)) \bmod n})`. After two of them the number depends on two symbols, or on
three: a composition is no function, whatever tables and turns are allowed, and the least fraction of symbols in which
any function differs from it is counted out. A transformer is trained on eight functions and four compositions of two or
three. *Early* compositions come more often than their parts, *late* ones less often. A program is learned at the time T
when its own answers' loss is half of what guessing costs who knows the program and not the string.

The same compositions are learned twice, by the same network from the same strings. *Asked*: their parts are among the
functions that are asked alone. *Strangers*: other functions stand in their parts' places. Only knowing the parts
differs. A program that is not learned counts with the last step.
"""

import numpy as np
import xarray as xr

from iclbook.claims.routing import _times
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.results import fixed_values

PROGRAMS = ("a", "b", "gh", "c", "hfg", "d", "e", "ab", "f", "bac", "g", "h")
EARLY, LATE = ("gh", "hfg"), ("ab", "bac")
ASKED, STRANGERS = "asked", "strangers"
BOTH = (ASKED, STRANGERS)
PARTS, FIRST_STRANGER, IDLE = "abcfgh", "i", "o"
FUNCTIONS = 15
STEPS = tuple(int(step) for step in np.unique(np.geomspace(10, 2000, 40).astype(int)))
LARGEST_HELP = 0.8  # of the time without the parts
NEW = 0.1  # of the symbols


def strangers(names: tuple[str, ...]) -> tuple[str, ...]:
    """The programs with other functions in the places of those that are parts of compositions."""
    first = ord(FIRST_STRANGER)
    return tuple(chr(first + PARTS.index(name)) if len(name) == 1 and name in PARTS else name for name in names)


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Times at which programs are learned, and their ratios."""
    relative = (dataset["program_loss"] / dataset["guess_loss"]).isel(layers=0, width=0, drop=True)
    times = [_times.times(relative.sel(parts=parts, drop=True), plateau=1.0) for parts in dataset.parts.values]
    dataset = dataset.merge(xr.concat(times, dim=dataset.parts))
    frequency = _times.frequencies(dataset.program, PROGRAMS, fixed_values(dataset)["zipf_exponent"])
    return dataset.assign(frequency=frequency, wait_ratio=waited(dataset), help_ratio=helped(dataset))


def waited(dataset: xr.Dataset) -> xr.DataArray:
    """T of an early composition over that of the latest of its parts, a geometric mean."""
    times = dataset["observed_time"].sel(parts=ASKED, drop=True)
    whole = times.sel(program=[name for name in EARLY if name in times.program])
    latest = [times.sel(program=list(name)).max("program") for name in whole.program.values]
    return _times.geometric(whole / xr.concat(latest, dim=whole.program), "program")


def helped(dataset: xr.Dataset) -> xr.DataArray:
    """T of a late composition where its parts are asked over that where strangers are, a geometric mean."""
    times = dataset["observed_time"].sel(program=[name for name in LATE if name in dataset.program])
    with_parts, with_strangers = (times.sel(parts=parts, drop=True) for parts in BOTH)
    return _times.geometric(with_parts / with_strangers, "program")


def check(dataset: xr.Dataset) -> list[Finding]:
    """Compositions are no functions; early ones do not wait, and late ones are not helped."""
    compositions = [name for name in PROGRAMS if len(name) > 1 and name in dataset.program]
    errors = dataset["nearest_error"].isel(layers=0, width=0, drop=True).sel(parts=ASKED, drop=True)
    quantity = "share of a composition's symbols in which the nearest function differs"
    findings = checks.above("new", quantity, estimates.mean(errors.sel(program=compositions).mean("program")), NEW)
    findings += _times.mostly_learned(dataset["transitioned"])
    ratio = estimates.geometric_mean(dataset["wait_ratio"])
    findings += checks.below("does_not_wait", "T of an early composition / of the latest of its parts", ratio, 1.0)
    return findings + no_help(dataset["help_ratio"])


def no_help(ratios: xr.DataArray) -> list[Finding]:
    """Is a late composition no fifth faster where its parts are asked, of the ratios of every seed?"""
    quantity = "T of a late composition with its parts asked alone / with strangers"
    return checks.above("no_help", quantity, estimates.geometric_mean(ratios), LARGEST_HELP)


def figure(dataset: xr.Dataset):
    """Times against frequency with the parts asked, and losses of late compositions with their parts and strangers."""
    single = xr.where(dataset.program.str.len() == 1, "function", "composition")
    kinds = xr.DataArray(["function", "composition"], dims="kind", coords={"kind": ["function", "composition"]})
    times = dataset["observed_time"].sel(parts=ASKED, drop=True).where(kinds == single)
    times = times.assign_coords(program=dataset["frequency"].values).rename(program="frequency").sortby("frequency")
    losses = dataset["program_loss"].isel(layers=0, width=0, drop=True)
    shown = losses.sel(program=[name for name in (*EARLY, *LATE) if name in losses.program]).rename(program="context")
    names = [{ASKED: "with its parts"}.get(name, "with unrelated functions") for name in dataset.parts.values]
    shown = shown.assign_coords(parts=names)
    table = xr.Dataset({"observed_time": times, "program_loss": shown}, attrs=dataset.attrs)
    rows = [Panel("observed_time", x="frequency", hue="kind", xscale="log", yscale="log")]
    rows += [Panel("program_loss", x="step", hue="context", xscale="log", at={"parts": name}) for name in names]
    return panels(table, rows, x="step", hue="context")


SIZES = {"layers": (2,), "parts": BOTH, "program": PROGRAMS, "step": STEPS}
claim = Claim(
    title="Compositions that are no functions",
    sentence=(
        "Where compositions are no functions, one more frequent than its parts does not wait for them, and "
        "knowing the parts does not make a rarer one a fifth faster."
    ),
    conditions=(
        "Transformers of two layers trained by Adam on eight functions, with turns by data, and four compositions of "
        "two and three; frequencies 1/rank. The sentence was chosen on four seeds of another key."
    ),
    sources=("SLT22",),
    axes=(
        _times.PROGRAM,
        Axis("parts", "p", "whether a composition's parts are asked alone"),
        Axis("context", "c", "program"),
        Axis("kind", "k", "kind of program"),
        Axis("frequency", r"\pi_c", "frequency of the program", above=0),
    ),
    quantities=(
        _times.PROGRAM_LOSS,
        Quantity("guess_loss", "H_c", "loss of guessing a symbol of the program's answers", "nats"),
        Quantity("nearest_error", r"\delta_c", "share of symbols in which the nearest function differs"),
        Quantity("wait_ratio", r"T_c/\max T", "time of a composition over that of the latest of its parts"),
        Quantity("help_ratio", r"T_c/T_c^{\rm strangers}", "time with the parts asked over time with strangers"),
        "transitioned",
        "observed_time",
        "transition_time",
    ),
    static=("layers", "width"),
    outputs=("parts", "program", "step"),
    fixed={"symbols": 5, "length": 3, "functions": FUNCTIONS, "zipf_exponent": 1.0, "heads": 2}
    | {"batch": 128, "prompts": 64},
    sizes={
        "smoke": SIZES | {"layers": (1,), "width": (8,), "step": (10, 40), "seed": 2, "batch": 16, "prompts": 8},
        "small": SIZES | {"width": (32,), "seed": Seeds(12, block=2)},
        "medium": SIZES | {"width": (40,), "seed": Seeds(32, block=4)},
    },
    key=33,
    controls={
        "group": Control(
            "one number of places for all strings: compositions are functions",
            measure={"by_data": False},
            axes={"seed": (0, 1), "step": STEPS[:2]},
        ),
        "reversed": Control(
            "the last program comes most often, the first least",
            measure={"reversed": True},
            axes={"seed": tuple(range(6))},
        ),
        "idle": Control(
            "a composition's later functions do nothing", measure={"idle": True}, axes={"seed": tuple(range(6))}
        ),
    },
)
