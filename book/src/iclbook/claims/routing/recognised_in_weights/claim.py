r"""Do a program's weights obey a law, and does it come with the program's recognition?

A program is learned at the time T at which half of what guessing costs is gone from the loss of its own answers. The
weights :math:`f_c(w)` answer strings without the program as w does with it. They are fitted on four fifths of all
strings, at multiples of T. What they leave on the others is measured of the program's *effect* and of its *changes*
with w, both over what the map of another program leaves (or 1). A law leaves little of either; here, less than a
tenth. Beside it is a law planted at the same size in the same network: a "more than a tenth" only counts where that
would have been found. A program of one token cannot be cut in two, so that composition is not asked, and no law can
be found: only what it needs.
"""

import numpy as np
import xarray as xr

from iclbook.claims.routing._times import geometric
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.diagnostics.contexts.verdicts import LEVEL, POWER, compare, log_ratios
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates

WORLDS = ("own", "other", "planted")
EFFECT, CHANGE = TESTS = ("effect", "change")
MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0)
BEFORE, AFTER = 0.25, 4.0
GROWS = 2.0  # what the program does to answers, from T/4 to 4T
MOST = 0.25  # of the programs' times may be unknown


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """What maps leave over what another program's map leaves, of contexts and of planted laws."""
    if "left" not in dataset:
        return dataset
    tests = dataset[["left", "converged"]].assign(converged=dataset["converged"] == 1)
    ratios = {f"{world}_ratio": xr.ufuncs.exp(log_ratios(tests, world)) for world in ("own", "planted")}
    return dataset.assign(**ratios, own_ratio_line=LEVEL * xr.ones_like(dataset["multiple"]))


def numbers(dataset: xr.Dataset, multiple: float) -> xr.Dataset:
    """Ratios, powers and the numbers of fits at one multiple, over seeds."""
    tests = (
        dataset[["left", "converged"]].sel(multiple=multiple, drop=True).squeeze(["directions", "updates"], drop=True)
    )
    return compare(tests.assign(converged=tests["converged"] == 1).rename(seed="network"))


def check(dataset: xr.Dataset) -> list[Finding]:
    """Weights have the effect before and after, and its changes before, but not after."""
    unknown = float(dataset["effect"].isnull().mean())
    findings = checks.complete("learned", "three quarters of the times are known", unknown <= MOST)
    ends = dataset["effect"].sel(multiple=[BEFORE, AFTER])
    growth = geometric(ends.isel(multiple=1, drop=True) / ends.isel(multiple=0, drop=True), "context")
    findings += checks.above("effect", "what the program does at 4T / at T/4", estimates.geometric_mean(growth), GROWS)
    for multiple, name in ((BEFORE, "before"), (AFTER, "after")):
        stage = numbers(dataset, multiple)
        enough = bool((stage["left_out"] <= stage["contexts"]).all())
        findings += checks.complete(f"converged_{name}", f"half of the fits at {multiple:g} T converge", enough)
        for test in TESTS:
            logs = xr.ufuncs.log(dataset["own_ratio"].sel(multiple=multiple, test=test, drop=True)).mean("context")
            left = estimates.geometric_mean(np.exp(logs))
            quantity = f"{test} left at {multiple:g} T / by another program's map"
            side = checks.above if (test, name) == (CHANGE, "after") else checks.below
            findings += side(f"{test}_{name}", quantity, left, LEVEL)
    power = float(numbers(dataset, AFTER)["power"].sel(test=CHANGE))
    return findings + checks.complete("power", "a planted law would be found after T", power >= POWER)


def figure(dataset: xr.Dataset):
    """What maps and planted laws leave, and losses of held-out answers, at multiples of a program's own time."""
    part = dataset.isel(directions=0, updates=0, drop=True)
    if "left" not in dataset:
        return panels(part, [Panel("effect", yscale="log")], x="multiple", hue="context", xscale="log")
    table = part[["own_ratio_line"]].assign(answer_loss=part["answer_loss"].mean("context"))
    for name in ("own_ratio", "planted_ratio"):
        mean = estimates.geometric_mean(np.exp(xr.ufuncs.log(part[name]).mean("context")))
        table = table.assign({name: np.exp(mean.value), f"{name}_error": np.exp(mean.value) * mean.error})
    rows = [Panel(name, "own_ratio_line", yscale="log", hue="test") for name in ("own_ratio", "planted_ratio")]
    rows.append(Panel("answer_loss", hue="answered_by"))
    return panels(table, rows, x="multiple", xscale="log", line_name="threshold", columns=3)


FIXED = {"program": "abcd", "symbols": 5, "length": 2, "zipf_exponent": 1.5, "width": 8, "layers": 1, "heads": 2}
COMMON = {"answered_by": ("program", "neither"), "world": WORLDS, "test": TESTS}
SMOKE = {"directions": (0,), "updates": (600,), "context": ("a",), "multiple": (BEFORE, AFTER), "seed": 2} | COMMON
COMMON |= {"directions": (4,), "updates": (4000,), "context": ("a", "d"), "multiple": MULTIPLES}

claim = Claim(
    title="Maps do not switch on with a program",
    sentence=(
        "Weights carry a program's effect before and after it is recognised, but its changes only before: of these "
        "they leave less than a tenth at T/4, and more at 4T."
    ),
    conditions=(
        "Transformers of one layer and 802 weights, by Adam on four programs of power-law frequencies; the most and "
        "the least frequent, all weights, queries of two symbols and the sign. Chosen on ten other seeds; fits that "
        "do not converge are left out."
    ),
    sources=("SLT22",),
    axes=(
        Axis("context", "c", "program"),
        Axis("multiple", "t/T", "time relative to the program's transition", above=0),
        Axis("world", "W", "map"),
        Axis("test", "q", "what is left"),
        Axis("answered_by", "f", "predictor"),
        Axis("updates", "t", "updates in all", least=1),
        Axis("directions", "k", "random directions of the derivative test; 0: no map", least=0),
    ),
    quantities=(
        Quantity("effect", "D_c", "divergence of answers with the program from those without", "nats"),
        Quantity("left", r"\rho", "fraction left on held-out strings"),
        Quantity("own_ratio", r"\rho_c/\rho_0", "residual of the program's map relative to another's"),
        Quantity("planted_ratio", r"\rho_p/\rho_0", "residual of a planted map relative to another's"),
        Quantity("answer_loss", "L", "loss of the first symbol after held-out strings", "nats"),
        "converged",
        "transition_time",
    ),
    static=("directions", "updates"),
    outputs=("context", "multiple", "world", "test", "answered_by"),
    fixed=FIXED | {"batch": 32, "every": 10},
    sizes={
        "smoke": SMOKE,
        "small": COMMON | {"seed": Seeds(24, block=4)},
        "medium": COMMON | {"seed": Seeds(48, block=4)},
    },
    key=67,
    precision="float64",
    controls={
        "untrained": Control(
            "maps are of networks before training", measure={"trained": False}, axes={"seed": tuple(range(8))}
        ),
        "swapped": Control(
            "another program's map stands for the program's", measure={"swapped": True}, axes={"seed": tuple(range(8))}
        ),
    },
)
